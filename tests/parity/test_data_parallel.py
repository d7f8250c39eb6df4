"""One, two and four processes with the same global batch compute the same mean gradient.

Every process computes a sample's gradient g_i by the same operations in the same order: these are
equal to the last bit. What differs is the order in which n of them are added in float32, with unit
roundoff u = 2^-24. A sum of n terms in any order is off by at most (n - 1) u sum|t_i|, so two sums
by at most twice that. The terms are

- the g_i where the mean is clipped ("global"): twice (n - 1) u sum|g_i|;
- s_i g_i where each sample is clipped by its factor s_i ("sample"); a product may be rounded before
  it is added or not, which adds u |s_i g_i| to each term: twice n u sum|s_i g_i|.

Division by n = 4 is exact. With two samples and "global" there is one addition and no freedom:
tests/unit/train/test_ranks.py asks for equal bits there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from scalefold.config import config_to_yaml

from .test_golden_loss import prepare

SIZES = (1, 2, 4)
CASES = ("fp32 sample", "fp32 global", "bf16 global")
SAMPLES = 4
STEPS = 3
RATE, EPS = 1e-3, 1e-6
U = 2.0**-24

SCRIPT = """
import sys
from pathlib import Path
import torch
from scalefold.config import load_config
from scalefold.loader.loader import TrainingLoader
from scalefold.launcher import find_place
from scalefold.parallel.launch import joined
from scalefold.shards.reader import ShardReader
from scalefold.optim import clipping
from scalefold.train.assemble import assemble

config, shards, out, cases, steps, rate = sys.argv[1:]
clipping.BUCKET_ELEMENTS = 20_000
torch.set_num_threads(1)
flat_norm = clipping.flat_norm

def listening(buffer):
    # A sample's gradient is measured when it is complete; the mean, elsewhere, may be as well.
    if buffer.data_ptr() == parts.parameters.gradient.data_ptr():
        gradients.append(buffer.clone())
    return flat_norm(buffer)

