"""Several tensors of one kind, as a kernel takes them: a tuple of pointers."""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def chosen(pointers, number):
    """One of them, by a number that is not known before."""
    pointer = pointers[0]
    for n in tl.static_range(1, len(pointers)):
        pointer = tl.where(number == n, pointers[n], pointer)
    return pointer
