"""Triangle multiplication in Triton, for any GPU, type and size."""

from scalefold_kernels.ops.triangle.triton.output import output_backward as output_backward
from scalefold_kernels.ops.triangle.triton.output import output_forward as output_forward
from scalefold_kernels.ops.triangle.triton.projection import (
    projection_backward as projection_backward,
)
from scalefold_kernels.ops.triangle.triton.projection import (
    projection_forward as projection_forward,
)
