"""Kernels run in Triton's interpreter where there is no GPU; ``gpu`` tests need one.

The interpreter (switched on in tests/conftest.py) executes a kernel's program blocks one after the
other in numpy. It has no arithmetic of bfloat16, so what needs that is marked ``gpu``; kernels that
round to it, or multiply matrices of it, run. Those for Hopper GPUs have an interpreter of their
own, `gluon_interpreter`.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

GPU = torch.cuda.is_available()
triton = pytest.importorskip("triton", reason="Triton is not installed")
import triton.language as tl  # noqa: E402
from tests.kernels.gluon_interpreter.numbers import rounded, to_memory  # noqa: E402
from triton.language.semantic import TritonSemantic  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

DEVICE = torch.device("cuda" if GPU else "cpu")


def _index_of_one_element() -> None:
    """Loops over run-time bounds: Triton 3.6 calls int() on an array of shape (1,).

    numpy 2.4 made that an error; the element itself is what is meant, as Triton 3.7 has it.
    """
    original = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: interpreter._LangPatchScope) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def _constants() -> None:
    """A constant times a tensor is a constant to Python; Triton 3.7 takes it for a number."""
    original = TritonSemantic.to_tensor

    def patched(self: Any, x: Any, check_type: bool = True) -> Any:
        return original(self, x.value if isinstance(x, tl.constexpr) else x, check_type)

    TritonSemantic.to_tensor = patched


def _bfloat16() -> None:
    """Triton cuts off what it should round, multiplies bits, and has no constants."""
    builder = interpreter.InterpreterBuilder
    cast, dot = builder.cast_impl, builder.create_dot

    def rounding_cast(self: Any, src: Any, dst_type: tl.dtype) -> Any:
        if (src.dtype.scalar, dst_type.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, src, dst_type)
        bits = to_memory(rounded(src.data), tl.bfloat16)
        return interpreter.TensorHandle(bits, tl.bfloat16)

    def wide_dot(self: Any, a: Any, b: Any, *others: Any) -> Any:
        def wide(x: Any) -> Any:
            return cast(self, x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x

        return dot(self, wide(a), wide(b), *others)

    def constant(self: Any, value: float) -> Any:
        return rounding_cast(self, self.get_fp32(value), tl.bfloat16)

    builder.cast_impl, builder.create_dot, builder.get_bf16 = rounding_cast, wide_dot, constant


def _language() -> None:
    """Each function that a kernel calls replaces Triton's own anew, for a quarter of the time."""
    patch, start = interpreter._patch_lang, interpreter.GridExecutor.__call__
    done: set[int] = set()

    def once(function: Any) -> interpreter._LangPatchScope:
        wanted = {id(x) for x in function.__globals__.values() if x is tl or x is tl.core}
        if wanted <= done:
            return interpreter._LangPatchScope()
        done.update(wanted)
        return patch(function)

    def grid(self: Any, *args: Any, **kwargs: Any) -> Any:
        done.clear()  # the kernel before has put them back
        return start(self, *args, **kwargs)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = once, grid


if not GPU:
    _language()
    _index_of_one_element()
    _constants()
    _bfloat16()


@pytest.fixture
def device() -> torch.device:
    """Where the kernels of a test run."""
    return DEVICE


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """New memory holds NaN, so that an element that a kernel leaves unwritten shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    # A deterministic training, made before in this process, switches it off.
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    assert torch.empty(1).isnan()
    yield
    torch.use_deterministic_algorithms(False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if GPU:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
