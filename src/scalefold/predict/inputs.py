"""Shapes of the features that a prediction is made from."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn import functional

from scalefold.features.contract import INPUT_FEATURES, Features


def without_empty_slots(passes: Sequence[Features]) -> list[Features]:
    """Keep only filled template slots, which come first, or one empty slot where none is filled.

    Each slot takes the memory of half a pair representation in all passes, and more in the first.
    """
    filled = max(1, int(passes[0]["template_mask"].sum()))
    slots = [name for name, spec in INPUT_FEATURES.items() if "T" in spec.dims]
    return [
        {**features, **{name: features[name][:, :filled] for name in slots}} for features in passes
    ]


def padded_inputs(features: Features, length: int) -> Features:
    """The features that the model reads, padded with masked residues."""
    padded = {}
    for name, spec in INPUT_FEATURES.items():
        tensor = features[name]
        widths: list[int] = []
        for dim, size in zip(spec.dims, tensor.shape, strict=True):
            widths[:0] = (0, length - size if dim == "N" else 0)
        padded[name] = functional.pad(tensor, widths) if any(widths) else tensor
    return padded
