"""What every number of a benchmark carries with it: command, commit, device, shapes."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

import scalefold
from scalefold.config.schema import Config
from scalefold.shards.atomic import write_bytes
from scalefold.train.provenance import made_with


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


def write_record(result: dict[str, Any], out: Path) -> None:
    """Write a benchmark's JSON, whole or not at all.

    Raises
    ------
    InputError
        If it cannot be written.
    """
    write_bytes(out, (json.dumps(result, indent=2) + "\n").encode())
