"""One training step of a small model of full width: what runs under compute-sanitizer.

``python -m scalefold.bench.small_step CONFIG SHARDS OUT`` writes the kernels that were launched,
and whether the step was finite, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import torch

from scalefold.bench.measure import prepared_samples
from scalefold.bench.variation import varied
from scalefold.config.load import make_config
from scalefold.config.schema import Config
from scalefold.ops.launched import launched_kernels
from scalefold.train.assemble import assemble

_SMALL: Final[dict[str, Any]] = {
    "features.max_templates": 2,
    "model.template.num_blocks": 1,
    "model.extra_msa.num_blocks": 1,
    "model.evoformer.num_blocks": 1,
    "training.global_batch_size": 1,
    "training.max_recycling": 0,
    "training.recomputation": "none",
    # Kernels are launched from Python, one after the other.
    "training.compile": False,
    "training.cuda_graphs": False,
}


def small_config(config: Config, precision: str, sizes: tuple[int, int, int]) -> Config:
    """The model with one block of each kind, all kernels, and ``sizes``.

    Parameters
    ----------
    config : Config
    precision : str
        ``bf16``, whose matrix kernels are those of the GPU at hand, or ``fp32``, whose kernels
        are for any.
    sizes : tuple of int
        Residues, MSA rows, extra rows.
    """
    residues, rows, extra = sizes
    return varied(
        config,
        _SMALL
        | {
            "training.precision": precision,
            "training.kernels": "triton",
            "features.crop_size": residues,
            "features.max_msa_clusters": rows,
            "features.max_extra_msa": extra,
        },
    )


def small_step(config: Config, shards: Path, device: torch.device) -> dict[str, Any]:
    """Make one training step, and say which kernels it launched and whether it was finite."""
    trainer = assemble(config, device)
    numbers = trainer.step(prepared_samples(config, shards, device), config.optimiser.learning_rate)
    return {"finite": bool(numbers.finite), "kernels": launched_kernels()}


def main() -> None:
    """See the head of this file."""
    config, shards, out = map(Path, sys.argv[1:])
    tree = json.loads(config.read_text("utf-8"))
    result = small_step(make_config(tree, source="small step"), shards, torch.device("cuda"))
    out.write_text(json.dumps(result), "utf-8")


if __name__ == "__main__":
    main()
