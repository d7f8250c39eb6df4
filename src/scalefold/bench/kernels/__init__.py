"""Benchmarks of the fused operations: one file an op, each with ``cases()``."""
