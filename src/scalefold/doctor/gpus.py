"""GPUs of this node: driver, NCCL, and the bandwidth between them."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from scalefold.doctor.finding import Finding

_BYTES: Final = 256 * 2**20
_TIMES: Final = 10
_NVLINK_BYTES_PER_SECOND: Final = 100e9
"""PCIe does not reach it, and NVLink of data-centre GPUs exceeds it."""


def of_gpus() -> Iterator[Finding]:
    """Name, free memory, driver; with several GPUs NCCL, and their sum of a buffer."""
    count = torch.cuda.device_count()
    if count == 0:
        yield Finding("gpus", "none: a full model needs one; the tiny preset runs on CPUs")
        return
    for number in range(count):
        free, total = torch.cuda.mem_get_info(number)
        name = torch.cuda.get_device_name(number)
        used = 1 - free / total
        others = f", {used:.0%} used by others" if used > 0.1 else ""
        yield Finding(f"gpu {number}", f"{name}, {total / 2**30:.0f} GiB{others}")
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    yield Finding("driver", f"{_driver()}, CUDA {torch.version.cuda}, NCCL {nccl}")
    if count > 1:
        yield _links(count)


def _links(count: int) -> Finding:
    try:
        speed = sum_bandwidth(count, "cuda")
    except Exception as error:  # whatever torch or NCCL raises in a process
        reason = str(error).strip().splitlines()[-1]
        return Finding("links", f"the {count} GPUs cannot exchange: {reason}", wrong=True)
    kind = "NVLink" if speed > _NVLINK_BYTES_PER_SECOND else "no NVLink: parallel.dap slows down"
    return Finding("links", f"{count} GPUs sum up at {speed / 1e9:.0f} GB/s ({kind})")


def sum_bandwidth(processes: int, device: str, num_bytes: int = _BYTES) -> float:
    """Bytes a second on each process's links, while all sum up a buffer.

    Parameters
    ----------
    processes : int
        They are started, and end.
    device : str
        ``cuda``, of which each has its own, or ``cpu``.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_summed, (processes, device, num_bytes, folder), processes)
        seconds = float(Path(folder, "seconds").read_text())
    return 2 * (processes - 1) / processes * num_bytes / seconds


def _summed(rank: int, processes: int, device: str, num_bytes: int, folder: str) -> None:
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    store = dist.FileStore(str(Path(folder, "store")), processes)
    limit = timedelta(seconds=60)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=processes, timeout=limit
    )
    buffer = torch.zeros(num_bytes // 4, device=device)
    times = []
    for _ in range(_TIMES):
        dist.barrier()
        started = time.perf_counter()
        dist.all_reduce(buffer)
        if on_gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    if rank == 0:
        Path(folder, "seconds").write_text(str(min(times)))
    dist.barrier()
    dist.destroy_process_group()


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "version not known"
    return done.stdout.strip()
