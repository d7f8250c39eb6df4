"""Kernels of ScaleFold, one folder an operation. Imports torch and triton, in `cuda` NVIDIA's too.

``scalefold.ops`` is the only importer of this package.
"""

from typing import Final

WITHOUT_TRITON: Final = (
    "the kernels need Triton, which is not installed: torch's CUDA build brings it, and `make "
    "developer-environment` installs it beside the CPU build"
)
"""What commands say instead of a traceback."""
