"""Bind the Triton kernels of `scalefold_kernels`; the only importer of that package."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Literal

import torch

from scalefold.errors import InputError
from scalefold.ops.registry import TORCH, Ops

logger = logging.getLogger(__name__)

MIN_CAPABILITY = (8, 0)
"""Compute capability of the oldest GPUs with bfloat16 matrix products: A100, RTX 30."""


def select_ops(kind: Literal["auto", "torch", "triton"], device: torch.device) -> Ops:
    """Operations that a model on ``device`` is built with.

    Parameters
    ----------
    kind : {"auto", "torch", "triton"}
        ``auto``: the kernels, or plain torch, with one logged line that says why, where they cannot
        run.
    device : torch.device

    Raises
    ------
    InputError
        ``triton`` where the kernels cannot run.
    """
    if kind == "torch":
        return TORCH
    obstacle = why_not(device)
    if obstacle is None:
        return triton_ops()
    if kind == "triton":
        raise InputError(
            f"training.kernels: triton cannot run here: {obstacle}; set training.kernels to "
            "auto or torch for plain PyTorch"
        )
    logger.info("Plain PyTorch instead of the Triton kernels: %s", obstacle)
    return TORCH


def why_not(device: torch.device) -> str | None:
    """What keeps the kernels from running on this device, or None."""
    if device.type != "cuda" or torch.version.cuda is None:
        return f"they need an NVIDIA GPU and the device is {device.type}"
    if find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        name, (major, minor) = torch.cuda.get_device_name(device), capability
        return (
            f"they need compute capability {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]} or newer (A100, "
            f"RTX 30) and {name} has {major}.{minor}"
        )
    return None


def optimiser_kernels(
    kind: Literal["auto", "torch", "triton"], device: torch.device
) -> ModuleType | None:
    """`scalefold_kernels.optimiser`, or None for plain torch; after `select_ops`."""
    if kind == "torch" or why_not(device) is not None:
        return None
    return import_module("scalefold_kernels.optimiser")


def triton_ops() -> Ops:
    """The kernels; an operation without one is the torch reference."""
    from scalefold_kernels.attention import attention
    from scalefold_kernels.dropout import residual_dropout
    from scalefold_kernels.norm import layer_norm, normed_projection
    from scalefold_kernels.outer_product import outer_product_mean
    from scalefold_kernels.transition import transition
    from scalefold_kernels.triangle import (
        triangle_output,
        triangle_product_incoming,
        triangle_product_outgoing,
        triangle_projection,
    )

    return Ops(
        layer_norm=layer_norm,
        normed_projection=normed_projection,
        attention=attention,
        outer_product_mean=outer_product_mean,
        residual_dropout=residual_dropout,
        triangle_output=triangle_output,
        triangle_product_incoming=triangle_product_incoming,
        triangle_product_outgoing=triangle_product_outgoing,
        triangle_projection=triangle_projection,
        transition=transition,
    )
