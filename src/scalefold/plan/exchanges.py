"""What GPUs that share a sample exchange: counted on the code, which runs on fake tensors."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from scalefold.config.schema import Config
from scalefold.engine.activation_checkpointing import ActivationCheckpointing
from scalefold.engine.pass_memory import fake_training, for_counting
from scalefold.loss.total import total_loss
from scalefold.ops import TORCH
from scalefold.parallel.axis import Pending, Ready
from scalefold.parallel.collectives import Collectives
from scalefold.parallel.group_axis import GroupAxis

Exchanges = Counter[tuple[str, int]]
"""How many there are of each collective and size. The size is that of the whole tensor, of all
GPUs together, in bytes: so it does not depend on their number, but for padding."""


@dataclass
class CountingRanks:
    """Ranks of a sample of which only the first is there, and which note what they would send."""

    size: int
    rank: int = 0
    sent: Exchanges = field(default_factory=Counter)

    def all_to_all(self, parts: Tensor) -> Pending:
        """See `MeshRanks`."""
        return self._noted("all_to_all", parts.nbytes * self.size, torch.empty_like(parts))

    def all_gather(self, x: Tensor) -> Pending:
        """See `MeshRanks`."""
        return self._noted("all_gather", x.nbytes * self.size, x.new_empty(self.size, *x.shape))

    def reduce_scatter(self, parts: Tensor) -> Pending:
        """See `MeshRanks`."""
        return self._noted("reduce_scatter", parts.nbytes, parts.new_empty(parts.shape[1:]))

    def _noted(self, collective: str, size: int, result: Tensor) -> Pending:
        self.sent[collective, size] += 1
        return Ready(result)


def count_exchanges(
    config: Config, checkpointing: ActivationCheckpointing, degree: int
) -> tuple[Exchanges, Exchanges]:
    """Count the exchanges of a sample on each of the ``degree`` GPUs that share it.

    All blocks of the Evoformer exchange the same, so two are counted and the rest follows.

    Returns
    -------
    last, further : Exchanges
        Of the templates' embedding and the pass with its backward, and of each pass before it.
    """
    pairs = zip(*(_counted(for_counting(config, n), checkpointing, degree) for n in (1, 2)))
    others = config.model.evoformer.num_blocks - 2
    last, further = (
        Counter({key: n + others * (n - one[key]) for key, n in two.items()}) for one, two in pairs
    )
    return last, further


def _counted(
    config: Config, checkpointing: ActivationCheckpointing, degree: int
) -> tuple[Exchanges, Exchanges]:
    ranks = CountingRanks(degree)
    # Kernels and plain PyTorch exchange the same tensors.
    with fake_training(config, TORCH, checkpointing, GroupAxis(Collectives(ranks))) as (
        model,
        given,
        previous,
    ):
        templates = model.embed_templates(given)
        embedding = ranks.sent.copy()
        outputs, _ = model(given, previous, templates)
        further = ranks.sent - embedding  # those of a pass without gradients
        loss, _ = total_loss(outputs, given, config.loss)
        torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return ranks.sent, further
