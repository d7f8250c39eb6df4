"""Which of the kernels have run in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator


def launched_kernels() -> list[str]:
    """``<package>.<module>.<kernel>`` of each that has been launched, on any device."""
    return sorted(set(_launched()))


def _launched() -> Iterator[str]:
    if "scalefold_kernels" not in sys.modules:
        return
    from triton.runtime.jit import JITFunction

    ours = [m for name, m in sys.modules.items() if name.startswith("scalefold_kernels.")]
    for value in (value for module in ours for value in vars(module).values()):
        # Functions that kernels call are such objects too, but have nothing compiled of their own.
        if isinstance(value, JITFunction) and any(c[0] for c in value.device_caches.values()):
            yield f"{value.fn.__module__.removeprefix('scalefold_kernels.')}.{value.fn.__name__}"
