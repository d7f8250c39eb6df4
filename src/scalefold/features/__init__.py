"""From shard rows to the tensors that the model and the losses read (device-agnostic torch).

``contract.py`` names every tensor. ``draws.py`` makes all random decisions, ``plan.py`` collects
them, the transforms carry them out, and ``pipeline.py`` runs all of it.
"""
