"""Precision policies: which parameters work in which type, and how matrices are multiplied.

- ``fp32``: everything in float32.
- ``tf32``: the same, but matrix products on tensor cores that round their inputs to TF32.
- ``bf16``: parameters, activations and gradients of the trunk in bfloat16; structure module, heads,
  losses, recycled coordinates, master weights, Adam's moments and averages in float32.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Literal

import torch

from scalefold.errors import InputError

Precision = Literal["fp32", "tf32", "bf16"]

WIDE_MODULES: Final = ("structure_module.", "aux_heads.")
"""Modules that stay in float32 under every policy; the model casts at their entrance."""


def narrow_parameters(precision: Precision) -> Callable[[str], bool] | None:
    """Tell by name which parameters work in bfloat16; None if none do."""
    if precision != "bf16":
        return None
    return lambda name: not name.startswith(WIDE_MODULES)


def set_matrix_products(precision: Precision, device: torch.device) -> None:
    """Choose how torch multiplies float32 matrices: a setting of the process, made at assembly.

    Raises
    ------
    InputError
        If the device has no TF32.
    """
    if precision == "tf32":
        if device.type != "cuda":
            raise InputError(
                f"training.precision is tf32, which device {device.type!r} does not have: set it "
                "to fp32, or train on an NVIDIA GPU"
            )
        torch.set_float32_matmul_precision("high")
    else:
        torch.set_float32_matmul_precision("highest")


def set_determinism(deterministic: bool) -> None:
    """Choose whether repeated runs on a GPU give the same bits: a setting of the process.

    Raises
    ------
    RuntimeError
        From torch, later, at an operation that has no deterministic implementation.
    """
    if deterministic:
        # cuBLAS reads it when it starts; with the default it may choose by what else is running.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # What determinism needs; filling every new tensor is for finding mistakes.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(deterministic)
