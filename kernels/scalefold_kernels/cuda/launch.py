"""A kernel in CUDA C++: loaded into the driver at first use, launched on torch's stream."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import addressof, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scalefold_kernels.cuda.bindings import checked, ensure_context
from scalefold_kernels.cuda.compiler import compiled


@dataclass(frozen=True)
class Kernel:
    """An ``extern "C"`` function of a file, and what its programs need.

    Attributes
    ----------
    source : Path
        May include nothing: the compiler is given no folders.
    name : str
    threads : int
        Of a program.
    shared_bytes : int
        Dynamic shared memory of a program.
    together : bool
        Programs wait for each other, so that all have to be on the GPU at a time.
    """

    source: Path
    name: str
    threads: int
    shared_bytes: int = 0
    together: bool = False

    def launch(
        self, programs: tuple[int, int], constants: Mapping[str, int], *arguments: Any
    ) -> None:
        """Put it on torch's current stream, of the current device.

        Parameters
        ----------
        programs : tuple of int
            Blocks of the grid in its first two dimensions.
        constants : mapping
            Macros of the file.
        arguments
            In the function's order: a tensor or None is a pointer, an int an ``int``, a float a
            ``float``, a tuple of int (strides) as many ``long long``, a descriptor (`tensor_map`)
            its 128 bytes.

        Raises
        ------
        RuntimeError
            The driver takes no such launch, or more programs wait for each other than it has
            places for.
        """
        from cuda.bindings import driver

        device = torch.cuda.current_device()
        ensure_context(device)
        function = self._function(tuple(sorted(constants.items())), device)
        values = [value for x in arguments for value in values_of(x)]
        addresses = (c_void_p * len(values))(*map(_address, values))
        stream = torch.cuda.current_stream(device).cuda_stream
        grid, block = (*programs, 1), (self.threads, 1, 1)
        common = (function, *grid, *block, self.shared_bytes, stream, addressof(addresses))
        if not self.together:
            checked(driver.cuLaunchKernel(*common, 0))
            return
        (status,) = driver.cuLaunchCooperativeKernel(*common)
        if status == driver.CUresult.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE:
            raise RuntimeError(
                f"{self.name}: its {programs[0] * programs[1]} programs wait for each other, and "
                f"{torch.cuda.get_device_name(device)} does not hold as many at a time"
            )
        checked((status,))

    @property
    def is_loaded(self) -> bool:
        """Whether this process has launched it."""
        return any(kernel == self for kernel, _, _ in _functions)

    def _function(self, constants: tuple[tuple[str, int], ...], device: int) -> Any:
        """The driver's, compiled and loaded if it is not there yet."""
        key = self, constants, device
        if key not in _functions:
            _functions[key] = _loaded(self, compiled(self.source, dict(constants)))
        return _functions[key]


_functions: dict[tuple[Kernel, tuple[tuple[str, int], ...], int], Any] = {}


def _loaded(kernel: Kernel, cubin: bytes) -> Any:
    """A function on the current device, allowed its dynamic shared memory."""
    from cuda.bindings import driver

    module = checked(driver.cuModuleLoadData(cubin))
    function = checked(driver.cuModuleGetFunction(module, kernel.name.encode()))
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    checked(driver.cuFuncSetAttribute(function, attribute, kernel.shared_bytes))
    return function


def values_of(argument: Any) -> list[Any]:
    """An argument as the function takes it, in memory."""
    if argument is None:
        return [c_void_p(None)]
    if isinstance(argument, Tensor):
        return [c_void_p(argument.data_ptr())]
    if isinstance(argument, float):
        return [c_float(argument)]
    if isinstance(argument, int):
        if not -(2**31) <= argument < 2**31:
            raise OverflowError(f"{argument} is no int of 32 bits; strides go into tuples")
        return [c_int32(argument)]
    if isinstance(argument, tuple):
        return [c_int64(n) for n in argument]
    return [argument]


def _address(value: Any) -> int:
    # Descriptors are objects of cuda-bindings, all others of ctypes.
    return int(value.getPtr()) if hasattr(value, "getPtr") else addressof(value)
