"""Time predictions by length, and the proteins that a device predicts in an hour.

Features are made up, and no templates are among them: contents do not change the time. What is
timed is the model with all passes of a chain, from features on the device to a structure in host
memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from scalefold.bench.lengths import PDB_LIKE
from scalefold.bench.record import provenance, write_record
from scalefold.chem.residues import ATOM14_MASK, ATOM14_TO_ATOM37, ATOM37_MASK, ATOM37_TO_ATOM14
from scalefold.config.schema import Config, FeaturesConfig
from scalefold.features.contract import INPUT_FEATURES, Features
from scalefold.model import AlphaFold
from scalefold.predict.predictor import (
    LENGTH_STEP,
    LONGEST_GRAPHED,
    MAX_PART_ELEMENTS,
    choose_precision,
    predictor,
)

DISTRIBUTION: Final = f"{PDB_LIKE}: roughly the chains of the PDB"
LONG_SECONDS: Final = 30.0
"""A prediction that takes longer is made once: what is made for its length is little of it."""
_RESIDUE_TYPES: Final = 20
_SYMBOLS: Final = 23


def bench_prediction(
    config: Config,
    out: Path,
    *,
    lengths: Sequence[int],
    num_chains: int,
    device: torch.device,
    console: Console,
) -> dict[str, Any]:
    """Predict made-up chains with random weights, short ones twice, and write the times as JSON.

    The first prediction of a chain pays for what is compiled and captured for its length. The
    record is written again after each chain. A chain that needs more memory than there is says so
    in its row.

    Parameters
    ----------
    config : Config
        Model, sizes of the features, ``evaluation``.
    lengths : sequence of int
        Chains that are timed by length; the shortest first is the fastest.
    num_chains : int
        Chains of the mix; 0: no mix.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        weights = AlphaFold(config.model).state_dict()
    predict = predictor(config, weights, device)
    passes = config.evaluation.recycling + 1
    result = provenance("prediction", config, device) | {
        "passes": passes,
        "templates_filled": 0,
        "precision": choose_precision(config, device),
        "by_length": [],
        "mix": {"distribution": DISTRIBUTION, "chains": []},
    }

    def add(rows: list[dict[str, Any]], length: int) -> None:
        row = {"residues": length, "mode": _mode(config, length, device)}
        features = made_up_features(length, config.features, device)
        rows.append(row | timed(lambda: predict([features] * passes), passes, device))
        write_record(result, out)

    for length in lengths:
        add(result["by_length"], length)
    for length in PDB_LIKE.quantiles(num_chains):
        add(result["mix"]["chains"], length)
    result["mix"] |= proteins_an_hour(result["mix"]["chains"])
    write_record(result, out)
    console.print(_table(result))
    return result


def made_up_features(length: int, sizes: FeaturesConfig, device: torch.device) -> Features:
    """Features of one pass that fill all rows; template slots are empty."""
    named = {
        "B": 1,
        "N": length,
        "S": sizes.max_msa_clusters,
        "E": sizes.max_extra_msa,
        "T": sizes.max_templates,
    }
    generator = torch.Generator(device).manual_seed(length)
    features: Features = {}
    for name, spec in INPUT_FEATURES.items():
        shape = [named[dim] if isinstance(dim, str) else dim for dim in spec.dims]
        if name.startswith("template"):
            features[name] = torch.zeros(shape, dtype=spec.dtype, device=device)
        elif name.endswith("mask"):
            features[name] = torch.ones(shape, dtype=spec.dtype, device=device)
        elif spec.dtype.is_floating_point:
            features[name] = torch.rand(shape, device=device, generator=generator)
        else:
            most = _SYMBOLS if name == "extra_msa" else _RESIDUE_TYPES
            features[name] = torch.randint(most, shape, device=device, generator=generator)
    features["residue_index"] = torch.arange(length, device=device)[None]
    for name, table in (
        ("atom14_atom_exists", ATOM14_MASK),
        ("atom37_atom_exists", ATOM37_MASK),
        ("residx_atom14_to_atom37", ATOM14_TO_ATOM37),
        ("residx_atom37_to_atom14", ATOM37_TO_ATOM14),
    ):
        whole = torch.as_tensor(table, dtype=INPUT_FEATURES[name].dtype, device=device)
        features[name] = whole[features["aatype"]]
    return features


def proteins_an_hour(chains: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Rates without and with what is made once a length; none if a chain was not predicted."""
    if not chains or any("error" in row for row in chains):
        return {}
    return {
        name: round(3600 * len(chains) / sum(row[seconds] for row in chains), 1)
        for name, seconds in (
            ("proteins_an_hour", "seconds"),
            ("proteins_an_hour_first_of_each_length", "first_seconds"),
        )
    }


def timed(predict: Callable[[], object], passes: int, device: torch.device) -> dict[str, Any]:
    """Times and memory of a chain's prediction, or the message that memory ran out.

    Parameters
    ----------
    predict : callable
        Leaves nothing to wait for.
    """
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    seconds: list[float] = []
    try:
        while len(seconds) < 2 and sum(seconds) < LONG_SECONDS:
            started = time.perf_counter()
            predict()
            seconds.append(time.perf_counter() - started)
    except torch.OutOfMemoryError as error:
        return {"error": str(error).partition(" If reserved")[0]}
    timed: dict[str, Any] = {
        "first_seconds": round(seconds[0], 3),
        "seconds": round(seconds[-1], 3),
        "seconds_a_pass": round(seconds[-1] / passes, 4),
    }
    if on_gpu:
        timed["peak_memory_gib"] = round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
        timed["reserved_memory_gib"] = round(torch.cuda.max_memory_reserved(device) / 2**30, 2)
    return timed


def _mode(config: Config, length: int, device: torch.device) -> str:
    """How the predictor computes a chain of this length."""
    padded = -(-length // LENGTH_STEP) * LENGTH_STEP if device.type == "cuda" else length
    if device.type == "cuda" and padded <= LONGEST_GRAPHED:
        return "CUDA graphs"
    return "in place" if padded**2 * config.model.c_z > MAX_PART_ELEMENTS else "launched"


def _table(result: dict[str, Any]) -> Table:
    rate = result["mix"].get("proteins_an_hour", "-")
    table = Table(
        "residues", "mode", "first s", "s", "s a pass", "GiB", title=f"{rate} proteins an hour"
    )
    for row in [*result["by_length"], *result["mix"]["chains"]]:
        names = ("residues", "mode", "first_seconds", "seconds", "seconds_a_pass")
        table.add_row(*(str(row.get(n, "-")) for n in (*names, "peak_memory_gib")))
    return table
