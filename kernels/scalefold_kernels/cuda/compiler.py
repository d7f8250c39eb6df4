"""CUDA C++ to machine code for Hopper GPUs, by NVRTC, once: Triton's cache keeps it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from triton.runtime.cache import get_cache_manager

from scalefold_kernels.cuda.bindings import checked

OPTIONS = ("--gpu-architecture=sm_90a", "--std=c++17")
"""The "a": with the products of warp groups, which no other GPU has."""


def compiled(source: Path, constants: Mapping[str, int]) -> bytes:
    """Machine code (cubin) of all kernels of a file, the constants defined as macros.

    Raises
    ------
    RuntimeError
        The file does not compile; the compiler's messages are in the error.
    """
    from cuda.bindings import nvrtc

    code = source.read_bytes()
    options = [
        *OPTIONS,
        *(f"--define-macro={name}={x}" for name, x in sorted(constants.items())),
    ]
    version = checked(nvrtc.nvrtcVersion())
    key = hashlib.sha256(repr((code, options, version)).encode()).hexdigest()
    # As Triton's own: whole files appear, or none, so that processes may compile at the same time.
    cache, name = get_cache_manager(key), f"{source.stem}.cubin"
    path = cache.get_file(name)
    if path is None:
        path = cache.put(_compiled(source.name, code, options), name)
    return Path(path).read_bytes()


def _compiled(name: str, code: bytes, options: list[str]) -> bytes:
    from cuda.bindings import nvrtc

    program = checked(nvrtc.nvrtcCreateProgram(code, name.encode(), 0, None, None))
    try:
        encoded = [option.encode() for option in options]
        try:
            checked(nvrtc.nvrtcCompileProgram(program, len(encoded), encoded))
        except RuntimeError as error:
            log = bytes(checked(nvrtc.nvrtcGetProgramLogSize(program)))
            checked(nvrtc.nvrtcGetProgramLog(program, log))
            raise RuntimeError(f"{name}: {error}\n{log.decode().rstrip(chr(0))}") from error
        cubin = bytes(checked(nvrtc.nvrtcGetCUBINSize(program)))
        checked(nvrtc.nvrtcGetCUBIN(program, cubin))
        return cubin
    finally:
        checked(nvrtc.nvrtcDestroyProgram(program))
