"""One training step: recycling, loss, gradients, their mean over ranks, update, averaging.

Nothing here waits for the device. A step whose loss or gradient is not finite, on any rank, changes
nothing on any: the update obeys a flag on the device, on which all ranks agree, and the caller
reads the flag with the other numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from scalefold.checkpoint.state import TrainingState
from scalefold.features.contract import Features
from scalefold.optim.clipping import ClippedMean
from scalefold.parallel import Mesh
from scalefold.train.sample import SampleNumbers
from scalefold.train.step_exchange import ABSENT, COLUMNS, NOT_FINITE, Notice, pack
from scalefold.train.step_numbers import StepNumbers

_GRADIENT_NORM = 1
"""Column of a sample's numbers: after the loss, before what `SampleNumbers` has besides."""


class TrainingStep:
    """The step of a run; its only state is scratch space.

    Parameters
    ----------
    sample_gradient : callable
        A `SampleGradient`, or what stands for it.
    """

    def __init__(
        self,
        sample_gradient: Callable[[list[Features]], SampleNumbers],
        mean: ClippedMean,
        state: TrainingState,
        mesh: Mesh,
    ) -> None:
        self._sample_gradient, self._mean = sample_gradient, mean
        self._state, self._mesh = state, mesh
        self._held_until: torch.cuda.Event | None = None

    def __call__(
        self,
        samples: Sequence[list[Features]],
        learning_rate: float,
        notice: Callable[[], Notice] = Notice,
    ) -> StepNumbers:
        """Make one step.

        Parameters
        ----------
        samples : sequence of list of dict
            Of each sample the features of its recycling passes, B = 1; gradients flow through the
            last one only. Each sample's gradient may be clipped by itself.
        notice : callable
            Called as late as possible; returns what the other ranks must know.
        """
        self._mean.start()
        numbers, norms = [], []
        for number, passes in enumerate(samples):
            last = number == len(samples) - 1
            with self._mean.overlapped(last=last):
                numbers.append(self._sample_gradient(passes))
            norms.append(self._mean.add(last=last))
        loss, *others = numbers[0].names
        values = torch.stack([of_sample.values for of_sample in numbers])
        per_sample = torch.cat([values[:, :1], torch.stack(norms)[:, None], values[:, 1:]], dim=1)
        return self._conclude((loss, "grad_norm", *others), per_sample, learning_rate, notice())

    def abstain(self, notice: Callable[[], Notice] = Notice) -> StepNumbers:
        """Take part in the other ranks' step without samples: nobody's step is applied."""
        self._mean.start()
        self._mean.send()
        nothing = self._state.parameters.master.new_empty(0, _GRADIENT_NORM + 1)
        return self._conclude((), nothing, 0.0, notice())

    def hold_update(self, until: torch.cuda.Event) -> None:
        """Have the next update wait, on the device, for work that reads what it changes."""
        self._held_until = until

    @torch.no_grad()
    def _conclude(
        self, names: tuple[str, ...], per_sample: Tensor, learning_rate: float, notice: Notice
    ) -> StepNumbers:
        """Exchange with the other ranks, and update if the step is finite on all of them."""
        sound = per_sample[:, : _GRADIENT_NORM + 1].isfinite().all(1)
        # Ranks that share a sample repeat its numbers, so the mean is over all ranks.
        world = self._mesh.world
        exchanged = world.all_reduce(pack(per_sample, (~sound).sum(), notice)).wait()
        num_samples = max(len(per_sample), 1)
        mean_norm = exchanged[COLUMNS + _GRADIENT_NORM] / (world.size * num_samples)
        sound = exchanged[ABSENT] + exchanged[NOT_FINITE] == 0
        rate = torch.full((), learning_rate, dtype=torch.float64, device=exchanged.device)
        if self._held_until is not None:
            self._held_until.wait()
            self._held_until = None
        gradient, norm = self._mean.finish(num_samples * self._mesh.data.size, mean_norm)
        finite = sound & norm.isfinite()
        self._update(gradient, rate, finite)
        return StepNumbers(names, per_sample, exchanged, world.size, norm, finite)

    def _update(self, gradient: Tensor, rate: Tensor, finite: Tensor) -> None:
        """Update weights, their average and the working copy, unless the step is not finite.

        Adam and averaging work element by element, and all ranks have the same gradient. So each
        rank that owns a part of their state updates this part of the weights, and passes it on.
        """
        parameters, owners = self._state.parameters, self._state.owners
        weights = owners.part(parameters.master)
        self._state.optimiser.update(weights, owners.part(gradient), rate, finite)
        self._state.average.update(weights, finite)
        owners.all_gather_parts(parameters.master)
        parameters.update_working_copy()
