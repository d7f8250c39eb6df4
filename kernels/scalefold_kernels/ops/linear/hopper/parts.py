"""What forward and backward share: the order of the rows, and the mask of a tile."""

from typing import NamedTuple, Self

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from scalefold_kernels.dropout.kernel import kept, mix
from scalefold_kernels.gluon import ROWS, mma_layout
from scalefold_kernels.ops.linear.op import Call
from scalefold_kernels.tma import tiles_of


@gluon.constexpr_function
def lines_of(shared):
    """Number of lines in a tile of 64 rows, which has 64 / lines positions of each.

    If lines share the mask (1), only the positions are hashed; if positions share it (2), only the
    lines. Without a mask (0), rows are lines of one position.
    """
    return {0: 64, 1: 8, 2: 1}[shared]


class Order(NamedTuple):
    """Rows as the kernels go through them: blocks of positions, each in several tiles of lines.

    Attributes
    ----------
    blocks : int
        Blocks of all samples.
    groups : int
        Groups of a block's tiles, each for one warp group or CTA.
    sample_blocks : int
    num_tiles : int
        Tiles of a block.
    sample_lines : int
    """

    blocks: int
    groups: int
    sample_blocks: int
    num_tiles: int
    sample_lines: int

    @classmethod
    def of(cls, call: Call, workers: int) -> Self:
        """Divide rows among ``workers`` warp groups or CTAs, or more if there are more blocks."""
        samples, lines, positions = _sizes(call)
        tile_lines = lines_of(call.shared)
        sample_blocks = triton.cdiv(positions, ROWS.value // tile_lines)
        blocks, num_tiles = samples * sample_blocks, triton.cdiv(lines, tile_lines)
        groups = min(num_tiles, max(1, workers // blocks))
        return cls(blocks, groups, sample_blocks, num_tiles, lines)


@gluon.jit
def tensors(order):
    """Numbers of an `Order` as warp groups take them, none a constant."""
    blocks, groups, sample_blocks, num_tiles, sample_lines = order
    return Order(
        gl.to_tensor(blocks), gl.to_tensor(groups), gl.to_tensor(sample_blocks),
        gl.to_tensor(num_tiles), gl.to_tensor(sample_lines),
    )  # fmt: skip


@gluon.jit
def start(cta, group):
    """Sample, first position and first tile of a group of lines."""
    block = group % cta.order.blocks
    position = block % cta.order.sample_blocks * (ROWS // lines_of(cta.SHARED))
    return block // cta.order.sample_blocks, position, group // cta.order.blocks


@gluon.jit
def line_of(cta, sample, tile):
    """First line of a tile."""
    return sample * cta.order.sample_lines + tile * lines_of(cta.SHARED)


@gluon.constexpr_function
def mask_layout(columns):
    """`mma_layout` of eight lines, eight positions of each, and columns.

    A line is 2 w + h, a position r: see the drawing in `docs/kernels.md`.
    """
    registers = [[0, 0, 1], [1, 0, 0]]
    registers += [[0, 0, 8 << i] for i in range((columns // 8).bit_length() - 1)]
    lanes = [[0, 0, 2], [0, 0, 4], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[2, 0, 0], [4, 0, 0]], [], [8, 8, columns])


@gluon.jit
def hash_positions(mask_tile, state, position, column, threshold):
    """Fill a mask (8 positions, columns): all bits of what is kept, none of what is dropped."""
    COLUMNS: gl.constexpr = mask_tile.shape[1]
    L: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    p = position + gl.arange(0, 8, layout=gl.SliceLayout(1, L))
    c = column + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, L))
    of_position = mix(mix(state, gl.to_tensor(0)), p)[:, None]
    mask_tile.store(-kept(mix(of_position, c[None, :]), threshold).to(mask_tile.dtype))


@gluon.jit
def load_mask(mask_tile):
    """Load the mask of a tile of 64 rows, which are eight lines."""
    COLUMNS: gl.constexpr = mask_tile.shape[1]
    L: gl.constexpr = mask_layout(COLUMNS)
    mask = mask_tile.load(gl.SliceLayout(0, L)).expand_dims(0).broadcast_to(8, 8, COLUMNS)
    return gl.convert_layout(mask.reshape([ROWS, COLUMNS]), mma_layout(COLUMNS))


def _sizes(call: Call) -> tuple[int, int, int]:
    """Samples, their lines, and positions of a line."""
    if call.dropout is None:  # nothing depends on the positions
        return 1, call.rows, 1
    return call.batch, call.size1, call.size2


def boxes_of(x: Tensor, call: Call, columns: int) -> TensorDescriptor:
    """Describe tiles of 64 rows and ``columns`` columns of a contiguous tensor."""
    samples, lines, positions = _sizes(call)
    tile_lines = lines_of(call.shared)
    matrix = x.view(samples * lines, positions, x.shape[-1])
    return tiles_of(matrix, tile_lines, ROWS.value // tile_lines, columns)
