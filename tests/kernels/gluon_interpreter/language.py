"""What kernels call ``gl`` (and ``tl``), as far as kernels of this package use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from tests.kernels.gluon_interpreter import barriers, copies
from tests.kernels.gluon_interpreter.assembly import inline_asm_elementwise
from tests.kernels.gluon_interpreter.numbers import cast
from tests.kernels.gluon_interpreter.partitions import Partition
from tests.kernels.gluon_interpreter.products import mma_v2, warpgroup_mma, warpgroup_mma_wait
from tests.kernels.gluon_interpreter.program import current
from tests.kernels.gluon_interpreter.shared_memory import UNFENCED, SharedMemory
from tests.kernels.gluon_interpreter.tensor import Tensor, binary, promoted, to_tensor, unary
from triton.experimental.gluon import language as gl

from scalefold_kernels import compiler


def loop_range(*bounds: Any) -> Iterator[Tensor]:
    """``range`` in a kernel: its numbers are tensors, whatever the bounds are."""
    dtype = tl.int32
    if any(isinstance(x, Tensor) and x.dtype == tl.int64 for x in bounds):
        dtype = tl.int64
    return (Tensor(i, dtype) for i in range(*map(int, bounds)))


def program_id(axis: int) -> Tensor:
    return Tensor(current().index[axis], tl.int32)


def num_programs(axis: int) -> Tensor:
    return Tensor(current().grid[axis], tl.int32)


def arange(start: int, end: int, layout: Any = None) -> Tensor:
    return Tensor(np.arange(start, end), tl.int32, layout)


def full(shape: Sequence[int], value: Any, dtype: tl.dtype, layout: Any = None) -> Tensor:
    number = to_tensor(value).to(dtype)
    return Tensor(np.broadcast_to(number.data, tuple(shape)), dtype, layout)


def zeros_like(x: Tensor) -> Tensor:
    return full(x.shape, 0, x.dtype, x.layout)


def where(condition: Any, x: Any, y: Any) -> Tensor:
    condition, (left, right) = to_tensor(condition), promoted(x, y)
    data = np.where(condition.data, left.data, right.data)
    layout = next((t.layout for t in (condition, left, right) if t.shape), None)
    return Tensor(data, left.dtype, layout)


def minimum(x: Any, y: Any) -> Tensor:
    return binary(np.fmin, x, y)


def maximum(x: Any, y: Any) -> Tensor:
    return binary(np.fmax, x, y)


def cdiv(x: Any, y: Any) -> Any:
    return (x + (y - 1)) // y


def _reduced(function: Callable[..., NDArray], x: Tensor, axis: int) -> Tensor:
    if x.dtype == tl.bfloat16 or (x.dtype.is_int() and x.dtype.int_bitwidth < 32):
        raise NotImplementedError(f"a reduction of {x.dtype}")
    data = function(x.data, axis=axis)
    return Tensor(data, x.dtype, gl.SliceLayout(axis, x.layout) if data.ndim else None)


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    return x.reshape(shape)


def permute(x: Tensor, order: Sequence[int]) -> Tensor:
    return x.permute(order)


def expand_dims(x: Tensor, axis: int) -> Tensor:
    return x.expand_dims(axis)


def join(x: Tensor, y: Tensor) -> Tensor:
    return x.with_data(np.stack(np.broadcast_arrays(x.data, y.data), -1))


def split(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.with_data(x.data[..., 0]), x.with_data(x.data[..., 1])


def convert_layout(x: Tensor, layout: Any, assert_trivial: bool = False) -> Tensor:
    return x.with_data(x.data, layout)


def load(pointer: Tensor, mask: Any = None, other: Any = None) -> Tensor:
    dtype = pointer.dtype.element_ty
    mask = None if mask is None else to_tensor(mask).data
    other = None if other is None else cast(to_tensor(other).data, dtype)
    shape = pointer.shape if mask is None else np.broadcast_shapes(pointer.shape, mask.shape)
    addresses = np.broadcast_to(pointer.data, shape)
    data = current().memory.load(addresses, dtype, mask, other)
    return Tensor(data, dtype, pointer.layout)


def store(pointer: Tensor, value: Any, mask: Any = None) -> None:
    dtype = pointer.dtype.element_ty
    data = to_tensor(value).to(dtype).data
    mask = None if mask is None else to_tensor(mask).data
    shapes = [x.shape for x in (pointer.data, data, mask) if x is not None]
    addresses = np.broadcast_to(pointer.data, np.broadcast_shapes(*shapes))
    current().memory.store(addresses, dtype, data, mask)


def allocate_shared_memory(dtype: tl.dtype, shape: Sequence[int], layout: Any) -> SharedMemory:
    return SharedMemory.new(dtype, shape, layout)


def fence_async_shared(cluster: bool = False) -> None:
    running = current().running
    for memory in running.unfenced:
        memory.unmark(UNFENCED)
    running.unfenced.clear()


def num_warps() -> int:
    return current().running.num_warps


def warp_specialize(
    functions_and_args: Sequence[tuple[Callable[..., Any], Sequence[Any]]],
    worker_num_warps: Sequence[int],
    worker_num_regs: Sequence[int],
) -> Any:
    """Run all of them, the first in the place of the partition that is here."""
    program = current()
    workers = [
        Partition(f"partition {n}", warps) for n, warps in enumerate(worker_num_warps, start=1)
    ]
    functions = [partial(function, *args) for function, args in functions_and_args]
    pairs = list(zip([program.running, *workers], functions, strict=True))
    result = program.partitions.run(pairs)
    program.ended += workers
    return result


def static_assert(condition: bool, message: str = "") -> None:
    assert condition, message


def _as_it_is(x: Any, *hints: Any) -> Any:
    return x


def _nothing(*args: Any, **options: Any) -> None:
    """Threads of a partition are one thread here."""


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        program_id, num_programs, arange, full, zeros_like, where, minimum, maximum, cdiv, reshape,
        permute, expand_dims, join, split, convert_layout, load, store, allocate_shared_memory,
        num_warps, warp_specialize, static_assert, to_tensor, inline_asm_elementwise,
        fence_async_shared, warpgroup_mma, warpgroup_mma_wait, mma_v2,
    )
} | {
    "sum": partial(_reduced, np.sum),
    "max": partial(_reduced, np.max),
    "min": partial(_reduced, np.min),
    "exp2": partial(unary, np.exp2),
    "sqrt_rn": partial(unary, np.sqrt),
    "rsqrt": partial(unary, lambda x: 1 / np.sqrt(x)),
    "static_range": range,
    "multiple_of": _as_it_is,
    "max_contiguous": _as_it_is,
    "max_constancy": _as_it_is,
}  # fmt: skip


class Language:
    """``gl`` and ``tl``: functions of this file; types and layouts as they are."""

    tensor = Tensor

    def __getattr__(self, name: str) -> Any:
        if name in _FUNCTIONS:
            return _FUNCTIONS[name]
        real = getattr(gl, name, None)
        if isinstance(real, tl.dtype) or (isinstance(real, type) and name.endswith("Layout")):
            return real
        if name == "pointer_type":
            return tl.pointer_type
        raise AttributeError(f"the interpreter has no gl.{name}")


MODULES: dict[str, Any] = {
    "triton.language": Language(),
    "triton.experimental.gluon.language": Language(),
    "triton.experimental.gluon.language.nvidia.hopper.tma": SimpleNamespace(
        store_wait=copies.store_wait,
    ),
    "triton.experimental.gluon.language.nvidia.hopper.mbarrier": SimpleNamespace(
        MBarrierLayout=gl.nvidia.hopper.mbarrier.MBarrierLayout,
        init=barriers.init,
        invalidate=barriers.invalidate,
        expect=barriers.expect,
        arrive=barriers.arrive,
        wait=barriers.wait,
    ),
}
"""What stands for a module in a kernel."""


_OF_VERSIONS: dict[Any, Callable[..., Any]] = {
    compiler.async_load: copies.async_load,
    compiler.async_store: copies.async_store,
    compiler.reinterpret: SharedMemory.reinterpret,
    compiler.thread_barrier: _nothing,
}
"""What stands for functions whose names differ between versions of Triton."""


def builtin(function: Any) -> Callable[..., Any]:
    """What stands for one of Triton's own functions, imported by its name."""
    found = _OF_VERSIONS.get(function) or _FUNCTIONS.get(function.__name__)
    if found is None:
        raise NotImplementedError(f"the interpreter does not know {function.__name__}")
    return found
