"""Structures from sequences: prediction by one or several sets of weights.

Read the files in the order of the work:

1. ``targets.py`` reads what to predict. ``members.py`` reads configurations of weights, and
   ``loaded_weights.py`` the weights.
2. ``run.py`` predicts all targets. ``features_ahead.py`` makes the features of the next.
3. ``predictor.py`` predicts one chain, ``ensemble.py`` by several sets of weights, and
   ``shared_chain.py`` on several GPUs.
4. ``ranking.py`` sorts the predictions, ``pair_maps.py`` reduces their maps, and ``outputs.py``
   writes the files by ``model_cif.py`` or ``pdb_file.py``.
"""
