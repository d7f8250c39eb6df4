"""What a plan rests on: recorded steps and times of collectives, see ``calibration.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import TypeAdapter

from scalefold.errors import InputError

SIZES: Final = ("crop_size", "max_msa_clusters", "max_extra_msa", "max_templates")


@dataclass(frozen=True)
class Step:
    """A recorded step of one sample.

    Attributes
    ----------
    sizes : tuple of int
        `SIZES` of section ``features``.
    dap : int
        GPUs that share the sample.
    seconds : list of float
        By recycling count, from 0.
    gib : float or None
        The most memory that a process had, if its record says so and the code still takes as much.
    exchange : str or None
        How they exchanged, as in ``parallel.exchange``; None of one GPU.
    """

    device: str
    sizes: tuple[int, ...]
    recomputation: str
    dap: int
    seconds: list[float]
    source: str
    exchange: str | None = None
    gib: float | None = None

    @property
    def passes(self) -> tuple[float, float]:
        """Seconds of the last pass with all that comes once a step, and of each pass before it."""
        further, last = np.polyfit(range(len(self.seconds)), self.seconds, 1)
        return float(last), float(further)


@dataclass(frozen=True)
class Calibration:
    """The content of ``calibration.json``."""

    steps: list[Step]
    gpu_gib: dict[str, float]
    fabrics: dict[str, float]
    collectives: dict[str, Any]
    push: dict[str, Any]
    all_reduce: dict[str, Any]
    loader_waits: dict[str, Any]
    published: dict[str, Any]

    @staticmethod
    def read(records: list[Path]) -> Calibration:
        """Read the package's; steps in files of ``bench scaling`` go before its own."""
        text = resources.files("scalefold.plan").joinpath("calibration.json").read_text("utf-8")
        own = TypeAdapter(Calibration).validate_json(text)
        return replace(own, steps=[*(s for file in records for s in read_steps(file)), *own.steps])

    def of_kind(self, kind: str) -> list[Step]:
        """The steps on GPUs of a name; the first of several alike."""
        found: dict[Any, Step] = {}
        for step in self.steps:
            if kind.lower() in step.device.lower():
                key = (step.sizes, step.recomputation, step.dap, step.exchange)
                found.setdefault(key, step)
        return list(found.values())

    def push_seconds(self, collective: str, size: int, ranks: int) -> float:
        """Flags, which all ranks raise at once, and transfer of what comes from the others."""
        arriving = size * (ranks - 1) / ranks
        if collective == "all_to_all":
            arriving /= ranks
        return float(self.push["latency_seconds"] + arriving / self.push["bytes_per_second"])

    def collective_seconds(self, collective: str, size: int, ranks: int) -> float:
        """Latency and transfer; more ranks than were measured take as long as the most."""
        known = {int(n): times for n, times in self.collectives["microseconds"][collective].items()}
        times = np.array(known[ranks if ranks in known else max(known)]) * 1e-6
        latency, of_byte = fitted(np.array(self.collectives["bytes"]), times)
        return latency + of_byte * size

    def wait_of_slowest(self, loaders: int) -> float:
        """Seconds that the slowest of this many loaders lets a step wait."""
        waits = self.loader_waits
        return float(np.interp(loaders / (loaders + 1), waits["quantiles"], waits["seconds"]))


def read_steps(file: Path) -> Iterator[Step]:
    """Read a file of ``bench scaling``, or of ``tools/measure_dap.py``.

    Raises
    ------
    InputError
        If it cannot be read or is none.
    """
    try:
        content = json.loads(file.read_text("utf-8"))
        records = [content] if "benchmark" in content else [v["record"] for v in content.values()]
        for record in records:
            shapes, seconds = record["shapes"], record["step_seconds_by_recycling"]
            sizes = [shapes[key] for key in ("N_res", "msa_clusters", "extra_msa", "templates")]
            modes = record.get("recomputation", {"one": "none", "all": "none"})
            measured = [("one", 1, None)]
            if (degree := record.get("processes_a_sample", 1)) > 1:
                # push is younger than records without its name
                measured.append(("all", degree, record.get("exchange", "collectives")))
            for who, dap, exchange in measured:
                yield Step(
                    record["device"], tuple(sizes), modes[who], dap, seconds[who], str(file),
                    exchange, record.get("peak_memory_gib", {}).get(who),
                )  # fmt: skip
    except OSError as error:
        raise InputError(
            f"--record {file}: cannot be read: {error.strerror}. Correct the path, or measure "
            "first: `scalefold bench scaling` writes such a file"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"--record {file}: no record of bench scaling ({error!r})") from None


def fitted(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """``a`` and ``b`` of ``a + b x`` with the least relative errors."""
    columns = np.stack([np.ones(len(x)), x], axis=1) / y[:, None]
    (a, b), *_ = np.linalg.lstsq(columns, np.ones(len(x)), rcond=None)
    return float(a), float(b)
