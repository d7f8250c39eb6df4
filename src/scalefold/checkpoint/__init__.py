"""A training run's folder: checkpoints, who may write there, and what a run may continue from.

Read the files in the order of a run:

1. ``lock.py`` lets one process write.
2. ``resume.py`` says if a run may continue, by the hashes of ``provenance.py``; ``replacement.py``
   moves another run away. ``initial_weights.py`` reads what a new run starts from.
3. ``state.py`` collects the state, ``snapshot.py`` copies it, ``write.py`` writes it in a thread of
   ``background.py``, and ``read.py`` reads it.
4. ``published.py`` lists checkpoints of the present data. ``early_stopping.py`` is how an
   evaluation ends training.
"""
