"""Kernels in CUDA C++: compiled at first use, launched as Triton's are.

They need cuda-bindings and NVRTC, which torch's CUDA build brings; where these are missing, other
kernels serve (`bindings.obstacle` says what is missing).
"""

from scalefold_kernels.cuda.launch import Kernel

__all__ = ["Kernel"]
