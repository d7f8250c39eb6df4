"""One training step: recycling, loss, gradients, clipping, update, averaging.

Nothing here waits for the device. A step whose loss or gradient is not finite changes nothing:
the update obeys a flag on the device, and the caller reads the flag with the other numbers.
"""

from __future__ import annotations

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
from scalefold.train.averaging import WeightAverage
from scalefold.train.clipping import ClippedMean
from scalefold.train.optimiser import Adam
from scalefold.train.parameters import FlatParameters


@dataclass(frozen=True, eq=False)
class StepNumbers:
    """What a step tells, still on the device.

    Attributes
    ----------
    names : tuple of str
        Columns of ``per_sample``: loss, lDDT-Ca of the crop, norm of the sample's gradient, and
        each unweighted loss term as ``loss/<name>``.
    per_sample : Tensor, shape (samples, columns), float32
    gradient_norm : Tensor, scalar, float32
        Before clipping, see `ClippedMean.finish`.
    finite : Tensor, scalar, bool
        Whether the step was applied.
    """

    names: tuple[str, ...]
    per_sample: Tensor
    gradient_norm: Tensor
    finite: Tensor


class TrainingStep:
    """The step of a run; owns no state but scratch space."""

    def __init__(
        self,
        model: AlphaFold,
        parameters: FlatParameters,
        optimiser: Adam,
        average: WeightAverage,
        config: Config,
    ) -> None:
        self._model, self._parameters, self._config = model, parameters, config
        self._optimiser, self._average = optimiser, average
        self._mean = ClippedMean(
            parameters.master, config.optimiser.clip_norm, config.optimiser.clip_scope
        )

    def __call__(self, passes: list[Features], learning_rate: float) -> StepNumbers:
        """Make one step.

        Parameters
        ----------
        passes : list of dict
            Features of each recycling pass, batched; gradients flow through the last one only.
            Samples are worked on one at a time: their gradients may have to be clipped so.
        learning_rate : float
        """
        num_samples = passes[0]["aatype"].shape[0]
        self._mean.start()
        columns: dict[str, list[Tensor]] = {}
        for sample in range(num_samples):
            one = [{k: v[sample : sample + 1] for k, v in f.items()} for f in passes]
            for name, value in self._backward(one).items():
                columns.setdefault(name, []).append(value.float())
        per_sample = torch.stack([torch.stack(values) for values in columns.values()], dim=1)
        gradient, norm = self._mean.finish()

        finite = norm.isfinite() & per_sample[:, 0].isfinite().all()
        rate = torch.full((), learning_rate, dtype=torch.float64, device=norm.device)
        self._optimiser.update(self._parameters.master, gradient, rate, finite)
        self._average.update(self._parameters.master, finite)
        self._parameters.publish()
        return StepNumbers(tuple(columns), per_sample, norm, finite)

    def _backward(self, passes: list[Features]) -> dict[str, Tensor]:
        """Add one sample's gradient to the mean; returns its numbers, the loss first."""
        model, features = self._model, passes[-1]
        batch, num_res = features["aatype"].shape
        like = model.input_embedder.linear_msa_m.weight
        previous = Previous.zeros(batch, num_res, self._config.model, like)
        with torch.no_grad():
            for recycled in passes[:-1]:
                previous = model.recycle(recycled, previous)
        outputs, _ = model(features, previous)
        loss, terms = total_loss(outputs, features, self._config.loss)

        self._parameters.zero_gradient()
        loss.backward()
        self._parameters.collect_gradient()
        norm = self._mean.add(self._parameters.gradient)
        score = lddt(
            outputs.positions[:, :, CA].detach().float(),
            features["all_atom_positions"][:, :, CA],
            features["all_atom_mask"][:, :, CA],
        )
        return {
            "loss": loss.detach(),
            "lddt_ca": score.mean(),
            "grad_norm": norm,
            **{f"loss/{name}": value for name, value in terms.items()},
        }
