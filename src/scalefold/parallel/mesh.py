"""How the processes of a training run divide the work: a mesh of (data, dap)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scalefold.parallel.axis import Axis, IdentityAxis
from scalefold.parallel.ranks import ALONE, Ranks


@dataclass(frozen=True)
class Mesh:
    """The groups that this process is in.

    Attributes
    ----------
    data : Ranks
        Those that hold the same part of different samples: gradients are averaged over them.
    dap : Ranks
        Those that hold different parts of the same samples (Dynamic Axial Parallelism).
    axis : Axis
        What the model sees of ``dap``.
    """

    world: Ranks
    data: Ranks
    dap: Ranks
    axis: Axis

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.world.rank == 0

    def set_timeout(self, seconds: float) -> None:
        """Set after how long a silent process counts as dead."""
        for ranks in (self.world, self.data, self.dap):
            ranks.set_timeout(seconds)


SINGLE: Final = Mesh(ALONE, ALONE, ALONE, IdentityAxis())
"""One process."""
