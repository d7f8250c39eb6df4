"""Kernels run in Triton's interpreter where there is no GPU; ``gpu`` tests need one.

The interpreter (switched on in tests/conftest.py) executes a kernel's program blocks one after the
other in numpy. bfloat16 products are wrong in it, so what needs bfloat16 is marked ``gpu``.
"""

from collections.abc import Iterator

import pytest
import torch

GPU = torch.cuda.is_available()
triton = pytest.importorskip("triton", reason="Triton is not installed")
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


if not GPU:
    _index_of_one_element()


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
