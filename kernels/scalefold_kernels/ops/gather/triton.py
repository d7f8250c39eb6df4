"""Triton kernel that copies pieces of tensors to their places in a buffer: one launch for all."""

import triton
import triton.language as tl
from torch import Tensor

from scalefold_kernels.tiles import Config


@triton.jit
def copy_block(from_ptr, to_ptr, count, BLOCK: tl.constexpr):
    """``count`` elements, at most a block."""
    lanes = tl.arange(0, BLOCK)
    inside = lanes < count
    tl.store(to_ptr + lanes, tl.load(from_ptr + lanes, mask=inside), mask=inside)


@triton.jit
def gather_kernel(buffer_ptr, sources_ptr, pieces_ptr, BLOCK: tl.constexpr):
    """Copy one piece of one tensor to its place in the buffer.

    ``sources``: where each tensor is, in elements from the buffer's start; ``pieces``: tensor,
    first element in it, place in the buffer and number of elements of each CTA's.
    """
    piece_ptr = pieces_ptr + 4 * tl.program_id(0)
    first = tl.multiple_of(tl.load(piece_ptr + 1), BLOCK)
    target_ptr = buffer_ptr + tl.multiple_of(tl.load(piece_ptr + 2), 8)
    count = tl.load(piece_ptr + 3)
    source = tl.load(sources_ptr + tl.load(piece_ptr))
    # A gradient that is a part of another's memory may start anywhere. The count has to be a
    # multiple, too, or the mask makes the compiler copy element by element. Both are said by a
    # product: `tl.multiple_of` would hold for the value wherever it is used, here and below.
    if (source | count) % 8 == 0:
        copy_block(buffer_ptr + (source // 8 * 8 + first), target_ptr, count // 8 * 8, BLOCK)
    else:
        copy_block(buffer_ptr + (source + first), target_ptr, count, BLOCK)


def gather(buffer: Tensor, sources: Tensor, pieces: Tensor, config: Config) -> None:
    """Fill the buffer; ``sources`` and ``pieces`` (CTAs, 4) as `gather_kernel` takes them."""
    gather_kernel[(len(pieces),)](buffer, sources, pieces, **config)
