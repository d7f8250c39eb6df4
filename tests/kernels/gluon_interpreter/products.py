"""Matrix products: of a warp group (``wgmma``), which go on meanwhile; of single warps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from tests.kernels.gluon_interpreter.faults import KernelError
from tests.kernels.gluon_interpreter.program import current
from tests.kernels.gluon_interpreter.shared_memory import SharedMemory
from tests.kernels.gluon_interpreter.tensor import Tensor


class Unfinished(Tensor):
    """The result of a product that is under way: none but another product can add to it."""

    def __init__(
        self, a: Tensor | SharedMemory, b: SharedMemory, start: Tensor, added: bool
    ) -> None:
        self._a, self._b, self._start, self._added = a, b, start, added
        self._result: NDArray | None = None
        self.dtype, self.layout = start.dtype, start.layout
        for operand in self._in_memory():
            operand.read("a product")
            operand.check_fenced("a product")
            operand.add_reader()
        if self.dtype != tl.float32 or a.dtype != b.dtype or a.dtype != tl.bfloat16:
            raise NotImplementedError(f"{a.dtype} times {b.dtype} as {self.dtype}")
        if (a.shape[0], b.shape[1]) != self.shape or a.shape[1] != b.shape[0]:
            raise TypeError(f"{a.shape} times {b.shape} is not {self.shape}")

    @property
    def shape(self) -> tuple[int, ...]:
        return self._start.shape

    @property
    def data(self) -> NDArray:  # type: ignore[override]
        raise KernelError("the result of a product is used while it is under way")

    def _in_memory(self) -> list[SharedMemory]:
        return [x for x in (self._a, self._b) if isinstance(x, SharedMemory)]

    def finish(self) -> None:
        a = self._a.data if isinstance(self._a, Tensor) else self._a.values()
        product = a @ self._b.values()
        if self._added:
            product += self._start.waited_for().data
        self._result = product
        for operand in self._in_memory():
            operand.remove_reader()

    def waited_for(self) -> Tensor:
        """What it is after a wait: a tensor, if it is done."""
        return self if self._result is None else Tensor(self._result, self.dtype, self.layout)


def warpgroup_mma(
    a: Any,
    b: SharedMemory,
    acc: Tensor,
    *,
    use_acc: Any = True,
    precision: Any = None,
    max_num_imprecise_acc: Any = None,
    is_async: bool = False,
) -> Any:
    product = Unfinished(a, b, acc, bool(use_acc))
    current().running.products.append(product)
    return product if is_async else warpgroup_mma_wait(0, [product])


def warpgroup_mma_wait(num_outstanding: int = 0, deps: Sequence[Tensor] = ()) -> Any:
    """Until all but so many of this partition's products are done; their results."""
    products = current().running.products
    while len(products) > num_outstanding:
        products.popleft().finish()
    results = tuple(x.waited_for() for x in deps)
    return results[0] if len(results) == 1 else results


def mma_v2(a: Tensor, b: Tensor, acc: Tensor, input_precision: Any = None) -> Tensor:
    """Of one warp, in registers."""
    return acc.with_data(np.matmul(a.data, b.data) + acc.data, acc.layout)
