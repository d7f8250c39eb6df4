from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scalefold.evaluate.metrics import Comparison
from scalefold.raw.mmcif import read_entry

MIRROR = Path(__file__).resolve().parents[3] / "demo" / "mirror" / "wwpdb"
SHARED_MIRROR = Path(__file__).resolve().parents[4] / "shared" / "mirror" / "wwpdb"

Compare = Callable[..., Comparison]


@cache
def _chain(mirror: Path, chain_key: str) -> tuple[Tensor, Tensor, Tensor]:
    entry = chain_key.partition("_")[0]
    (path,) = mirror.rglob(f"{entry}.cif.gz")
    chain = read_entry(path).chain(chain_key)
    return (
        torch.tensor(chain.positions).double(),
        torch.tensor(chain.atom_mask),
        torch.tensor(chain.aatype.astype("int64")),
    )


def perturb(true: Tensor, recipe: str) -> Tensor:
    """Move atoms by formula (no random generator, so the numbers never change), to 0.001 Å.

    ``noise:a`` moves each atom by up to a Å on its own, ``drift:a`` by a smooth function of the
    residue's number, ``hinge:a`` turns the second half of the chain by a radians, ``shift`` gives
    each residue the coordinates of the next.
    """
    kind, _, amount = recipe.partition(":")
    size = float(amount or 0.0)
    num_res = len(true)
    residue = torch.arange(num_res, dtype=torch.float64)[:, None, None]
    moved = true.clone()
    if kind == "noise":
        number = torch.arange(true.numel(), dtype=torch.float64).view_as(true)
        moved += size * torch.sin(12.9898 * number + 0.001 * number**2)
    elif kind == "drift":
        phase = torch.tensor([0.0, 1.0, 2.5], dtype=torch.float64)
        moved += size * torch.sin(residue / 7.0 + phase) + 0.02 * size * residue
    elif kind == "hinge":
        half = num_res // 2
        cos, sin = math.cos(size), math.sin(size)
        turn = torch.tensor([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]], dtype=torch.float64)
        pivot = true[half, 1]
        moved[half:] = (true[half:] - pivot) @ turn.T + pivot
    elif kind == "shift":
        moved[:-1] = true[1:]
    else:
        raise ValueError(recipe)
    return (moved * 1000).round() / 1000


@pytest.fixture(scope="session")
def compare() -> Compare:
    """A real bundled chain against itself, perturbed by a recipe; as the prediction."""

    def make(chain_key: str, recipe: str, mirror: Path = MIRROR) -> Comparison:
        true, mask, aatype = _chain(mirror, chain_key)
        return Comparison(perturb(true, recipe), mask, true, mask, aatype)

    return make


@pytest.fixture(scope="session")
def shared_mirror() -> Path:
    """A second mirror of real files that a development machine may have beside the repository."""
    if not SHARED_MIRROR.is_dir():
        pytest.skip("no shared mirror beside the repository")
    return SHARED_MIRROR
