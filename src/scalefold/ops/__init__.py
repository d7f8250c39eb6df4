"""Fusible operations of the model: torch references, and the record that binds implementations."""

from scalefold.ops.kernels import select_ops
from scalefold.ops.registry import TORCH, Ops

__all__ = ["TORCH", "Ops", "select_ops"]
