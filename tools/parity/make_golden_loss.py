"""Write ``tests/parity/golden_loss.json``, and how far rounding moves its losses.

python -m tools.parity.make_golden_loss
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from tests.parity.test_golden_loss import GOLDEN, losses, prepare


def make() -> None:
    with tempfile.TemporaryDirectory() as folder:
        config, shards = prepare(Path(folder))
        values = losses(config, shards)
        others = [losses(config, shards, perturbed=seed) for seed in range(4)]
    movement = {
        name: [
            max(abs(other[name][i] - value) / abs(value) for other in others)
            for i, value in enumerate(column)
        ]
        for name, column in values.items()
        if name != "lddt_ca"  # counts thresholds: no measure of agreement
    }
    tree = {
        "torch": torch.__version__,
        "values": {name: values[name] for name in movement},
        "movement": movement,
    }
    GOLDEN.write_text(json.dumps(tree, indent=1) + "\n")


if __name__ == "__main__":
    make()
