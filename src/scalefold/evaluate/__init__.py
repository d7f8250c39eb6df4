"""Metrics of predicted structures, and the evaluation of weights.

Read the files from the outside in:

1. ``follow.py`` waits for checkpoints, ``evaluation_ranks.py`` does so in training's own launch.
2. ``run.py`` evaluates one checkpoint and writes ``results.py``.
3. ``chains.py`` predicts its chains, and ``chain_scores.py`` scores one by ``metrics``.
4. ``shown_structures.py`` and ``pae_calibration.py`` keep what the report shows of a chain.

``patience.py`` ends training, ``unreported.py`` keeps an evaluation that could not say so, and
``up_to_date.py`` tells what need not be evaluated again.
"""
