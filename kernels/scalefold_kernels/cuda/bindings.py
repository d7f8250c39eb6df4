"""NVIDIA's Python bindings of the driver and of the compiler NVRTC, which need not be there."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def obstacle() -> str | None:
    """What keeps kernels in CUDA C++ from being compiled, or None."""
    try:
        from cuda.bindings import nvrtc

        checked(nvrtc.nvrtcVersion())
    except (ImportError, RuntimeError) as error:
        # A library that is not found is a RuntimeError of cuda-bindings.
        return (
            "kernels in CUDA C++ need cuda-bindings and NVRTC, which torch's CUDA build brings "
            f"(cuda-bindings, nvidia-cuda-nvrtc): {error}"
        )
    return None


def checked(results: tuple[Any, ...]) -> Any:
    """What a call gave beside its status.

    Raises
    ------
    RuntimeError
        The status is an error.
    """
    status, *values = results
    if int(status):
        raise RuntimeError(f"{type(status).__name__}.{status.name}")
    return values[0] if len(values) == 1 else tuple(values)


def ensure_context(device: int) -> None:
    """Make the device's context this thread's: autograd's threads begin without one."""
    from cuda.bindings import driver

    if not int(checked(driver.cuCtxGetCurrent())):
        checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(device))))
