"""From shard rows to the tensors that the model and the losses read (device-agnostic torch).

``contract.py`` names every tensor. ``draws.py`` makes all random decisions, ``choices.py`` collects
them, the transforms carry them out, and ``pipeline.py`` runs all of it. What the model reads is
made from a ``query.py`` without any structure; ``targets.py`` adds the structure to be learnt.
"""
