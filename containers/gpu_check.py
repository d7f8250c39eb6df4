"""Run inside the image: does torch reach the GPUs, and can Triton compile for them?

Under torchrun also: do all processes, on however many nodes, reach each other through NCCL?
Part of ``make container-check``; needs nothing of the repository.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import triton
import triton.language as tl


@triton.jit
def add_kernel(x, y, out, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < n
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total, mask=inside)


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit(
            f"torch {torch.__version__} (CUDA {torch.version.cuda}) sees no GPU. Was the image "
            "started with --nv (Apptainer) or --gpus all (Docker), and is the driver new enough?"
        )
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    major, minor = torch.cuda.get_device_capability()
    print(
        f"{torch.cuda.get_device_name()} (compute capability {major}.{minor}), torch "
        f"{torch.__version__}, CUDA {torch.version.cuda}, Triton {triton.__version__}"
    )
    check_matrix_product(device)
    check_triton(device)
    if "RANK" in os.environ:
        check_nccl(device)


def check_matrix_product(device: torch.device) -> None:
    """128 products of -1, 0 and 1: every sum of them is exact in bf16, so there is no tolerance."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-1, 2, (128, 128), generator=generator).float() for _ in range(2))
    found = a.to(device, torch.bfloat16) @ b.to(device, torch.bfloat16)
    _equal(found.float().cpu(), a @ b, "matrix product in bf16")


def check_triton(device: torch.device) -> None:
    """Compile a kernel and its launcher, and run it."""
    x, y = (torch.arange(1000.0, device=device) for _ in range(2))
    out = torch.full_like(x, float("nan"))
    add_kernel[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), block=256)
    _equal(out, x + y, "Triton kernel")


def check_nccl(device: torch.device) -> None:
    """Sum each rank's number over all processes."""
    dist.init_process_group("nccl", device_id=device)
    size = dist.get_world_size()
    number = torch.tensor([float(dist.get_rank())], device=device)
    dist.all_reduce(number)
    expected = torch.tensor([size * (size - 1) / 2], device=device)
    _equal(number, expected, f"NCCL over {size} processes")
    dist.destroy_process_group()


def _equal(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    if not torch.equal(found, expected):
        sys.exit(f"{what}: wrong result")
    print(f"{what}: right")


if __name__ == "__main__":
    main()
