"""Precision policies: which numbers are in which type, and how matrices are multiplied.

- ``fp32``: everything in float32.
- ``tf32``: the same, but matrix products on tensor cores that round their inputs to TF32.
- ``bf16``: `BF16_POLICY`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import torch
from torch import nn

from scalefold.errors import InputError

Precision = Literal["fp32", "tf32", "bf16"]


class Rule(NamedTuple):
    """A row of `BF16_POLICY`.

    Attributes
    ----------
    kind : {"modules", "island", "state"}
        modules: parameters, results and gradients of the modules whose name starts with ``where``;
        the first rule that fits counts. island: an operation, or a class of modules, that computes
        in a wider type than it returns. state: numbers of training outside the model.
    """

    kind: Literal["modules", "island", "state"]
    where: str
    dtype: torch.dtype
    reason: str


_BF16, _FP32, _FP64 = torch.bfloat16, torch.float32, torch.float64

BF16_POLICY: Final = (
    Rule("modules", "structure_module.", _FP32, "coordinates: 2^-9 of 100 Å are 0.2 Å"),
    Rule("modules", "aux_heads.", _FP32, "their logits are the losses' inputs"),
    Rule("modules", "", _BF16, "the trunk: tensor cores, half of the memory traffic"),
    Rule("island", "attention", _FP32, "softmax; in kernels its logits too, up to 100"),
    Rule("island", "pointwise_attention", _FP32, "logits, as in attention"),
    Rule("island", "global_attention", _FP32, "logits, and means over up to thousands of rows"),
    Rule("island", "InvariantPointAttention", _FP64, "squares of coordinates cancel in distances"),
    Rule("island", "outer_product_mean", _FP32, "division by counts of rows"),
    Rule("island", "EvoformerStack", _FP32, "counts of rows: bfloat16 ends at 256"),
    Rule("island", "ExtraMsaStack", _FP32, "counts of rows"),
    Rule("island", "RecyclingEmbedder", _FP32, "distances, against the edges of bins"),
    Rule("island", "TemplatePairEmbedder", _FP32, "distances, against the edges of bins"),
    Rule("island", "_TemplateAttention", _FP32, "number of templates, of a mask"),
    Rule("state", "recycled positions", _FP32, "coordinates"),
    Rule("state", "recycled representations", _BF16, "what the trunk made, and reads again"),
    Rule("state", "losses", _FP64, "sums of up to 10^7 numbers, from float32 on"),
    Rule("state", "gradient of a sample, trunk", _BF16, "what backward makes"),
    Rule("state", "gradient of a sample, rest", _FP32, "what backward makes"),
    Rule("state", "sum over samples and ranks", _FP32, "small gradients beside large ones"),
    Rule("state", "master weights", _FP32, "updates far below 2^-9 of a weight"),
    Rule("state", "Adam's moments", _FP32, "moved by 0.1 % a step"),
    Rule("state", "averaged weights", _FP32, "moved by 0.1 % a step"),
    Rule("state", "counters and learning rate", _FP64, "powers of 0.999"),
)
"""The types of bf16 training. Statistics of LayerNorm and sums of matrix products are in float32
inside their operations."""


def _bf16_type(name: str) -> torch.dtype:
    rules = (rule for rule in BF16_POLICY if rule.kind == "modules")
    return next(rule.dtype for rule in rules if name.startswith(rule.where))


def narrow_parameters(precision: Precision) -> Callable[[str], bool] | None:
    """Return which parameters work in bfloat16, by name; None if none do."""
    if precision != "bf16":
        return None
    return lambda name: _bf16_type(name) == torch.bfloat16


def narrow_model(model: nn.Module, precision: Precision) -> None:
    """Convert the parameters that work in bfloat16, in place: without master weights."""
    narrow = narrow_parameters(precision)
    for name, parameter in model.named_parameters():
        if narrow is not None and narrow(name):
            parameter.data = parameter.data.bfloat16()


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
    # Not without need: torch imports its compiler for it, for more than a second.
    if deterministic or torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(deterministic)
