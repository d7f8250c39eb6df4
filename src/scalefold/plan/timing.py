"""The time of a step on a given number of GPUs.

A pass of a sample takes ``fixed + shared / d`` on the ``d`` GPUs that share it, and its exchanges.
Both parts are fitted to recorded steps. Exchanges are counted on the code, and timed by latency and
bandwidth: of push, or of each collective. The samples that a group of GPUs has in a step follow
each other. Then all GPUs sum up their gradients, and wait for the slowest loader.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np

from scalefold.config.schema import Config
from scalefold.engine.activation_checkpointing import ActivationCheckpointing
from scalefold.engine.memory import num_parameters
from scalefold.errors import InputError
from scalefold.parallel.buckets import BUCKET_ELEMENTS
from scalefold.plan.calibration import SIZES, Calibration, Step, fitted
from scalefold.plan.exchanges import Exchanges, count_exchanges

logger = logging.getLogger(__name__)

_GRADIENT_BYTES: Final = 4
_COUNTED_DEGREE: Final = 8


@dataclass(frozen=True)
class Cluster:
    """GPUs of one kind, and what is assumed of them.

    ``kind`` is part of their name. A node has ``node_gpus``, and ``node_bandwidth`` bytes a second
    in and out. Memory, power and price of an hour are those of one GPU.
    """

    kind: str
    node_gpus: int
    node_bandwidth: float
    memory_gib: float
    watts: float
    price: float


class Timing:
    """Times of one configuration's steps on one kind of GPU.

    Raises
    ------
    InputError
        If no step of such samples on one such GPU was recorded.
    """

    def __init__(self, config: Config, known: Calibration, cluster: Cluster) -> None:
        self._config, self._known, self._cluster = config, known, cluster
        self._sizes = tuple(getattr(config.features, name) for name in SIZES)
        by_collectives = config.parallel.exchange == "collectives"
        self._exchange = "collectives" if by_collectives else "push"  # a node has NVLink
        steps = known.of_kind(cluster.kind)
        self._own = [step for step in steps if step.sizes == self._sizes]
        self._others = [step for step in steps if step.sizes != self._sizes]
        if config.model != type(config.model)():
            raise InputError(
                f"preset {config.preset}: no step of this model was measured, only of the whole "
                "AlphaFold2 model, as presets initial_training and mlperf have it. To time this "
                "one, train some steps: the log shows samples a second"
            )
        if not self.recorded("none", 1):
            kinds = ", ".join(dict.fromkeys(step.device for step in known.steps))
            sizes = ", ".join(f"{key} {size}" for key, size in zip(SIZES, self._sizes))
            raise InputError(
                f"preset {config.preset}: no step with {sizes} and recomputation none was measured "
                f"on one GPU of --kind {cluster.kind} (records are of {kinds}): measure it with "
                "scalefold bench scaling, and give its file with --record"
            )
        self._parameters = num_parameters(config)

    def recorded(self, mode: ActivationCheckpointing, dap: int) -> Step | None:
        """The step of such a sample that was recorded on this kind of GPU."""
        steps = self._exchanging_alike(self._own)
        return next((s for s in steps if (s.recomputation, s.dap) == (mode, dap)), None)

    def recorded_gib(self, mode: ActivationCheckpointing, dap: int) -> float | None:
        """The most memory of each GPU in such a step, which other kinds of GPUs need as well."""
        wanted = (self._sizes, mode, dap)
        steps = self._exchanging_alike([*self._own, *self._known.steps])
        alike = (s.gib for s in steps if (s.sizes, s.recomputation, s.dap) == wanted)
        return next(filter(None, alike), None)

    def step(self, data: int, dap: int, mode: ActivationCheckpointing) -> float:
        """Seconds of a step: all samples, divided among ``data`` groups of ``dap`` GPUs."""
        samples = self._config.training.global_batch_size // data
        together = self.gradient_sum(data * dap) if data > 1 else 0.0
        if self._config.parallel.shard_optimiser:
            together += self.gradient_sum(data * dap) / 2  # weights are gathered, not summed
        return samples * self.sample(dap, mode) + together + self._known.wait_of_slowest(data)

    def sample(self, dap: int, mode: ActivationCheckpointing) -> float:
        """Mean seconds of a sample on the GPUs that share it: recorded, or else computed."""
        if step := self.recorded(mode, dap):
            last, further = step.passes
        else:
            exchanged = self._exchanged(self._sizes, mode, dap)
            last = self._computed(0, dap) * self._slower(mode) + exchanged[0]
            further = self._computed(1, dap) + exchanged[1]
        return last + self._config.training.max_recycling / 2 * further

    def gradient_sum(self, gpus: int) -> float:
        """Seconds of the sum of gradients: inside nodes, and between them."""
        if gpus == 1:
            return 0.0
        most = self._cluster.node_gpus
        inside, nodes = min(gpus, most), math.ceil(gpus / most)
        known, size = self._known.all_reduce, _GRADIENT_BYTES * self._parameters
        hops = 2 * math.ceil(math.log2(nodes))
        latency = known["latency_seconds"] + hops * known["network_latency_seconds"]
        return (
            math.ceil(self._parameters / BUCKET_ELEMENTS) * latency
            + 2 * size * (inside - 1) / inside / known["bytes_per_second"]
            + 2 * size * (nodes - 1) / nodes / self._cluster.node_bandwidth
        )

    def _computed(self, number: int, dap: int) -> float:
        """Seconds of a kind of pass without exchanges and recomputation.

        Of one GPU it is recorded. Its shared part is that of these samples on this GPU, if several
        degrees were recorded, else that of others. It is larger in larger samples.
        """
        alike: dict[tuple[object, ...], dict[int, float]] = {}
        for step in self._exchanging_alike([*self._own, *self._others, *self._known.steps]):
            if step.recomputation == "none":
                exchanged = self._exchanged(step.sizes, "none", step.dap)[number]
                seconds = alike.setdefault((step.device, step.sizes), {})
                seconds.setdefault(step.dap, step.passes[number] - exchanged)
        degrees = next(seconds for seconds in alike.values() if len(seconds) > 1)
        parts = np.array([1 / degree for degree in degrees])
        fixed, shared = fitted(parts, np.array(list(degrees.values())))
        alone = next(s for s in self._own if (s.recomputation, s.dap) == ("none", 1))
        return alone.passes[number] * (fixed + shared / dap) / (fixed + shared)

    def _exchanging_alike(self, steps: Iterable[Step]) -> Iterator[Step]:
        return (step for step in steps if step.exchange in (None, self._exchange))

    def _slower(self, mode: ActivationCheckpointing) -> float:
        """How much longer recomputation makes the last pass: of these samples, or of others."""
        alike: dict[tuple[object, ...], dict[str, float]] = {}
        for step in (*self._own, *self._others, *self._known.steps):
            if step.dap == 1:
                seconds = alike.setdefault((step.device, step.sizes), {})
                seconds.setdefault(step.recomputation, step.passes[0])
        for seconds in alike.values():
            if {mode, "none"} <= seconds.keys():
                return seconds[mode] / seconds["none"]
        return self._slower("full")  # as offload, whose copies are taken to hide

    @cache  # noqa: B019 - as long as the plan
    def _exchanged(
        self, sizes: tuple[int, ...], mode: ActivationCheckpointing, dap: int
    ) -> tuple[float, float]:
        """Seconds of the exchanges of the last pass, and of one before it."""
        if dap == 1:
            return 0.0, 0.0
        last, further = (self._seconds(part, dap) for part in self._counted(sizes, mode))
        return last + self.gradient_sum(dap), further

    def _seconds(self, exchanges: Exchanges, dap: int) -> float:
        known = self._known
        pushed = self._exchange == "push"
        seconds = known.push_seconds if pushed else known.collective_seconds
        return sum(n * seconds(what, size, dap) for (what, size), n in exchanges.items())

    @cache  # noqa: B019 - as long as the plan
    def _counted(
        self, sizes: tuple[int, ...], mode: ActivationCheckpointing
    ) -> tuple[Exchanges, Exchanges]:
        logger.info("counting the exchanges of DAP with recomputation %s, crop %d", mode, sizes[0])
        features = self._config.features.model_copy(update=dict(zip(SIZES, sizes)))
        config = self._config.model_copy(update={"features": features})
        return count_exchanges(config, mode, _COUNTED_DEGREE)
