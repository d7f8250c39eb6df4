"""Tensors in registers: numbers and blocks of them, with Triton's rules of types."""

from __future__ import annotations

import numbers as python_numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from tests.kernels.gluon_interpreter.faults import KernelError
from tests.kernels.gluon_interpreter.numbers import (
    MEMORY,
    REGISTERS,
    cast,
    from_memory,
    itemsize,
    to_memory,
)
from triton.experimental.gluon import language as gl
from triton.language.semantic import TritonSemantic

_semantic = TritonSemantic(None)


@dataclass(frozen=True)
class Inferred:
    """Layout that the compiler infers: of what is reshaped or permuted. Nobody looks into it."""

    rank: int


class Type(NamedTuple):
    """What kernels ask of a tensor's type."""

    scalar: tl.dtype
    shape: tuple[int, ...]
    layout: Any

    @property
    def element_ty(self) -> tl.dtype:
        return self.scalar


class Tensor:
    """Immutable. ``layout`` is carried for those who ask, and moves nothing.

    Pointers are addresses in int64, their dtype a `tl.pointer_type`.
    """

    __slots__ = ("data", "dtype", "layout")
    __array_ufunc__ = None  # numpy's numbers leave operators to this class

    def __init__(self, data: Any, dtype: tl.dtype, layout: Any = None) -> None:
        self.data = np.asarray(data, np.int64 if dtype.is_ptr() else REGISTERS[dtype])
        self.dtype = dtype
        self.layout = layout

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def type(self) -> Type:
        return Type(self.dtype, self.shape, self.layout)

    def __repr__(self) -> str:
        return f"{self.dtype}{list(self.shape)}: {self.data}"

    def waited_for(self) -> Tensor:
        """After a wait for products; this is none, or one that is done."""
        return self

    def with_data(self, data: NDArray, layout: Any = None) -> Tensor:
        """Of the same type; the layout is inferred where none is given."""
        return Tensor(data, self.dtype, Inferred(data.ndim) if layout is None else layout)

    def __bool__(self) -> bool:
        self._check_number("a condition")
        return bool(self.data)

    def __index__(self) -> int:
        self._check_number("an index")
        return int(self.data)

    def _check_number(self, what: str) -> None:
        if self.shape:
            raise TypeError(f"a block {list(self.shape)} is no {what}; a number is wanted")

    def to(self, dtype: tl.dtype, bitcast: bool = False) -> Tensor:
        if dtype.is_ptr() or self.dtype.is_ptr():
            return Tensor(self.data, dtype, self.layout)
        if bitcast:
            bits = to_memory(self.data, self.dtype).view(MEMORY[dtype])
            return Tensor(from_memory(bits, dtype), dtype, self.layout)
        return Tensor(cast(self.data, dtype), dtype, self.layout)

    def __getitem__(self, key: Any) -> Tensor:
        keys = key if isinstance(key, tuple) else (key,)
        if not all(k is None or k == slice(None) for k in keys):
            raise TypeError(f"blocks take None and : as indices, not {key}")
        result = self
        for axis, k in enumerate(keys):
            if k is None:
                result = result.expand_dims(axis)
        return result

    def expand_dims(self, axis: int) -> Tensor:
        axis %= len(self.shape) + 1
        layout = self.layout
        known = isinstance(layout, gl.SliceLayout)
        if known and layout.dim != axis:
            raise TypeError(f"dimension {axis} is put where {layout} lacks dimension {layout.dim}")
        return self.with_data(np.expand_dims(self.data, axis), layout.parent if known else None)

    def reshape(self, *shape: Any) -> Tensor:
        return self.with_data(self.data.reshape(_sizes(shape)))

    def permute(self, *order: Any) -> Tensor:
        return self.with_data(self.data.transpose(_sizes(order)))

    def broadcast_to(self, *shape: Any) -> Tensor:
        return self.with_data(np.broadcast_to(self.data, _sizes(shape)), self.layout)

    def __neg__(self) -> Tensor:
        return Tensor(-self.data, self.dtype, self.layout)

    def __add__(self, other: Any) -> Tensor:
        if isinstance(other, Tensor) and other.dtype.is_ptr():
            return offset(other, self)
        return offset(self, other) if self.dtype.is_ptr() else binary(np.add, self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Tensor:
        return offset(self, -other) if self.dtype.is_ptr() else binary(np.subtract, self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return binary(np.subtract, other, self)

    def __mul__(self, other: Any) -> Tensor:
        return binary(np.multiply, self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Tensor:
        return _divide(self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return _divide(other, self)

    def __floordiv__(self, other: Any) -> Tensor:
        return binary(_quotient, self, other, division=True)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return binary(_quotient, other, self, division=True)

    def __mod__(self, other: Any) -> Tensor:
        return binary(_remainder, self, other, division=True)

    def __rmod__(self, other: Any) -> Tensor:
        return binary(_remainder, other, self, division=True)

    def __and__(self, other: Any) -> Tensor:
        return binary(np.bitwise_and, self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Tensor:
        return binary(np.bitwise_or, self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Tensor:
        return binary(np.bitwise_xor, self, other)

    __rxor__ = __xor__

    def __lshift__(self, other: Any) -> Tensor:
        return binary(np.left_shift, self, other)

    def __rlshift__(self, other: Any) -> Tensor:
        return binary(np.left_shift, other, self)

    def __rshift__(self, other: Any) -> Tensor:
        return binary(np.right_shift, self, other)

    def __lt__(self, other: Any) -> Tensor:
        return binary(np.less, self, other, result=tl.int1)

    def __le__(self, other: Any) -> Tensor:
        return binary(np.less_equal, self, other, result=tl.int1)

    def __gt__(self, other: Any) -> Tensor:
        return binary(np.greater, self, other, result=tl.int1)

    def __ge__(self, other: Any) -> Tensor:
        return binary(np.greater_equal, self, other, result=tl.int1)

    def __eq__(self, other: Any) -> Tensor:  # type: ignore[override]
        return binary(np.equal, self, other, result=tl.int1)

    def __ne__(self, other: Any) -> Tensor:  # type: ignore[override]
        return binary(np.not_equal, self, other, result=tl.int1)

    __hash__ = None


def _sizes(given: Sequence[Any]) -> tuple[int, ...]:
    """Of a shape or an order, given as one argument or as several."""
    return tuple(map(int, given[0] if len(given) == 1 and not _is_number(given[0]) else given))


def _is_number(x: Any) -> bool:
    return isinstance(x, python_numbers.Number)


def constant_type(x: Any) -> tl.dtype:
    """Of a number of Python's."""
    if isinstance(x, bool):
        return tl.int1
    if isinstance(x, float):
        return tl.float32
    limits = (31, tl.int32), (32, tl.uint32), (63, tl.int64)
    return next((dtype for bits, dtype in limits if -(2**31) <= x < 2**bits), tl.int64)


def to_tensor(x: Any) -> Tensor:
    return x if isinstance(x, Tensor) else Tensor(x, constant_type(x))


@cache
def _common_type(
    x: tl.dtype, x_constant: bool, y: tl.dtype, y_constant: bool, division: bool
) -> tl.dtype:
    return _semantic.computation_type_impl(x, x_constant, y, y_constant, division)


def promoted(x: Any, y: Any, division: bool = False) -> tuple[Tensor, Tensor]:
    """Both as the type that Triton computes with."""
    constants = _is_number(x), _is_number(y)
    types = [constant_type(v) if c else v.dtype for v, c in zip((x, y), constants, strict=True)]
    if types[0].is_ptr() or types[1].is_ptr():
        if types[0] != types[1]:
            raise TypeError(f"{types[0]} and {types[1]}: only pointers of one type go together")
        return x, y
    dtype = _common_type(types[0], constants[0], types[1], constants[1], division)
    left, right = (
        Tensor(v, dtype) if c and dtype != tl.bfloat16 else to_tensor(v).to(dtype)
        for v, c in zip((x, y), constants, strict=True)
    )
    if left.shape and right.shape and len(left.shape) != len(right.shape):
        raise TypeError(f"blocks {left.shape} and {right.shape} have other numbers of dimensions")
    return left, right


def binary(
    function: Callable[[NDArray, NDArray], NDArray],
    x: Any,
    y: Any,
    division: bool = False,
    result: tl.dtype | None = None,
) -> Tensor:
    """A function of two numbers at a time."""
    left, right = promoted(x, y, division)
    dtype = left.dtype if result is None else result
    data = function(left.data, right.data)
    layout = left.layout if left.shape else right.layout
    return Tensor(cast(data, dtype) if dtype == tl.bfloat16 else data, dtype, layout)


def unary(function: Callable[[NDArray], NDArray], x: Any) -> Tensor:
    """A function of one number at a time."""
    x = to_tensor(x)
    return Tensor(cast(function(x.data), x.dtype), x.dtype, x.layout)


def offset(pointer: Tensor, steps: Any) -> Tensor:
    """A pointer and a number of elements."""
    steps = to_tensor(steps)
    at = pointer.data + steps.data.astype(np.int64) * itemsize(pointer.dtype.element_ty)
    return Tensor(at, pointer.dtype, pointer.layout if pointer.shape else steps.layout)


def _divide(x: Any, y: Any) -> Tensor:
    left, right = promoted(x, y, division=True)
    if not left.dtype.is_floating():
        left, right = left.to(tl.float32), right.to(tl.float32)
    return binary(np.divide, left, right)


def _quotient(x: NDArray, y: NDArray) -> NDArray:
    """Rounded towards 0, as C has it."""
    return (x - _remainder(x, y)) // y


def _remainder(x: NDArray, y: NDArray) -> NDArray:
    if not np.all(y):
        raise KernelError("division by zero")
    return np.fmod(x, y)
