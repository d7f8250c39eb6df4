"""Descriptors of tensors for TMA, as kernels in CUDA C++ take them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.cuda.bindings import checked, ensure_context
from scalefold_kernels.tma import steps

_TYPES = {torch.bfloat16: "BFLOAT16", torch.float32: "FLOAT32"}


def tensor_map(x: Tensor, *box: int, swizzle: int = 0) -> Any:
    """Boxes of a tensor that TMA can take (`tma.reachable`).

    Parameters
    ----------
    x : Tensor
        Of at most five dimensions; beyond it there are zeros.
    box : int
        Elements in each dimension.
    swizzle : int
        Bytes of a box's row in shared memory, 32, 64 or 128, whose 16-byte pieces are laid so that
        eight rows at one column are read without conflicts; 0: as they are.
    """
    return _encoded(x.data_ptr(), x.dtype, tuple(x.shape), tuple(steps(x)), box, swizzle)


# An allocator gives the same addresses at every step, and the driver takes its time.
@lru_cache(maxsize=1024)
def _encoded(
    address: int,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    swizzle: int,
) -> Any:
    from cuda.bindings import driver

    ensure_context(torch.cuda.current_device())
    kind = getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES[dtype]}")
    layout = f"CU_TENSOR_MAP_SWIZZLE_{f'{swizzle}B' if swizzle else 'NONE'}"
    # The driver counts dimensions from the last, and strides in bytes, without the last one's.
    return checked(
        driver.cuTensorMapEncodeTiled(
            kind,
            len(shape),
            address,
            [driver.cuuint64_t(n) for n in reversed(shape)],
            [driver.cuuint64_t(n * dtype.itemsize) for n in reversed(strides[:-1])],
            [driver.cuuint32_t(n) for n in reversed(box)],
            [driver.cuuint32_t(1)] * len(shape),
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(driver.CUtensorMapSwizzle, layout),
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
