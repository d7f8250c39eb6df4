"""Fusible operations of the model: torch references, and the record that binds implementations."""

from scalefold.ops.registry import TORCH, Ops
from scalefold.ops.triton import select_ops

__all__ = ["TORCH", "Ops", "select_ops"]
