"""Parallelism: the `Axis` that the model sees, and the ranks that training is divided among."""

from scalefold.parallel.axis import Axis, IdentityAxis, Pending, Ready
from scalefold.parallel.mesh import SINGLE, Mesh
from scalefold.parallel.ranks import ALONE, Ranks

__all__ = ["ALONE", "SINGLE", "Axis", "IdentityAxis", "Mesh", "Pending", "Ranks", "Ready"]
