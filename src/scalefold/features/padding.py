"""Padding of features with zeros, which masks hide.

Features are padded to the sizes of the configuration, then to sizes that the number of ranks that
share a sample divides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.nn import functional

from scalefold.errors import InputError
from scalefold.features.contract import ALL_FEATURES, INPUT_FEATURES, Features


def pad(features: Features, sizes: Mapping[str, int]) -> Features:
    """Pad features with zeros to the sizes of the named dimensions; others stay.

    Raises
    ------
    InputError
        If a tensor is larger than the size to pad to.
    """
    padded = {}
    for name, tensor in features.items():
        widths: list[int] = []
        for dim, size in zip(ALL_FEATURES[name].dims, tensor.shape, strict=True):
            target = sizes.get(str(dim), size)
            if size > target:
                raise InputError(
                    f"feature {name!r} has {size} along dimension {dim}, more than the {target} to "
                    "pad to"
                )
            widths[:0] = (0, target - size)
        padded[name] = functional.pad(tensor, widths) if any(widths) else tensor
    return padded


def without_empty_slots(passes: Sequence[Features]) -> list[Features]:
    """Keep only filled template slots, which come first, or one empty slot if none is filled.

    Each slot takes the memory of half a pair representation in all passes, and more in the first.
    """
    filled = max(1, int(passes[0]["template_mask"].sum()))
    slots = [name for name, spec in INPUT_FEATURES.items() if "T" in spec.dims]
    return [
        {**features, **{name: features[name][:, :filled] for name in slots}} for features in passes
    ]


def padded_sizes(sizes: Mapping[str, int], degree: int, template_rows: int) -> dict[str, int]:
    """Round residues and rows up to multiples.

    Parameters
    ----------
    sizes : mapping of dimension letter to size
        Of the feature contract.
    template_rows : int
        Rows that the model adds to the clustered ones, which are divided together.
    """

    def rounded(size: int, more: int = 0) -> int:
        return size + -(size + more) % degree

    return {
        **sizes,
        "N": rounded(sizes["N"]),
        "S": rounded(sizes["S"], template_rows),
        "E": rounded(sizes["E"]),
    }


def pad_to_degree(features: Features, degree: int, template_rows: int) -> Features:
    """Pad a pass's features with zeros to sizes that ``degree`` divides. Masks hide the padding.

    Features that fit already are returned as they are. Parameters as `padded_sizes`.
    """
    sizes = {
        "N": features["aatype"].shape[1],
        "S": features["msa_feat"].shape[1],
        "E": features["extra_msa"].shape[1],
    }
    wanted = padded_sizes(sizes, degree, template_rows)
    if wanted == sizes:
        return features
    padded = pad(features, wanted)
    if "seq_length" in features:  # the loss scales by it, but by no more than the crop's
        padded["seq_length"] = features["seq_length"].clamp(max=sizes["N"])
    return padded
