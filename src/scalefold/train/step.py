"""One training step: recycling, loss, gradients, their mean over ranks, update, averaging.

Nothing here waits for the device. A step whose loss or gradient is not finite, on any rank, changes
nothing on any: the update obeys a flag on the device, on which all ranks agree, and the caller
reads the flag with the other numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from scalefold.chem.residues import CA
from scalefold.config.schema import Config
from scalefold.features.contract import Features
from scalefold.loss.lddt import lddt
from scalefold.loss.total import total_loss
from scalefold.model.alphafold import AlphaFold
from scalefold.model.contract import Previous
from scalefold.parallel import Ranks
from scalefold.train import exchange
from scalefold.train.averaging import WeightAverage
from scalefold.train.clipping import ClippedMean
from scalefold.train.exchange import Notice
from scalefold.train.optimiser import Adam
from scalefold.train.parameters import FlatParameters


@dataclass(frozen=True, eq=False)
class StepNumbers:
    """What a step tells, still on the device.

    Attributes
    ----------
    names : tuple of str
        Columns of ``per_sample``: loss, norm of the sample's gradient, lDDT-Ca of the crop, and
        each unweighted loss term as ``loss/<name>``.
    per_sample : Tensor, shape (samples, columns), float32
        Of this rank.
    exchanged : Tensor, shape (`exchange.LENGTH`,), float32
        Sums over all ranks, see `scalefold.train.exchange`.
    num_ranks : int
    gradient_norm : Tensor, scalar, float32
        Before clipping, see `ClippedMean.finish`.
    finite : Tensor, scalar, bool
        Whether the step was applied.
    """

    names: tuple[str, ...]
    per_sample: Tensor
    exchanged: Tensor
    num_ranks: int
    gradient_norm: Tensor
    finite: Tensor


_GRADIENT_NORM = 1  # column; the loss is before it


class TrainingStep:
    """The step of a run; owns no state but scratch space. ``ranks`` have different samples."""

    def __init__(
        self,
        model: AlphaFold,
        parameters: FlatParameters,
        optimiser: Adam,
        average: WeightAverage,
        config: Config,
        ranks: Ranks,
    ) -> None:
        self._model, self._parameters, self._config = model, parameters, config
        self._optimiser, self._average, self._ranks = optimiser, average, ranks
        self._mean = ClippedMean(parameters, config.optimiser, ranks)

    def __call__(
        self, passes: list[Features], learning_rate: float, notice: Callable[[], Notice] = Notice
    ) -> StepNumbers:
        """Make one step.

        Parameters
        ----------
        passes : list of dict
            Features of each recycling pass, batched; gradients flow through the last one only.
            Samples are worked on one at a time: their gradients may have to be clipped so.
        learning_rate : float
        notice : callable
            Asked for what to tell the other ranks, as late as possible.
        """
        num_samples = passes[0]["aatype"].shape[0]
        self._mean.start()
        columns: dict[str, list[Tensor]] = {}
        for sample in range(num_samples):
            one = [{k: v[sample : sample + 1] for k, v in f.items()} for f in passes]
            for name, value in self._backward(one, last=sample == num_samples - 1).items():
                columns.setdefault(name, []).append(value.float())
        per_sample = torch.stack([torch.stack(values) for values in columns.values()], dim=1)
        return self._conclude(tuple(columns), per_sample, learning_rate, notice())

    def abstain(self, notice: Callable[[], Notice] = Notice) -> StepNumbers:
        """Take part in the other ranks' step without samples: nobody's step is applied."""
        self._mean.start()
        self._mean.send()
        nothing = self._parameters.master.new_empty(0, _GRADIENT_NORM + 1)
        return self._conclude((), nothing, 0.0, notice())

    def _conclude(
        self, names: tuple[str, ...], per_sample: Tensor, learning_rate: float, notice: Notice
    ) -> StepNumbers:
        """Exchange with the other ranks, and update if all is well on all of them."""
        sound = per_sample[:, : _GRADIENT_NORM + 1].isfinite().all(1)
        told = self._ranks.sum(exchange.pack(per_sample, (~sound).sum(), notice)).wait()
        num_samples = self._ranks.size * max(len(per_sample), 1)
        mean_norm = told[exchange.COLUMNS + _GRADIENT_NORM] / num_samples
        gradient, norm = self._mean.finish(num_samples, mean_norm)

        finite = (told[exchange.ABSENT] + told[exchange.NOT_FINITE] == 0) & norm.isfinite()
        rate = torch.full((), learning_rate, dtype=torch.float64, device=norm.device)
        self._optimiser.update(self._parameters.master, gradient, rate, finite)
        self._average.update(self._parameters.master, finite)
        self._parameters.publish()
        return StepNumbers(names, per_sample, told, self._ranks.size, norm, finite)

    def _backward(self, passes: list[Features], *, last: bool) -> dict[str, Tensor]:
        """Add one sample's gradient to the mean; returns its numbers."""
        model, features = self._model, passes[-1]
        batch, num_res = features["aatype"].shape
        like = model.input_embedder.linear_msa_m.weight
        previous = Previous.zeros(batch, num_res, self._config.model, like)
        with torch.no_grad():
            for recycled in passes[:-1]:
                previous = model.recycle(recycled, previous)
        outputs, _ = model(features, previous)
        loss, terms = total_loss(outputs, features, self._config.loss)

        norm = self._mean.differentiate(loss, last=last)
        score = lddt(
            outputs.positions[:, :, CA].detach().float(),
            features["all_atom_positions"][:, :, CA],
            features["all_atom_mask"][:, :, CA],
        )
        return {
            "loss": loss.detach(),
            "grad_norm": norm,
            "lddt_ca": score.mean(),
            **{f"loss/{name}": value for name, value in terms.items()},
        }
