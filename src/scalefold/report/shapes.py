"""What the report asks of the files of a run: keys and kinds of values, other keys allowed."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from scalefold.errors import InputError
from scalefold.evaluate.pae_calibration import NUM_BINS

Step = Annotated[int, Field(ge=0, lt=10**8)]  # eight digits in names of files
Number = Annotated[float, Field(ge=-1e39, le=1e39)]  # no larger than float32's, and not NaN
Count = Annotated[int, Field(ge=0, lt=2**53)]
Seconds = Annotated[float, Field(ge=0.0, le=2.5e11)]  # a time to the year 9999

_PaeBin = Annotated[list[Number], Field(min_length=3, max_length=3)]
_PaeBins = Annotated[list[_PaeBin], Field(min_length=NUM_BINS, max_length=NUM_BINS)]


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class MetricsRecord(_Open):
    """A line of ``metrics.jsonl``: numbers by name."""

    __pydantic_extra__: dict[str, Number | None]
    step: Step
    time: Seconds | None = None


class _PerResidue(_Open):
    plddt: list[Number | None]
    lddt_ca: list[Number | None]


class _Scores(_Open):
    lddt_ca: Number | None
    lddt_all_atom: Number | None
    gdt_ts: Number | None
    tm_score: Number | None
    rmsd_ca_angstrom: Number | None
    mean_plddt: Number | None


class _Chain(_Scores):
    chain_key: str
    split: str
    length: Count
    observed: Count | None = None
    ptm: Number | None = None
    pae_bins: _PaeBins | None = None
    alignment_rows: Count | None = None
    release_date: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")] | None = None
    peptide_bonds: Count | None = None
    broken_bonds: Count | None = None
    clashes: Count | None = None
    per_residue: _PerResidue


class _Counts(_Open):
    scored: Count
    skipped: Count
    failed: Count


class _Unscored(_Open):
    chain_key: str
    split: str
    reason: str


class _Shown(_Open):
    chain_key: str
    split: str
    place: str
    sequence: str
    predicted: str
    true: str
    maps: dict[str, str]

    @model_validator(mode="after")
    def _whole(self) -> _Shown:
        for name in ("predicted", "true"):
            if len(base64.b64decode(getattr(self, name))) != 48 * len(self.sequence):
                raise ValueError(f"{name} does not hold four atoms of each residue")
        for name, text in self.maps.items():
            size = len(base64.b64decode(text))
            if not size or math.isqrt(size) ** 2 != size:
                raise ValueError(f"map {name!a} is not square")
            kind = name.removeprefix("true_")
            if not {kind, f"true_{kind}"} <= self.maps.keys():
                raise ValueError(f"map {name!a} has no other to stand beside")
        return self


class Evaluation(_Open):
    """What `scalefold.evaluate.results.write_evaluation` writes."""

    step: Step
    checkpoint: str | None
    mean: dict[str, _Scores]
    counts: dict[str, _Counts] | None = None
    chains: list[_Chain]
    skipped: list[_Unscored]
    failed: list[_Unscored]
    shown: list[_Shown] = []
    scalefold_version: str | None = None
    commit: str | None = None
    torch_version: str | None = None
    device: str | None = None
    precision: str | None = None
    recycling: Count | None = None
    seed: int | None = None

    @model_validator(mode="after")
    def _parts_fit(self) -> Evaluation:
        if self.counts is not None and (missing := self.mean.keys() - self.counts.keys()):
            raise ValueError(f"counts has no split {min(missing)!a}")
        keys = {chain.chain_key for chain in self.chains}
        if lost := [one.chain_key for one in self.shown if one.chain_key not in keys]:
            raise ValueError(f"chain {lost[0]!a} is shown and not scored")
        return self


class _Rung(_Open):
    rung: str
    title: str
    mean_step_seconds: Annotated[float, Field(gt=0.0, le=1e9)]
    loading_seconds: Annotated[float, Field(ge=0.0, le=1e9)] = 0.0
    launches_by_recycling: list[Number] | None
    gpu_busy_seconds_by_recycling: list[Number] | None
    peak_memory_gib: Number | None
    flop_utilisation: Number | None


class _RungWithoutRoom(_Open):
    rung: str
    title: str
    out_of_memory: Any


class Ladder(_Open):
    """What ``scalefold bench ladder`` writes."""

    benchmark: Annotated[str, Field(pattern="^ladder$")]
    device: str
    torch: str
    commit: str | None
    rungs: list[_Rung | _RungWithoutRoom]


class _RunConfig(_Open):
    class Training(_Open):
        initial_weights: str | None

    run_name: str
    results: str
    training: Training


class RunReport(_Open):
    """What is shown of another run's ``report.json``."""

    class Provenance(_Open):
        config: _RunConfig | None

    run: str
    training: dict[str, list[Number | None]]
    provenance: Provenance

    @model_validator(mode="after")
    def _has_steps(self) -> RunReport:
        steps = self.training.get("step", [])
        if not steps or None in steps:
            raise ValueError("the training has no steps")
        if any(len(values) != len(steps) for values in self.training.values()):
            raise ValueError("the training's columns have different lengths")
        return self


def read_shaped(path: Path, shape: type[BaseModel], what: str) -> dict[str, Any]:
    """Read a JSON file.

    Raises
    ------
    InputError
        If it is not there, damaged, or lacks something of the shape.
    """
    try:
        tree: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise InputError(f"{path}: {error.strerror}. Give the JSON file of {what}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not {what} ({error}). Give the JSON file of one") from None
    if lacking := misfit(shape, tree):
        raise InputError(f"{path}: not {what}: {lacking}. Give the JSON file of one")
    return tree


def misfit(shape: type[BaseModel], tree: Any) -> str:
    """Say what a tree lacks of a shape; empty if it has all of it."""
    try:
        shape.model_validate(tree)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "it"
        return f"{key} is missing" if first["type"] == "missing" else f"{key}: {first['msg']}"
    return ""
