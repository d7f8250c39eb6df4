"""Activation recomputation: trade time for memory by running blocks again in backward."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from torch import nn
from torch.utils.checkpoint import checkpoint

from scalefold.model.alphafold import AlphaFold


def recompute_blocks(model: AlphaFold) -> None:
    """Keep only the inputs of each Evoformer and extra MSA block for backward.

    Changes no result and no state-dict key: dropout masks depend on the key and the layer alone, so
    the second run of a block sees the first one's.
    """
    _recompute(model.extra_msa_stack.blocks)
    _recompute(model.evoformer.blocks)


def _recompute(blocks: Iterable[nn.Module]) -> None:
    for block in blocks:
        block.forward = functools.partial(
            checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False
        )
