"""Ways to divide training among GPUs, with the time, memory and cost of each."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

from scalefold.config.schema import Config
from scalefold.engine.activation_checkpointing import ActivationCheckpointing
from scalefold.engine.memory import MODES, state_bytes, with_reserve
from scalefold.engine.pass_memory import pass_memory
from scalefold.errors import InputError, counted
from scalefold.ops import TORCH, Ops
from scalefold.ops.kernels import kernel_ops, triton_version
from scalefold.plan.calibration import Calibration
from scalefold.plan.timing import Cluster, Timing

logger = logging.getLogger(__name__)

DEGREES: Final = (1, 2, 4, 8)


@dataclass(frozen=True)
class Row:
    """One way: ``data`` groups of ``dap`` GPUs, each group with ``samples`` samples of a step.

    Of the ``gpus`` that are there, as many are ``used`` as train. ``memory_gib`` is the most that
    each needs, without a reserve. ``efficiency`` is the speed of each, against one that trains
    alone. ``extrapolated`` is what no record covers.
    """

    gpus: int
    used: int
    data: int
    dap: int
    samples: int
    recomputation: str
    memory_gib: float | None
    step_seconds: float
    efficiency: float
    days: float
    gpu_hours: float
    kilowatt_hours: float
    cost: float
    extrapolated: tuple[str, ...]


class Planner:
    """Ways to train one configuration on one kind of GPU; see `Timing` for its errors."""

    def __init__(self, config: Config, cluster: Cluster, known: Calibration) -> None:
        self._config, self._cluster, self._published = config, cluster, known.published
        self._timing = Timing(config, known, cluster)

    def rows(self, gpus: int) -> Iterator[Row]:
        """All ways that fit into the memory, by degree.

        There are as many groups as the GPUs allow and the samples of a step can be divided among.
        """
        batch = self._config.training.global_batch_size
        for dap in DEGREES:
            if dap > gpus or self._cluster.node_gpus % dap:
                continue
            data = max(n for n in range(1, min(batch, gpus // dap) + 1) if batch % n == 0)
            owners = data * dap if self._config.parallel.shard_optimiser else 1
            if not (mode := self._fitting(dap, owners)):
                continue
            beyond = {
                "DAP": dap > 1 and not self._timing.recorded("none", dap),
                "recomputation": not self._timing.recorded(mode, 1),
                "network": data * dap > self._cluster.node_gpus,
            }
            marks = tuple(name for name, is_so in beyond.items() if is_so)
            seconds, gib = self._timing.step(data, dap, mode), self._peak(mode, dap, owners) / 2**30
            yield self._row(gpus, data, dap, mode, gib, seconds, marks)

    def fastest(self, gpus: int) -> Row:
        """The way with the shortest step.

        Raises
        ------
        InputError
            If none fits into the memory.
        """
        rows = list(self.rows(gpus))
        if not rows:
            raise InputError(
                f"a sample does not fit into {counted(gpus, 'GPU')} of "
                f"{self._cluster.memory_gib:.0f} GiB: plan for more or larger ones, "
                "or make samples smaller"
            )
        return min(rows, key=lambda row: row.step_seconds)

    def published(self) -> Row:
        """The paper's run, as if it made this training run's steps."""
        run = self._published
        layout = (run["gpus"], run["data"], run["dap"])
        return self._row(*layout, "none", None, run["step_seconds"], ("published",))

    def _row(
        self, gpus: int, data: int, dap: int, mode: str, memory_gib: float | None,
        seconds: float, marks: tuple[str, ...],
    ) -> Row:  # fmt: skip
        training, used = self._config.training, data * dap
        alone = training.global_batch_size * self._timing.sample(1, self._fitting(1) or "full")
        hours = training.steps * seconds / 3600
        return Row(
            gpus, used, data, dap, training.global_batch_size // data, mode, memory_gib,
            step_seconds=seconds, efficiency=alone / (used * seconds), days=hours / 24,
            gpu_hours=hours * used, kilowatt_hours=hours * used * self._cluster.watts / 1000,
            cost=hours * used * self._cluster.price, extrapolated=marks,
        )  # fmt: skip

    def _fitting(self, dap: int, owners: int = 1) -> ActivationCheckpointing | None:
        """``training.recomputation``, if it fits; auto is the least that fits with its reserve."""
        setting, most = self._config.training.recomputation, int(self._cluster.memory_gib * 2**30)
        if setting != "auto":
            return setting if self._peak(setting, dap, owners) <= most else None
        fits = (m for m in MODES if with_reserve(self._peak(m, dap, owners)) <= most)
        return next(fits, None)

    @cache  # noqa: B019 - as long as the plan
    def _peak(self, mode: ActivationCheckpointing, dap: int, owners: int) -> int:
        """The most bytes of memory in each GPU: recorded, or else counted."""
        if owners == 1 and (gib := self._timing.recorded_gib(mode, dap)):
            return int(gib * 2**30)
        return self._pass(mode, dap) + state_bytes(self._config, mode, owners)

    @cache  # noqa: B019 - as long as the plan
    def _pass(self, mode: ActivationCheckpointing, dap: int) -> int:
        """Bytes of a pass, which do not depend on the number of GPUs."""
        ops = self._ops
        logger.info("counting the memory of DAP %d with recomputation %s", dap, mode)
        return pass_memory(self._config, ops, mode, dap).peak

    @cached_property
    def _ops(self) -> Ops:
        """Those whose memory is counted."""
        if triton_version():
            return kernel_ops()
        logger.warning(
            "memory without a record is counted for plain PyTorch, which needs more than the GPU "
            "kernels, since Triton is not installed here. To count the kernels' memory: "
            "pip install triton"
        )
        return TORCH
