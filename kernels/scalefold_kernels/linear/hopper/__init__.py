"""Kernels for Hopper GPUs (H100, H200)."""
