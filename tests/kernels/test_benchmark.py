"""The benchmark's own check, of ops that are in float32 whatever type is asked for."""

import pytest
import torch

from scalefold.bench.kernels.agreement import Exact
from scalefold.bench.kernels.case import KernelCase
from scalefold.bench.kernels.catalogue import all_cases

CASES = all_cases(["optimiser"])


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op} {case.shape}")
def test_float32_is_held_to_float32(case: KernelCase, device: torch.device) -> None:
    agreement = Exact(case, device, torch.bfloat16).agreement(case.ours)
    torch.cuda.empty_cache()
    assert agreement.good, agreement
    assert agreement.limit < 1e-5