clipping.flat_norm = listening
with joined(find_place(), lambda: torch.device("cpu")) as (mesh, _):
    found = {}
    for case in cases.split(","):
        precision, scope = case.split()
        # Clipped one by one, most are; the mean is not: its norm has a test of its own.
        clip = {"sample": 0.5, "global": 1e6}[scope]
        tree = {"optimiser": {"clip_scope": scope, "clip_norm": clip},
                "training": {"precision": precision, "global_batch_size": 4, "steps": int(steps)}}
        loaded = load_config([Path(config)], tree)
        parts = assemble(loaded, torch.device("cpu"), mesh)
        generator = torch.Generator().manual_seed(3)
        for view in parts.parameters.by_name(parts.parameters.master).values():
            view += 0.05 * torch.randn(view.shape, generator=generator)
        parts.parameters.update_working_copy()
        before = parts.parameters.master.clone()
        gradients, records = [], []
        reader = ShardReader(Path(shards))
        place = {"rank": mesh.data.rank, "world_size": mesh.data.size}
        with TrainingLoader(reader, loaded, "cpu", **place) as loader:
            for batch in loader:
                numbers = parts.step(batch.samples, float(rate))
                records.append({
                    "norm": numbers.gradient_norm, "finite": numbers.finite,
                    "told": numbers.exchanged, "keys": batch.chain_keys,
                    "norms": numbers.per_sample[:, 1], "recycling": batch.recycling,
                    "moment": parts.state.optimiser.first_moment.clone(),
                    "weights": parts.parameters.master.clone(),
                })
        found[case] = {"before": before, "steps": records,
                       "gradients": torch.stack(gradients[:4 // mesh.data.size])}
    torch.save(found, f"{out}-{mesh.data.rank}.pt")
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Any]]:
    """By number of processes, what each of them found."""
    folder = tmp_path_factory.mktemp("ranks")
    config, shards = prepare(folder)
    (folder / "config.yaml").write_text(config_to_yaml(config))
    (folder / "run.py").write_text(SCRIPT)
    for size in SIZES:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
        command = [
            sys.executable, *(launcher if size > 1 else []), folder / "run.py",
            folder / "config.yaml", shards, folder / str(size), ",".join(CASES), STEPS, RATE,
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            list(map(str, command)), env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    return {size: [torch.load(folder / f"{size}-{r}.pt") for r in range(size)] for size in SIZES}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", SIZES[1:])
def test_each_rank_has_its_part_of_the_samples(
    found: dict[int, list[Any]], size: int, case: str
) -> None:
    (one,) = found[1]
    for step in range(STEPS):
        keys = [key for rank in found[size] for key in rank[case]["steps"][step]["keys"]]
        assert keys == one[case]["steps"][step]["keys"]
        recycling = {rank[case]["steps"][step]["recycling"] for rank in found[size]}
        assert recycling == {one[case]["steps"][step]["recycling"]}
    gradients = torch.cat([rank[case]["gradients"] for rank in found[size]])
    assert torch.equal(gradients, one[case]["gradients"])
    assert gradients.abs().amax(1).min() > 0


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", SIZES[1:])
def test_ranks_stay_equal_to_the_last_bit(
    found: dict[int, list[Any]], size: int, case: str
) -> None:
    first, *others = found[size]
    for other in others:
        for mine, theirs in zip(first[case]["steps"], other[case]["steps"], strict=True):
            assert mine["finite"]
            for name in ("norm", "told", "moment", "weights"):
                assert torch.equal(mine[name], theirs[name]), name


def _bound(one: Any, case: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean gradient in float64, and how far two float32 means may be apart."""
    terms = one[case]["gradients"].double()
    if case.endswith("sample"):
        norms = one[case]["steps"][0]["norms"].double()
        assert (norms > 0.5).any()
        terms = terms * (0.5 / (norms + 1e-6)).clamp(max=1.0)[:, None]
        # The factor itself is rounded, to the same value in all runs: no part of the difference.
    roundings = SAMPLES if case.endswith("sample") else SAMPLES - 1
    return terms.mean(0), 2 * roundings * U * terms.abs().mean(0)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", SIZES[1:])
def test_the_mean_gradient_differs_by_the_order_of_additions_alone(
    found: dict[int, list[Any]], size: int, case: str
) -> None:
    (one,) = found[1]
    mean, bound = _bound(one, case)
    mine, theirs = (ranks[0][case]["steps"][0]["moment"].double() for ranks in (found[size], [one]))
    # The first moment is 0.1 of the gradient, rounded once more.
    assert bool(((mine - theirs).abs() <= 0.1 * bound + 2 * U * theirs.abs()).all())
    # And it is the mean: to the rounding of the factors too.
    assert float((theirs - 0.1 * mean).norm()) <= 1e-5 * float(theirs.norm())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", SIZES[1:])
def test_norms_agree(found: dict[int, list[Any]], size: int, case: str) -> None:
    """Norms are sums of m squares in rows, then of the rows: off by (m + rows) u / 2 at most."""
    (one,) = found[1]
    mean, bound = _bound(one, case)
    mine, theirs = (float(r[0][case]["steps"][0]["norm"]) for r in (found[size], [one]))
    rounding = (4096 + mean.numel() / 4096) * U
    apart = float(bound.norm() / mean.norm()) if case.endswith("global") else SAMPLES * U
    assert abs(mine - theirs) <= (rounding + apart) * theirs


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", SIZES[1:])
def test_weights_agree_after_an_update(found: dict[int, list[Any]], size: int, case: str) -> None:
    """Adam's first update is r g / (|g| + e), whose slope is e / (|g| + e)^2, at most r apart.

    Beside that, its ten operations round by u each in either run, and so does the subtraction.
    """
    (one,) = found[1]
    mean, bound = _bound(one, case)
    least = (mean.abs() - bound).clamp(min=0.0)
    slope = EPS / (least + EPS) ** 2
    update = RATE * ((slope * bound).clamp(max=2.0) + 20 * U)
    mine, theirs = (r[0][case]["steps"][0]["weights"].double() for r in (found[size], [one]))
    assert bool(((mine - theirs).abs() <= update + 2 * U * theirs.abs()).all())
    assert float((theirs - one[case]["before"]).abs().max()) > 0.5 * RATE
