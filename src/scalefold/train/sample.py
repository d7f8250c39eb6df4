"""What a step does for one sample: its passes, loss, gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from scalefold.chem.residues import CA
from scalefold.config.schema import Config, LossConfig
from scalefold.features.contract import Features
from scalefold.loss.lddt import lddt
from scalefold.loss.total import total_loss
from scalefold.model.alphafold import AlphaFold
from scalefold.model.contract import Outputs, Previous, Templates
from scalefold.model.passes import SamplePasses


@dataclass(frozen=True, eq=False)
class SampleNumbers:
    """What is told of a sample: the loss first, then lDDT-Ca and each unweighted loss term.

    Attributes
    ----------
    names : tuple of str
    values : Tensor, shape (len(names),), float32
    """

    names: tuple[str, ...]
    values: Tensor


def judge(
    outputs: Outputs, features: Features, config: LossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of a sample, and what else is told of it: lDDT-Ca, then each unweighted loss term."""
    loss, terms = total_loss(outputs, features, config)
    score = lddt(
        outputs.positions[:, :, CA].detach().float(),
        features["all_atom_positions"][:, :, CA],
        features["all_atom_mask"][:, :, CA],
    )
    named = {f"loss/{name}": value.float() for name, value in terms.items()}
    return loss, {"lddt_ca": score.mean(), **named}


Judge = Callable[[Outputs, Features, LossConfig], tuple[Tensor, dict[str, Tensor]]]


class SampleGradient(SamplePasses[SampleNumbers]):
    """The gradient of one sample's loss, left in the parameters' gradient buffers.

    It flows through the last pass and the templates, whose dropout is drawn once for all passes.

    Parameters
    ----------
    model : AlphaFold
    differentiate : callable
        Leaves the gradient of a loss in the model's gradient buffers, see `FlatParameters`.
    config : Config
        ``model`` and ``loss`` are used.
    judge : callable
        `judge`, or what it was compiled to.
    """

    def __init__(
        self,
        model: AlphaFold,
        differentiate: Callable[[Tensor], None],
        config: Config,
        judge: Judge = judge,
    ) -> None:
        super().__init__(model, config.model)
        self._differentiate, self._loss, self._judge = differentiate, config.loss, judge

    def last(
        self, features: Features, previous: Previous, templates: Templates | None
    ) -> SampleNumbers:
        """Make the last pass, forward and backward."""
        outputs, _ = self._model(features, previous, templates)
        loss, numbers = self._judge(outputs, features, self._loss)
        self._differentiate(loss)
        values = torch.stack([loss.detach().float(), *numbers.values()])
        return SampleNumbers(("loss", *numbers), values)
