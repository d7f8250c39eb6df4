"""How the processes of a training divide the work: a mesh of (data, dap)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scalefold.parallel.ranks import ALONE, Ranks


@dataclass(frozen=True)
class Mesh:
    """The groups that this process is in.

    Attributes
    ----------
    world : Ranks
        All processes.
    data : Ranks
        Those that hold the same part of different samples: gradients are averaged over them.
    dap : Ranks
        Those that hold different parts of the same samples (Dynamic Axial Parallelism).
    """

    world: Ranks
    data: Ranks
    dap: Ranks

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.world.rank == 0


SINGLE: Final = Mesh(ALONE, ALONE, ALONE)
"""One process."""
