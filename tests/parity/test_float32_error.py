"""Float32's error against float64's result: of each output, loss term and gradient at most twice
the error of OpenFold and of MLPerf HPC's reference, pooled over runs (`pooling.py`).

The peers' errors, one for each tensor and seed of the weights, are stored;
``whole_golden/README.md`` says how they were made. With 16 seeds a tensor whose errors are equally
large in both codes, and each but one normal number, is above the limit with probability 1.5e-4.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pytest
import torch
from tests.parity.pooling import KINDS, Errors, float32_errors, pool_all
from tests.parity.test_whole_golden import (
    CASES,
    load_passes,
    model_config,
    run,
)

FOLDER: Final = Path(__file__).with_name("whole_golden")
GOLDEN: Final = FOLDER / "float32_errors.npz"
CASE: Final = "templates"
LIMIT: Final = 2.0


def stored_errors(peer: str) -> list[Errors]:
    """Of each seed."""
    with np.load(GOLDEN) as stored:
        names = {kind: stored[f"{peer}/{kind}/names"].tolist() for kind in KINDS}
        values = {kind: stored[f"{peer}/{kind}"].astype(float) for kind in KINDS}
    return [
        {kind: dict(zip(names[kind], values[kind][seed], strict=True)) for kind in KINDS}
        for seed in range(len(values["terms"]))
    ]


@pytest.fixture(scope="module")
def own_errors() -> list[Errors]:
    chosen = CASES[CASE]
    wide, narrow = (load_passes(chosen.batch, 0, t) for t in (torch.float64, torch.float32))
    config = model_config(chosen)
    return [
        float32_errors(run(config, chosen.loss, narrow, seed), run(config, chosen.loss, wide, seed))
        for seed in range(len(stored_errors("openfold")))
    ]


@pytest.mark.parametrize("peer", ["openfold", "mlperf"])
def test_error_is_at_most_twice_the_peers(peer: str, own_errors: list[Errors]) -> None:
    pooled = pool_all(own_errors, stored_errors(peer))
    assert [len(pooled[kind]) for kind in ("outputs", "terms")] == [17, 9]
    assert len(pooled["gradients"]) > 400
    above = {
        f"{kind} {name}": found
        for kind, by_name in pooled.items()
        for name, found in by_name.items()
        if found.each_alike > LIMIT
    }
    assert above == {}
