"""What the kernels' inline assembly does, by its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from tests.kernels.gluon_interpreter.copies import store_wait
from tests.kernels.gluon_interpreter.numbers import flushed, from_memory, rounded, to_memory
from tests.kernels.gluon_interpreter.program import current
from tests.kernels.gluon_interpreter.tensor import Tensor, to_tensor

_MINUS_LOG2E = np.array(0xBFB8AA3B, np.uint32).view(np.float32)


def inline_asm_elementwise(
    asm: str, constraints: str, args: Sequence[Any], dtype: Any, is_pure: bool, pack: int
) -> Any:
    """As Triton's; an unknown text is an error."""
    tensors = [to_tensor(x) for x in args]
    text = " ".join(asm.split())
    if text not in _MEANING:
        raise NotImplementedError(f"the interpreter does not know this assembly: {text}")
    data = np.broadcast_arrays(*(x.data for x in tensors))
    layout = next((x.layout for x in tensors if x.shape == data[0].shape), None)
    return Tensor(_MEANING[text](*data), dtype, layout)


def _same(x: NDArray) -> NDArray:
    return x


def _written_out(x: NDArray) -> NDArray:
    store_wait(0)
    current().write_out()
    return x


def _relu(x: NDArray) -> NDArray:
    return rounded(np.maximum(x, np.float32(0)))


def _relu_backward(grad: NDArray, out: NDArray) -> NDArray:
    return rounded(grad) * (out > 0)


def _inverse(x: NDArray) -> NDArray:
    return flushed(1 / flushed(x))


def _sigmoid(x: NDArray) -> NDArray:
    return _inverse(flushed(np.exp2(x * _MINUS_LOG2E)) + 1)


def _open_gate(logit: NDArray, bias: NDArray, inverse_mask: NDArray) -> NDArray:
    power = flushed(np.exp2(logit * _MINUS_LOG2E + bias))
    return _inverse(power * inverse_mask + inverse_mask)


def _masked(x: NDArray, mask: NDArray) -> NDArray:
    """Of bfloat16 and int16."""
    bits = to_memory(x, tl.bfloat16) & mask.view(np.uint16)
    return from_memory(bits, tl.bfloat16)


def _quads_turned(x: NDArray) -> NDArray:
    """(..., 4, 4 threads, pair): what threads hold, and which holds it, change places."""
    return np.ascontiguousarray(x.swapaxes(-3, -2))


_MEANING: dict[str, Callable[..., Any]] = {
    " ".join(text.split()): function
    for text, function in {
        "mov.b32 $0, $1;": _same,
        "cp.async.bulk.wait_group 0; mov.b32 $0, $1;": _written_out,
        # bfloat16 to float32
        "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;": _same,
        "and.b32 $0, $1, $2;": _masked,
        "cvt.rn.relu.bf16x2.f32 $0, $2, $1;": _relu,
        """{
        .reg .b32 g, m, zero;
        mov.b32 zero, 0;
        cvt.rn.bf16x2.f32 g, $2, $1;
        set.gt.bf16x2.bf16x2 m, $3, zero;
        mul.rn.bf16x2 $0, g, m;
        }""": _relu_backward,
        "lg2.approx.ftz.f32 $0, $1;": lambda x: np.log2(flushed(x)),
        "rcp.approx.ftz.f32 $0, $1;": _inverse,
        """{
        .reg .f32 t;
        mul.f32 t, $1, 0fBFB8AA3B;
        ex2.approx.ftz.f32 t, t;
        add.f32 t, t, 0f3F800000;
        rcp.approx.ftz.f32 $0, t;
        }""": _sigmoid,
        """{
        .reg .f32 t;
        fma.rn.f32 t, $1, 0fBFB8AA3B, $2;
        ex2.approx.ftz.f32 t, t;
        fma.rn.f32 t, t, $3, $3;
        rcp.approx.ftz.f32 $0, t;
        }""": _open_gate,
        """{
        .reg .b32 x;
        .reg .pred odd, upper;
        mov.u32 x, %laneid;
        and.b32 x, x, 1;
        setp.ne.u32 odd, x, 0;
        mov.u32 x, %laneid;
        and.b32 x, x, 2;
        setp.ne.u32 upper, x, 0;
        selp.b32 x, $4, $5, odd;
        shfl.sync.bfly.b32 x, x, 1, 31, 0xffffffff;
        selp.b32 $0, x, $4, odd;
        selp.b32 $1, $5, x, odd;
        selp.b32 x, $6, $7, odd;
        shfl.sync.bfly.b32 x, x, 1, 31, 0xffffffff;
        selp.b32 $2, x, $6, odd;
        selp.b32 $3, $7, x, odd;
        selp.b32 x, $0, $2, upper;
        shfl.sync.bfly.b32 x, x, 2, 31, 0xffffffff;
        selp.b32 $0, x, $0, upper;
        selp.b32 $2, $2, x, upper;
        selp.b32 x, $1, $3, upper;
        shfl.sync.bfly.b32 x, x, 2, 31, 0xffffffff;
        selp.b32 $1, x, $1, upper;
        selp.b32 $3, $3, x, upper;
        }""": _quads_turned,
    }.items()
}
