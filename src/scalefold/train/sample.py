"""The work of a step for one sample: passes, loss and gradient; on a GPU as CUDA graphs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scalefold.chem.residues import CA
from scalefold.config.schema import Config, LossConfig
from scalefold.engine.cuda_graphs import CapturedPasses
from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.features.padding import pad_to_degree
from scalefold.loss.lddt import lddt
from scalefold.loss.total import total_loss
from scalefold.model.alphafold import AlphaFold
from scalefold.model.contract import Outputs, Previous, Templates
from scalefold.model.passes import SamplePasses

logger = logging.getLogger(__name__)

_Shapes = tuple[tuple[str, torch.Size], ...]


@dataclass(frozen=True, eq=False)
class SampleNumbers:
    """The numbers of a sample: the loss first, then lDDT-Ca and each unweighted loss term.

    Attributes
    ----------
    values : Tensor, shape (len(names),), float32
    """

    names: tuple[str, ...]
    values: Tensor


def loss_and_scores(
    outputs: Outputs, features: Features, config: LossConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of a sample, and its other numbers: lDDT-Ca, then each unweighted loss term."""
    loss, terms = total_loss(outputs, features, config)
    score = lddt(
        outputs.positions[:, :, CA].detach().float(),
        features["all_atom_positions"][:, :, CA],
        features["all_atom_mask"][:, :, CA],
    )
    named = {f"loss/{name}": value.float() for name, value in terms.items()}
    return loss, {"lddt_ca": score.mean(), **named}


Loss = Callable[[Outputs, Features, LossConfig], tuple[Tensor, dict[str, Tensor]]]


class SampleGradient(SamplePasses[SampleNumbers]):
    """The gradient of one sample's loss, left in the parameters' gradient buffers.

    It flows through the last pass and the templates, whose dropout is drawn once for all passes.

    Parameters
    ----------
    backward : callable
        Leaves the gradient of a loss in the model's gradient buffers, see `FlatParameters`.
    config : Config
        ``model``, ``loss`` and ``training.trainable`` are used.
    loss : callable
        `loss_and_scores`, or what it was compiled to.
    """

    def __init__(
        self,
        model: AlphaFold,
        backward: Callable[[Tensor], None],
        config: Config,
        loss: Loss = loss_and_scores,
    ) -> None:
        super().__init__(model, config.model)
        self._backward = backward
        self._loss, self._loss_config = loss, config.loss
        self._trainable = config.training.trainable

    def last(
        self, features: Features, previous: Previous, templates: Templates | None
    ) -> SampleNumbers:
        """Make the last pass, forward and backward.

        Raises
        ------
        InputError
            The loss depends on nothing that is trained.
        """
        outputs, _ = self._model(features, previous, templates)
        loss, numbers = self._loss(outputs, features, self._loss_config)
        if not loss.requires_grad:
            modules = ", ".join(self._trainable or ())
            terms = ", ".join(name.removeprefix("loss/") for name in numbers if "loss/" in name)
            raise InputError(
                f"training.trainable: the loss does not depend on {modules}; its terms are "
                f"{terms}. Give the term of these modules a weight in section loss, or train others"
            )
        self._backward(loss)
        values = torch.stack([loss.detach().float(), *numbers.values()])
        return SampleNumbers(("loss", *numbers), values)


Gradient = Callable[[list[Features]], SampleNumbers]


def padded_samples(gradient: Gradient, degree: int, template_rows: int) -> Gradient:
    """Return the function of a sample's passes with padding before it, see `pad_to_degree`."""

    def padded(passes: list[Features]) -> SampleNumbers:
        return gradient([pad_to_degree(features, degree, template_rows) for features in passes])

    return padded if degree > 1 else gradient


class GraphedSampleGradient:
    """A `SampleGradient` that is captured and replayed; the same numbers, to the last bit.

    Parameters
    ----------
    gradient : SampleGradient
        On a CUDA device. For a given shape it must always launch the same kernels.
    """

    def __init__(self, gradient: SampleGradient) -> None:
        self._gradient = gradient
        self._captured: dict[_Shapes, CapturedPasses[SampleNumbers]] = {}
        # One memory pool: graphs are replayed one after the other, so they may share scratch.
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, passes: Sequence[Features]) -> SampleNumbers:
        """Make all passes of a sample; a new set of shapes is captured first, and logged."""
        shapes = tuple((name, tensor.shape) for name, tensor in passes[-1].items())
        if shapes not in self._captured:
            started = time.perf_counter()
            self._captured[shapes] = CapturedPasses(self._gradient, passes[-1], self._pool)
            logger.info(
                "captured CUDA graphs for %s in %.1f s",
                _sizes(passes[-1]),
                time.perf_counter() - started,
            )
        numbers = self._captured[shapes](passes)
        # The next replay overwrites the graph's own.
        return SampleNumbers(numbers.names, numbers.values.clone())


def _sizes(features: Features) -> str:
    batch, num_res = features["aatype"].shape
    rows, extra = features["msa_feat"].shape[1], features["extra_msa"].shape[1]
    return f"{batch} x {num_res} residues, {rows} MSA and {extra} extra rows"
