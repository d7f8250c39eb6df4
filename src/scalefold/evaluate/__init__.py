"""Metrics of predicted structures, and the evaluation of weights."""
