"""Sums over rows in a fixed order."""

import torch

from scalefold_kernels.sums import sum_several


def test_several_sums_are_those_of_each_matrix(device: torch.device, poisoned_memory: None) -> None:
    torch.manual_seed(0)
    shapes = (2, 1500), (5, 7), (33, 64), (700, 9), (1, 1)
    matrices = [torch.randn(shape, device=device) for shape in shapes]
    dtypes = torch.float32, torch.bfloat16, torch.float32, torch.float32, torch.bfloat16
    outs = [
        torch.full((width,), float("nan"), dtype=dtype, device=device)
        for (_, width), dtype in zip(shapes, dtypes, strict=True)
    ]
    sum_several(matrices, outs)
    for matrix, out in zip(matrices, outs, strict=True):
        # Whatever the order of the sum, each of its roundings is relative to a part of it.
        exact = matrix.double().sum(0)
        bound = len(matrix) * torch.finfo(torch.float32).eps * matrix.double().abs().sum(0)
        rounding = torch.finfo(out.dtype).eps * exact.abs()
        assert ((out.double() - exact).abs() <= bound + rounding).all()
