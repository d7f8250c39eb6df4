"""The gradient of a sample that several ranks share, each with a part of it.

Parameters that act on shards have partial gradients on each rank: their sum is the gradient. Those
of replicated modules have the whole gradient on each rank, and the first rank's counts. The sum is
in float32, and the same on all ranks to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from scalefold.optim.parameters import FlatParameters
from scalefold.parallel import Ranks


class SharedGradient:
    """Completes the gradient of a sample.

    Parameters
    ----------
    replicated : iterable of Module
        What all ranks compute alike.
    """

    def __init__(
        self, parameters: FlatParameters, replicated: Iterable[nn.Module], ranks: Ranks
    ) -> None:
        self._parameters, self._ranks = parameters, ranks
        self._others = parameters.spans(replicated) if ranks.rank else []

    def complete(self) -> None:
        """Complete `FlatParameters.gradient` after backward, on all ranks of the sample."""
        self._parameters.collect_gradient()
        for span in self._others:
            self._parameters.gradient[span].zero_()
        self._ranks.all_reduce(self._parameters.gradient).wait()
