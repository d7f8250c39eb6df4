"""Launches of `hopper/backward_one_pass.cu`, which gives all gradients but the gate's at once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from scalefold_kernels.attention.arguments import (
    Gradients,
    Inputs,
    new_rows,
    new_statistics,
    new_sums,
    turned,
)
from scalefold_kernels.attention.hopper_plan import Plan, dealt
from scalefold_kernels.attention.portable import backward_gate
from scalefold_kernels.cuda import Kernel, bindings
from scalefold_kernels.cuda.tensor_map import tensor_map
from scalefold_kernels.gpu import num_sms
from scalefold_kernels.tma import padded

BLOCK_Q, BLOCK_K = 64, 128
"""Queries of a block and keys of a program."""

MIN_LENGTH = 257
"""Of shorter rows `backward_queries_bias` holds the sums of the bias's gradient in registers."""

TILES = 3
"""Of keys."""

MAX_LENGTH = TILES * BLOCK_K
"""The most queries of which an SM holds the sums of the bias's gradient for BLOCK_K."""

MIN_CHANNELS = 17
"""Of fewer, as many would be empty."""

MAX_MASK_BYTES = 4
"""Of an element."""

_FOLDER = Path(__file__).parent / "hopper"

# A program has an SM and its shared memory for itself. Of its four warp groups one loads
# and gives the gradients of queries from its keys, two have 64 keys each, one adds.
ONE_PASS = Kernel(
    _FOLDER / "backward_one_pass.cu",
    "one_pass",
    threads=512,
    shared_bytes=227 * 1024,
    together=True,
)
PREPARE = Kernel(_FOLDER / "one_pass_prepare.cu", "one_pass_prepare", threads=256)


def serves(inputs: Inputs) -> bool:
    """Whether it takes arguments that `hopper_launch` serves, and less time than other kernels."""
    lengths = inputs.num_queries, inputs.num_keys
    return (
        inputs.bias is not None
        and inputs.q.is_cuda
        and min(lengths) >= MIN_LENGTH
        and max(lengths) <= MAX_LENGTH
        and inputs.channels >= MIN_CHANNELS
        and inputs.mask.element_size() <= MAX_MASK_BYTES
        and inputs.batch * plan(inputs).programs <= num_sms(inputs.q.device)
        and bindings.obstacle() is None
    )


def blocks(inputs: Inputs) -> int:
    """Of queries."""
    return triton.cdiv(inputs.num_queries, BLOCK_Q)


def constants(inputs: Inputs) -> dict[str, int]:
    """Macros of the kernel: blocks, and whether the bias is in another unit than bits."""
    natural = not math.isclose(inputs.bias_scale, math.log(2))
    return {"BLOCKS": blocks(inputs), "UNIT": int(natural)}


def plan(inputs: Inputs) -> Plan:
    """A program has a tile of 128 keys of a head, and rows; all tiles have equally many."""
    return dealt({}, inputs, TILES, programs=1, unit=TILES * inputs.num_heads)


def backward(
    inputs: Inputs, out: Tensor, lse: Tensor, grad_out: Tensor, gradients: Gradients
) -> Tensor:
    """Fill ``gradients``; return sums of the bias's gradient over groups of rows, `new_sums`."""
    q, k, v, gate, _, bias, *_ = inputs
    assert bias is not None
    grad_ungated = grad_out if gate is None else new_rows(q.shape, q)
    scaled_q = new_rows(q.shape, q) if inputs.scales_q else None
    delta = new_statistics(q)
    backward_gate(inputs, out, grad_out, gradients.gate, grad_ungated, delta, scaled_q)
    own = plan(inputs)
    prepared = _prepared(inputs, bias, lse, delta, own)
    rows, heads, queries, _, scale = inputs.scalars
    parts = q.new_empty((TILES, inputs.batch, rows, heads, queries, padded(inputs.channels)))
    sums = new_sums(bias, own.groups)
    *_, first, second = sums.stride()
    ONE_PASS.launch(
        (own.programs, inputs.batch),
        constants(inputs),
        _rows_map(q if scaled_q is None else scaled_q, BLOCK_Q),
        _rows_map(grad_ungated, BLOCK_Q),
        _rows_map(k, BLOCK_K),
        _rows_map(v, BLOCK_K),
        prepared.bias,
        prepared.added,
        prepared.statistics,
        gradients.q,
        gradients.k,
        gradients.v,
        sums,
        parts,
        prepared.written,
        gradients.q.stride()[:4],
        gradients.k.stride()[:4],
        gradients.v.stride()[:4],
        (second, first) if turned(bias) else (first, second),
        *inputs.scalars[:4],
        inputs.channels,
        scale,
        inputs.bias_scale,
    )
    return sums


class Prepared(NamedTuple):
    """What `one_pass_prepare` makes for `one_pass`, each in the order in which that reads it.

    Attributes
    ----------
    bias : Tensor
        (B, H, TILES, blocks, BLOCK_Q * BLOCK_K), minus infinity beyond queries and keys.
    added : Tensor
        (B, R, keys), to the logits, by the mask.
    statistics : Tensor
        (B, R, H, 8 blocks, 64): of 8 queries logarithms of sums and delta, in parts of bfloat16.
    written : Tensor
        (B, programs), zeros: counts rows whose gradients of queries are in memory.
    """

    bias: Tensor
    added: Tensor
    statistics: Tensor
    written: Tensor


def _prepared(inputs: Inputs, bias: Tensor, lse: Tensor, delta: Tensor, own: Plan) -> Prepared:
    mask, batch = inputs.mask, inputs.batch
    rows, heads, *_ = inputs.scalars
    count = blocks(inputs)
    made = Prepared(
        bias.new_empty((batch, heads, TILES, count, BLOCK_Q * BLOCK_K)),
        bias.new_empty((batch, rows, TILES * BLOCK_K)),
        bias.new_empty((batch, rows, heads, 8 * count, 64)),
        mask.new_empty((batch, own.programs), dtype=torch.int32),
    )
    # A thread has eight elements of the bias or the statistics, a warp a row of the mask.
    programs = (
        made.bias[0].numel() // (8 * PREPARE.threads)
        + triton.cdiv(made.statistics[0].numel(), 8 * PREPARE.threads)
        + triton.cdiv(rows, PREPARE.threads // 32)
    )
    PREPARE.launch(
        (programs, batch),
        {"BLOCKS": count},
        bias,
        mask,
        lse,
        delta,
        *made,
        bias.stride(),
        inputs.mask_strides,
        lse.stride()[:3],
        delta.stride()[:3],
        mask.element_size(),
        *inputs.scalars[:4],
        own.programs,
        inputs.bias_scale,
    )
    return made


def _rows_map(x: Tensor, block: int) -> Any:
    """Tiles (block positions, channels) of a tensor (B, R, N, H, C)."""
    width = padded(x.shape[-1])
    return tensor_map(x, 1, 1, block, 1, width, swizzle=2 * width)
