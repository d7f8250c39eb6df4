"""Which chain each draw of the training run takes (Suppl. sec. 1.2.5).

Draws are independent, with replacement: chain ``i`` is taken with probability ``w_i / sum(w)``, and
draw ``d`` is a pure function of (seed, d). There are no epochs. Predicted structures have a share
of the draws, if any; the sum is over chains of one origin then.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from scalefold.config.schema import SamplingConfig
from scalefold.errors import InputError
from scalefold.features.random import unit_floats, words


class TrainingSampler:
    """Chooses a chain for each draw.

    Parameters
    ----------
    index : pyarrow.Table
        One row a chain, as the index of the shards has it: ``chain_key``, ``split``, ``origin``,
        ``length``, ``resolution``, ``cluster_id``, ``cluster_size``,
        ``max_single_residue_fraction``. Rows of split ``train`` count. The order of the rows is of
        no importance.

    Attributes
    ----------
    keys : list of str
        Chains that passed the filters, sorted. Made when it is asked for.
    probabilities : ndarray, shape (len(keys),), float64
        Of each chain, in each draw.
    chains : int
        Of split ``train``, before the filters.
    removed : dict of str to int
        Number of chains that each filter removed; a chain counts for the first that it fails.

    Raises
    ------
    InputError
        If no chain is left, none of an origin that is to be drawn, or a key appears twice.
    """

    def __init__(self, index: pa.Table, config: SamplingConfig, seed: int) -> None:
        names = index["chain_key"]
        if not pc.all(pc.less_equal(names[:-1], names[1:])).as_py():  # packing sorts them
            index = index.sort_by("chain_key")
            names = index["chain_key"]
        for twice in names[1:].filter(pc.equal(names[:-1], names[1:])):
            raise InputError(f"chain {twice} is twice in the index; pack the shards again")
        kept = pc.equal(index["split"], "train").to_numpy()
        self.chains = int(kept.sum())
        if not self.chains:
            raise InputError(
                "the shards have no chain of split 'train': add some to the list data.chains, then "
                "fetch and pack them"
            )
        self.removed: dict[str, int] = {}
        for name, passed in _filters(index, config):
            self.removed[name] = int((kept & ~passed).sum())
            kept &= passed
        if not kept.any():
            raise InputError(
                f"no training chain is left of {self.chains} ({self._removal()}); relax the "
                "filters in section 'sampling', or add chains of split 'train'"
            )
        self._keys = names.filter(pa.array(kept))  # as a list, those of the PDB would take 38 MB
        distilled = _is_distilled(index)[kept]
        self.probabilities = _weights(index, kept, config)
        for origin, chosen, share in (
            ("experimental", ~distilled, 1.0 - config.distilled_share),
            ("distilled", distilled, config.distilled_share),
        ):
            if share and not chosen.any():
                raise InputError(
                    f"sampling.distilled_share is {config.distilled_share:g}, but the shards have "
                    f"no {origin} chain to draw ({self._removal()}). Correct it, or make shards "
                    "with both (`scalefold distil`)"
                )
            of_origin = self.probabilities[chosen]
            self.probabilities[chosen] = share * of_origin / of_origin.sum()
        self._bounds = np.cumsum(self.probabilities)
        self._seed = seed

    def __str__(self) -> str:
        """How many chains are drawn, and what removed the others."""
        return f"{len(self._keys):,} of {self.chains:,} train chains are drawn ({self._removal()})"

    @property
    def keys(self) -> list[str]:
        keys: list[str] = self._keys.to_pylist()
        return keys

    def _removal(self) -> str:
        reasons = [f"{name}: {count:,}" for name, count in self.removed.items() if count]
        return f"removed by {', '.join(reasons)}" if reasons else "none removed"

    def key(self, draw: int) -> str:
        """Chain of a draw; any draw can be asked for at once."""
        unit = unit_floats(words(1, "sampler", self._seed, draw))[0]
        place = int(np.searchsorted(self._bounds, unit, side="right"))
        key: str = self._keys[min(place, len(self._keys) - 1)].as_py()
        return key  # the last bound may round below 1


def _filters(index: pa.Table, config: SamplingConfig) -> list[tuple[str, NDArray[np.bool_]]]:
    """Name of each filter, and which rows pass it."""
    distilled = _is_distilled(index)  # has neither resolution nor cluster
    # unknown is NaN here, which compares as false
    resolution = index["resolution"].to_numpy()
    unknown = np.isnan(resolution)
    fraction = index["max_single_residue_fraction"].to_numpy()
    has_cluster = pc.is_valid(index["cluster_id"]).to_numpy()
    return [
        ("unknown resolution", ~unknown | distilled | config.allow_unknown_resolution),
        (
            f"resolution of {config.max_resolution_angstrom:g} Å or worse",
            unknown | (resolution < config.max_resolution_angstrom),
        ),
        (
            f"more than {config.max_single_residue_fraction:.0%} of one residue type",
            fraction <= config.max_single_residue_fraction,
        ),
        ("unknown cluster", has_cluster | distilled | (not config.require_cluster)),
        (
            f"sampling.distilled_share {config.distilled_share:g}",
            np.where(distilled, config.distilled_share > 0, config.distilled_share < 1),
        ),
    ]


def _is_distilled(index: pa.Table) -> NDArray[np.bool_]:
    return pc.equal(index["origin"], "distilled").to_numpy()


def _weights(
    index: pa.Table, kept: NDArray[np.bool_], config: SamplingConfig
) -> NDArray[np.float64]:
    length, size = (index[name].to_numpy()[kept] for name in ("length", "cluster_size"))
    if config.weights == "uniform":
        return np.ones(len(size), np.float64)
    by_length = np.clip(length.astype(np.float64), 256, 512) / 512
    # a chain of unknown cluster is one of its own
    return by_length / (np.sqrt(size) if config.weights == "mlperf" else size)
