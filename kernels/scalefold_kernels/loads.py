"""Loads of parameters in kernels, of both of Triton's languages; 0 beyond their ends."""

import triton
import triton.language as tl


@triton.jit
def load_vector(ptr, at, size):
    """Elements of a vector, in float32."""
    return tl.load(ptr + at, mask=at < size, other=0.0).to(tl.float32)


@triton.jit
def load_matrix(ptr, rows, columns, inside_rows, num_columns):
    """A block of a contiguous matrix, in its own type."""
    inside = inside_rows[:, None] & (columns < num_columns)[None, :]
    at = rows[:, None] * num_columns + columns[None, :]
    return tl.load(ptr + at, mask=inside, other=0.0)
