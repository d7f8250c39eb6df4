"""What forward and backward share on Hopper GPUs."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from scalefold_kernels.dropout.kernel import UNIFORM_MASK
from scalefold_kernels.hopper import ROWS


@gluon.jit
def kept(state, threshold):
    """Whether an update is kept, of the hashes of its coordinates."""
    return ((state >> 40) & UNIFORM_MASK) >= threshold


@gluon.jit
def tensors(order):
    """Numbers of an `linear.hopper_launch.Order` as warp groups take them, none a constant."""
    blocks, groups, sample_blocks, num_lines, line_rows, sample_rows = order
    return (
        gl.to_tensor(blocks), gl.to_tensor(groups), gl.to_tensor(sample_blocks),
        gl.to_tensor(num_lines), gl.to_tensor(line_rows), gl.to_tensor(sample_rows),
    )  # fmt: skip


@gluon.jit
def start(order, group):
    """Sample, first position and first line of a group of lines."""
    blocks, _, sample_blocks, _, _, _ = order
    block = group % blocks
    return block // sample_blocks, block % sample_blocks * ROWS, group // blocks


@gluon.jit
def row_of(order, sample, position, line):
    """Row of the matrices at these coordinates."""
    _, _, _, _, line_rows, sample_rows = order
    return sample * sample_rows + line * line_rows + position
