"""What every number of a benchmark carries with it: command, commit, device, shapes."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

import scalefold
from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.shards.atomic import write_bytes
from scalefold.train.provenance import made_with

logger = logging.getLogger(__name__)


def origin(benchmark: str, device: torch.device) -> dict[str, Any]:
    """The head of a benchmark's JSON: what was run, of which code, on what."""
    return {
        "benchmark": benchmark,
        "command": shlex.join(["scalefold", *sys.argv[1:]]),
        "version": scalefold.__version__,
        **made_with(device),
    }


def provenance(benchmark: str, config: Config, device: torch.device) -> dict[str, Any]:
    """`origin`, and the configuration's shapes."""
    return origin(benchmark, device) | {
        "preset": config.preset,
        "shapes": {
            "N_res": config.features.crop_size,
            "msa_clusters": config.features.max_msa_clusters,
            "extra_msa": config.features.max_extra_msa,
            "templates": config.features.max_templates,
            "evoformer_blocks": config.model.evoformer.num_blocks,
        },
    }


def earlier_record(file: Path, now: Mapping[str, Any], measured: Collection[str]) -> dict[str, Any]:
    """What another call wrote to a file, if it measured the same: same code, device and shapes.

    Parameters
    ----------
    file : Path
    now : mapping
        The record that this call is to write.
    measured : collection of str
        Its keys that hold results; all others but the command must be equal.

    Returns
    -------
    dict
        Empty if there is no file, or it is of something else, which is logged.

    Raises
    ------
    InputError
        The file is no record of this benchmark.
    """
    if not file.is_file():
        return {}
    try:
        before: dict[str, Any] = json.loads(file.read_text("utf-8"))
        known = before["benchmark"] == now["benchmark"]
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise InputError(f"{file}: not a file of bench {now['benchmark']}; choose another")
    if any(before.get(key) != now[key] for key in now if key not in ("command", *measured)):
        logger.info("%s is of other code, device or shapes: all is measured anew", file)
        return {}
    return before


def write_record(result: dict[str, Any], out: Path) -> None:
    """Write a benchmark's JSON, whole or not at all.

    Raises
    ------
    InputError
        If it cannot be written.
    """
    write_bytes(out, (json.dumps(result, indent=2) + "\n").encode())
