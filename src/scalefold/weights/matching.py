"""Strict comparison of named tensors with a model's parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from scalefold.config.model import ModelConfig
from scalefold.errors import InputError, listed
from scalefold.model.alphafold import AlphaFold

State = dict[str, Tensor]
"""Parameter name -> tensor."""

_LOSSLESS: Final = (torch.float32, torch.bfloat16, torch.float16)


def model_shapes(config: ModelConfig) -> dict[str, torch.Size]:
    """Names and shapes of a model's parameters, in its order, without allocating them."""
    with torch.device("meta"):
        return {name: p.shape for name, p in AlphaFold(config).named_parameters()}


def check_shapes(
    found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]], source: str
) -> None:
    """Compare two sets of named shapes.

    Raises
    ------
    InputError
        Listing what is missing, unknown, or of another shape (the first few, all counted).
    """
    missing = [f"{n} {tuple(expected[n])}" for n in expected if n not in found]
    unknown = [f"{n} {tuple(found[n])}" for n in found if n not in expected]
    misshapen = [
        f"{n} is {tuple(found[n])}, the model has {tuple(expected[n])}"
        for n in expected
        if n in found and tuple(found[n]) != tuple(expected[n])
    ]
    refuse_differences(source, missing, unknown, misshapen)


def refuse_differences(
    source: str, missing: Sequence[str], unknown: Sequence[str], misshapen: Sequence[str] = ()
) -> None:
    """Raise an `InputError` that lists these differences, unless there are none."""
    kinds = (("missing", missing), ("unknown", unknown), ("of another shape", misshapen))
    parts = [f"\n{len(names)} {kind}:{listed(names)}" for kind, names in kinds if names]
    if parts:
        raise InputError(
            f"{source} does not fit the model. Choose the preset or configuration (templates, pTM "
            f"head, sizes) that these weights belong to. They differ in:{''.join(parts)}"
        )


def check_state(state: Mapping[str, Tensor], config: ModelConfig, source: str) -> State:
    """Check a state strictly and bring it to float32, in the model's order.

    Parameters
    ----------
    state : mapping of name to Tensor
        float32, or a narrower floating-point type (widening is exact).
    source : str
        What to call the state in errors.

    Raises
    ------
    InputError
        If names, shapes or types do not match, or a value is not finite.
    """
    expected = model_shapes(config)
    check_shapes({name: value.shape for name, value in state.items()}, expected, source)
    wrong = [f"{n} is {v.dtype}" for n, v in state.items() if v.dtype not in _LOSSLESS]
    if wrong:
        raise InputError(
            f"{source}: weights must be float32 (or bfloat16, float16), {len(wrong)} are not:"
            f"{listed(wrong)}"
        )
    full = {name: state[name].detach().float() for name in expected}
    not_finite = [name for name, value in full.items() if not bool(value.isfinite().all())]
    if not_finite:
        raise InputError(
            f"{source}: {len(not_finite)} parameters hold NaN or infinity:{listed(not_finite)}\n"
            "The file is damaged, or its training diverged"
        )
    return full
