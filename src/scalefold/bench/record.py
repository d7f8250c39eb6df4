"""What every number of a benchmark carries with it: command, commit, device, shapes."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import scalefold
from scalefold.checkpoint.provenance import made_with
from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.io.atomic import write_bytes

logger = logging.getLogger(__name__)


def provenance(benchmark: str, config: Config, device: torch.device) -> dict[str, Any]:
    """The head of a benchmark's JSON: what was run, of which code, on what, at which shapes."""
    return {
        "benchmark": benchmark,
        "command": shlex.join(["scalefold", *sys.argv[1:]]),
        "version": scalefold.__version__,
        **made_with(device),
        "preset": config.preset,
        "shapes": {
            "N_res": config.features.crop_size,
            "msa_clusters": config.features.max_msa_clusters,
            "extra_msa": config.features.max_extra_msa,
            "templates": config.features.max_templates,
            "evoformer_blocks": config.model.evoformer.num_blocks,
        },
    }


def earlier_record(file: Path, head: Mapping[str, Any]) -> dict[str, Any]:
    """What an earlier call wrote to the file that this one is to write, to go on from there.

    Parameters
    ----------
    head : mapping
        What this call's record begins with; all of it but the command must be equal.

    Returns
    -------
    dict
        Empty if there is no file, or it is of other code, device or settings, which is logged.

    Raises
    ------
    InputError
        The file is no record of this benchmark.
    """
    if not file.is_file():
        return {}
    record = read_record(file, head["benchmark"])
    if found := _differences(record, head):
        logger.info("%s: all is measured again, since its %s", file, found)
        return {}
    return record


def part_record(file: Path, head: Mapping[str, Any]) -> dict[str, Any]:
    """What another call wrote to a file of its own, to be taken over: see `earlier_record`.

    Raises
    ------
    InputError
        There is no such file, it is no record of this benchmark, or it is of other code, device or
        settings.
    """
    if not file.is_file():
        raise InputError(f"--part {file}: no such file")
    record = read_record(file, head["benchmark"])
    if found := _differences(record, head):
        raise InputError(
            f"--part {file}: its {found}. What stands in one record is measured with one state of "
            "the code, on one kind of device and with the same settings: measure this part again, "
            "or join it where it was measured"
        )
    return record


def read_record(file: Path, benchmark: str) -> dict[str, Any]:
    """What a call of this benchmark wrote.

    Raises
    ------
    InputError
        The file is no record of this benchmark.
    """
    try:
        record: dict[str, Any] = json.loads(file.read_text("utf-8"))
        known = record["benchmark"] == benchmark
    except (ValueError, KeyError, TypeError, RecursionError):
        known = False
    if not known:
        raise InputError(f"{file}: not a file of bench {benchmark}; choose another")
    return record


def _differences(record: Mapping[str, Any], head: Mapping[str, Any]) -> str:
    """In words; empty where there are none."""
    return ", ".join(
        f"{key} is {record.get(key)}, here {value}"
        for key, value in head.items()
        if key != "command" and record.get(key) != value
    )


def write_record(result: dict[str, Any], out: Path) -> None:
    """Write a benchmark's JSON, whole or not at all.

    Raises
    ------
    InputError
        If it cannot be written.
    """
    write_bytes(out, (json.dumps(result, indent=2) + "\n").encode())
