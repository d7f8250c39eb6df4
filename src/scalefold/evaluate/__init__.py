"""Metrics of predicted structures, and the evaluation of a checkpoint."""

from scalefold.evaluate.run import evaluate_checkpoint

__all__ = ["evaluate_checkpoint"]
