"""Functions of Gluon, the level below Triton, under one short name in all versions.

They are Triton's own functions, so that the compiled code is the same. Which versions there are is
in `gpu.GLUON_VERSIONS`.
"""

from typing import Any

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper


def _first(where: Any, *names: str) -> Any:
    """The first of these attributes that exists."""
    return getattr(where, next(name for name in names if hasattr(where, name)))


thread_barrier = _first(gl, "barrier", "thread_barrier")
"""Wait until all threads of the CTA are here; named ``thread_barrier`` until 3.6."""

async_load = _first(hopper.tma, "async_load", "async_copy_global_to_shared")
"""Copy a tile to shared memory by TMA; the long name until 3.7."""

async_store = _first(hopper.tma, "async_store", "async_copy_shared_to_global")
"""Copy a tile from shared memory by TMA; the long name until 3.7."""

reinterpret = _first(gl.shared_memory_descriptor, "reinterpret", "_reinterpret")
"""Shared memory as one of another type, shape and layout; without a public name until 3.8."""

mma, mma_wait = hopper.warpgroup_mma, hopper.warpgroup_mma_wait
"""Matrix product of a warp group, and the wait for those under way; the same in all versions."""
