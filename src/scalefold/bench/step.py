"""Time whole training steps, by precision, recomputation and recycling count."""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from scalefold.config.load import make_config
from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.features.pipeline import collate_passes, training_features
from scalefold.loader.sampler import TrainingSampler
from scalefold.shards.atomic import write_bytes
from scalefold.shards.reader import ShardReader
from scalefold.train.assemble import Trainer, assemble
from scalefold.train.provenance import source_commit


def bench_step(
    config: Config,
    shards: Path,
    out: Path,
    *,
    precisions: Sequence[str],
    recomputations: Sequence[str],
    repeats: int,
    device: torch.device,
    console: Console,
) -> dict[str, Any]:
    """Time training steps (passes, loss, backward, clip, update, averaging) and write them as JSON.

    Features are prepared before the clock starts: loading has its own benchmark. Each variant is
    warmed up with one step of the largest recycling count; a variant that does not fit into the
    device's memory is recorded as such.

    Parameters
    ----------
    config : Config
        Shapes, model, loss and optimiser; ``training.precision`` and ``training.recomputation`` are
        replaced by the variants.
    shards : Path
        Where the samples come from.
    out : Path
        JSON file to write.
    precisions, recomputations : sequence of str
        Variants: all combinations.
    repeats : int
        Timed steps of each recycling count; the median counts.

    Raises
    ------
    InputError
        A variant is not known, the shards cannot be used, or the file cannot be written.
    """
    settings = [
        _variant(config, precision, recomputation)
        for precision in precisions
        for recomputation in recomputations
    ]
    counts = range(config.training.max_recycling + 1)
    passes = _passes(config, shards, device)
    variants = []
    for variant in settings:
        row: dict[str, Any] = {
            "precision": variant.training.precision,
            "recomputation": variant.training.recomputation,
        }
        try:
            row |= _measure(assemble(variant, device), variant, passes, counts, repeats, device)
        except torch.OutOfMemoryError as error:
            row["out_of_memory"] = str(error).splitlines()[0]
        variants.append(row)
        console.print(_table([row]))
    result = {
        "benchmark": "step",
        "command": shlex.join(["scalefold", *sys.argv[1:]]),
        "commit": source_commit(),
        "device": _device_name(device),
        "torch": torch.__version__,
        "preset": config.preset,
        "shapes": _shapes(config),
        "samples_per_step": config.training.global_batch_size,
        "variants": variants,
    }
    write_bytes(out, (json.dumps(result, indent=2) + "\n").encode())
    return result


def _variant(config: Config, precision: str, recomputation: str) -> Config:
    """Return the configuration with these two settings, validated."""
    tree = config.model_dump(mode="json")
    tree["training"] |= {"precision": precision, "recomputation": recomputation}
    return make_config(tree, source="variant")


def _passes(config: Config, shards: Path, device: torch.device) -> list[Features]:
    reader = ShardReader(shards)
    sampler = TrainingSampler(reader.index, config.sampling, config.seed)
    numbers = range(config.training.max_recycling + 1)
    samples = [
        training_features(
            reader.sample(sampler.key(draw)), config.features, config.seed, draw, numbers, device
        )
        for draw in range(config.training.global_batch_size)
    ]
    return collate_passes(samples)


def _measure(
    trainer: Trainer,
    config: Config,
    passes: list[Features],
    counts: Sequence[int],
    repeats: int,
    device: torch.device,
) -> dict[str, Any]:
    rate = config.optimiser.learning_rate
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    trainer.step(passes, rate)
    seconds = []
    for count in counts:
        times = []
        for _ in range(repeats):
            _synchronise(device)
            started = time.perf_counter()
            numbers = trainer.step(passes[: count + 1], rate)
            _synchronise(device)
            times.append(time.perf_counter() - started)
            if not bool(numbers.finite):
                raise InputError(
                    "a step of the benchmark was not finite, so its time means nothing"
                )
        seconds.append(statistics.median(times))
    return {
        "step_seconds_by_recycling": [round(s, 4) for s in seconds],
        "mean_step_seconds": round(statistics.mean(seconds), 4),
        "peak_memory_gib": round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
        if on_gpu
        else None,
    }


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def _shapes(config: Config) -> dict[str, int]:
    features = config.features
    return {
        "N_res": features.crop_size,
        "msa_clusters": features.max_msa_clusters,
        "extra_msa": features.max_extra_msa,
        "templates": features.max_templates,
        "evoformer_blocks": config.model.evoformer.num_blocks,
    }


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table("precision", "recomputation", "s by recycling 0, 1, …", "mean s", "peak GiB")
    for row in rows:
        if "out_of_memory" in row:
            table.add_row(row["precision"], row["recomputation"], "out of memory", "-", "-")
        else:
            times = " / ".join(f"{s:.3f}" for s in row["step_seconds_by_recycling"])
            table.add_row(
                row["precision"],
                row["recomputation"],
                times,
                f"{row['mean_step_seconds']:.3f}",
                str(row["peak_memory_gib"] or "-"),
            )
    return table
