"""Global-norm clip, Adam, weight average and working copy over flat buffers."""

from scalefold_kernels.optimiser.gather import Gather
from scalefold_kernels.optimiser.op import (
    AdamConstants,
    accumulate_gradient,
    apply_update,
    gradient_square_sums,
    num_sums,
)

__all__ = [
    "AdamConstants",
    "Gather",
    "accumulate_gradient",
    "apply_update",
    "gradient_square_sums",
    "num_sums",
]
