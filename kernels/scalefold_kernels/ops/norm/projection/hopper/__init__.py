"""Kernels in Gluon for Hopper GPUs (H100, H200)."""
