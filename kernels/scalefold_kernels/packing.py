"""Several tensors as one, without a copy where they are adjacent in memory already.

Weights of q, k, v and gate follow each other in a training run's flat buffer, and an attention's
backward writes the four gradients into one tensor: both are then one matrix as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def join(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Concatenate along ``dim``; a view where the parts are consecutive slices of one tensor.

    For use below autograd (inside an op, or in a backward function): it does not track gradients.
    """
    dim = dim % parts[0].ndim
    if torch.compiler.is_compiling() or not _consecutive(parts, dim):
        return torch.cat(list(parts), dim)
    first = parts[0]
    size = list(first.shape)
    size[dim] = sum(part.shape[dim] for part in parts)
    return first.as_strided(size, first.stride(), first.storage_offset())


def _consecutive(parts: Sequence[Tensor], dim: int) -> bool:
    first = parts[0]
    storage, end = first.untyped_storage().data_ptr(), first.storage_offset()
    for part in parts:
        if (
            part.untyped_storage().data_ptr() != storage
            or part.storage_offset() != end
            or part.stride() != first.stride()
            or part.dtype != first.dtype
            or part.shape[:dim] != first.shape[:dim]
            or part.shape[dim + 1 :] != first.shape[dim + 1 :]
        ):
            return False
        end += part.shape[dim] * part.stride(dim)
    return True


def unpack(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of a vector's consecutive parts, in the shapes of some tensors."""
    parts = flat.split([x.numel() for x in like])
    return [part.view(x.shape) for part, x in zip(parts, like, strict=True)]
