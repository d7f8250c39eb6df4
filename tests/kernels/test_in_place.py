"""Kernels take the rows that updates in place give them."""

from __future__ import annotations

import pytest
import torch

from scalefold.model.assembly import Assembly
from scalefold.model.outer_product_mean import OuterProductMean
from scalefold.model.pair_stack import PairStack
from scalefold.ops import Ops
from scalefold.ops.in_place import in_place
from scalefold.ops.kernels import kernel_ops

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
RESIDUES, ROW_STEP = (200, 64) if GPU else (10, 4)
CHANNELS = 128 if GPU else 16


@torch.inference_mode()
def updated(ops: Ops, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A pair representation before and after its updates."""
    torch.manual_seed(0)
    assembly = Assembly(ops)
    outer = OuterProductMean(CHANNELS, CHANNELS, 16, assembly)
    pair_stack = PairStack(CHANNELS, CHANNELS, CHANNELS // 4, 1, 2, 0.0, assembly)
    for module in (outer, pair_stack):
        for parameter in module.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
        module.to(DEVICE, dtype).eval()
    m = torch.randn(1, 3, RESIDUES, CHANNELS).to(DEVICE, dtype)
    z = torch.randn(1, RESIDUES, RESIDUES, CHANNELS).to(DEVICE, dtype)
    mask, pair_mask = torch.ones(m.shape[:3]), torch.ones(z.shape[:3])
    count = torch.full(z.shape[:3], 3.0)
    mask, pair_mask, count = (x.to(DEVICE) for x in (mask, pair_mask, count))
    _, after = outer(m, mask, count, z)
    after = pair_stack(after, pair_mask, torch.zeros(1, dtype=torch.int64, device=DEVICE))
    return z, after


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
)
def test_updates_in_place_are_the_updates(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scalefold.ops.in_place._ROW_STEP", ROW_STEP)
    z, ours = updated(in_place(kernel_ops(), 1), dtype)
    assert ours.data_ptr() == z.data_ptr()
    before, expected = updated(kernel_ops(), dtype)
    assert not torch.equal(before, expected)
    # Other blocks add in another order: roundings of each of the six updates.
    digits = torch.finfo(dtype).eps
    scale = expected.abs().max().item()
    torch.testing.assert_close(ours, expected, rtol=0, atol=16 * digits * scale)
