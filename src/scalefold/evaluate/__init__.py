"""Metrics of predicted structures, and the evaluation of weights."""

from scalefold.evaluate.run import evaluate_weights

__all__ = ["evaluate_weights"]
