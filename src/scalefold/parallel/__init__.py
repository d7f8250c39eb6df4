"""Parallelism that the model can see: one interface, `Axis`; the identity on one process."""

from scalefold.parallel.axis import Axis, IdentityAxis, Pending, Ready

__all__ = ["Axis", "IdentityAxis", "Pending", "Ready"]
