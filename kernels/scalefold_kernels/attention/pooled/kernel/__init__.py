"""Kernels of global attention, by direction."""
