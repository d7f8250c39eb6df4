"""The random numbers of a sample's features.

Transforms take them as arguments, so that a reference given the same numbers must give the same
features. In training they depend on (run seed, draw index, pass), in a prediction on (seed, chain
name, pass). Legend: R rows of the stored alignment, S clusters, N residues of the chain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalefold.config.schema import BlockDeletionConfig
from scalefold.features.random import (
    integers_below,
    key_bits,
    permutation,
    unit_float_pairs,
    unit_floats,
    words,
)


@dataclass(frozen=True)
class RandomKey:
    """Key of a sample's random numbers.

    Attributes
    ----------
    stream : str
        ``"training"`` or ``"evaluation"``.
    index : int
        Index of the draw in the training run, or the counter of a predicted chain's name.
    """

    stream: str
    seed: int
    index: int

    def words(self, count: int, purpose: str, *counters: int) -> NDArray[np.uint64]:
        """Random words for one purpose."""
        return words(count, f"{self.stream}.{purpose}", self.seed, self.index, *counters)


@dataclass(frozen=True, eq=False)
class SampleRandom:
    """Random numbers that all passes of a sample share, uniform in [0, 1).

    Attributes
    ----------
    clamp : float
        Whether the backbone FAPE is clamped.
    crop_shift, crop_start : float
        Where the residue crop starts (Suppl. sec. 1.2.8).
    template_order : ndarray, shape (pool,), int64
        Permutation of the pool's ranks; its restriction to the first ``n`` ranks is uniform too.
    """

    clamp: float
    crop_shift: float
    crop_start: float
    template_count: float
    template_order: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MsaRandom:
    """Random numbers of one pass over an alignment.

    Attributes
    ----------
    deletion_starts : ndarray, shape (blocks,), int64
        First rows of the blocks to delete, 1 to R - 1; empty: delete nothing.
    row_order : ndarray, shape (R - 1,), int64
        Permutation of the rows 1 to R - 1. The rows that block deletion leaves are taken in this
        order: clusters first, then extra rows.
    mask_position, mask_symbol : ndarray, shape (S, N), float32
        Uniform in [0, 1): whether a position is masked, and by what it is replaced.
    """

    deletion_starts: NDArray[np.int64]
    row_order: NDArray[np.int64]
    mask_position: NDArray[np.float32]
    mask_symbol: NDArray[np.float32]


def sample_random(key: RandomKey, template_pool: int) -> SampleRandom:
    """Return the random numbers that all passes of a sample share."""
    clamp, crop_shift, crop_start, template_count = unit_floats(key.words(4, "sample")).tolist()
    return SampleRandom(
        clamp=clamp,
        crop_shift=crop_shift,
        crop_start=crop_start,
        template_count=template_count,
        template_order=permutation(key.words(template_pool, "templates")),
    )


def msa_random(
    key: RandomKey,
    pass_index: int,
    *,
    num_rows: int,
    num_clusters: int,
    num_res: int,
    block_deletion: BlockDeletionConfig | None,
) -> MsaRandom:
    """Return the random numbers of one pass; ``block_deletion`` None: no block is deleted."""
    position, symbol = unit_float_pairs(key.words(num_clusters * num_res, "mask", pass_index))
    return MsaRandom(
        deletion_starts=_deletion_starts(key, pass_index, num_rows, block_deletion),
        row_order=1 + permutation(key.words(num_rows - 1, "rows", pass_index)),
        mask_position=position.reshape(num_clusters, num_res),
        mask_symbol=symbol.reshape(num_clusters, num_res),
    )


def dropout_key(key: RandomKey, pass_index: int) -> int:
    """Key of the dropout masks of one pass, a non-negative 63-bit integer."""
    return key_bits(f"{key.stream}.dropout", key.seed, key.index, pass_index, bits=64) >> 1


def _deletion_starts(
    key: RandomKey, pass_index: int, num_rows: int, config: BlockDeletionConfig | None
) -> NDArray[np.int64]:
    if config is None or not config.enabled or num_rows < 2:
        return np.zeros(0, np.int64)
    unit = unit_floats(key.words(1 + config.num_blocks, "blocks", pass_index))
    count = config.num_blocks
    if config.randomize_num_blocks:
        count = int(integers_below(unit[:1], config.num_blocks + 1)[0])
    return 1 + integers_below(unit[1 : 1 + count], num_rows - 1)
