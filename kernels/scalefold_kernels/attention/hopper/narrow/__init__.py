"""Attention with heads of 8 channels on Hopper GPUs."""
