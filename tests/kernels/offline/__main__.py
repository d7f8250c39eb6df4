"""``python -m tests.kernels.offline [OP ...]``: what every listed configuration needs.

Prints registers and shared memory for A100 and H100/H200, some for RTX 30; rc 1 if one does not
fit. ``--gluon``: only kernels in Gluon, which changes with Triton's version. ``--first``: the first
configuration of each kernel, for a version of Triton that is only looked at. ``--arch``: instead,
one configuration of each kernel for any GPU, for another GPU (sm_100, gfx942). ``--spills``: what
spills is printed and passes, for versions of Triton that nothing is tuned with.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from tests.kernels.offline.compilation import Resources, complaint
from tests.kernels.offline.configurations import OPS, compile_all, every_job, jobs_of_portable


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.kernels.offline")
    parser.add_argument("ops", nargs="*", metavar="OP", help="default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--gluon", action="store_true", help="only kernels for Hopper GPUs")
    parser.add_argument("--first", action="store_true", help="one configuration of each kernel")
    parser.add_argument("--arch", help="another GPU: sm_100 or gfx942")
    parser.add_argument("--spills", action="store_true", help="let them pass")
    options = parser.parse_args(arguments)
    if unknown := [op for op in options.ops if op not in OPS]:
        parser.exit(2, f"error: no op {', '.join(unknown)}; there are {', '.join(OPS)}\n")
    if options.arch is None:
        jobs = every_job(options.ops, gluon_alone=options.gluon, first_alone=options.first)
    else:
        jobs = jobs_of_portable(options.arch, options.ops)
    on_amd = str(options.arch).startswith("gfx")
    results = compile_all(jobs, options.processes, on_amd=on_amd)
    failures = 0
    for key, by_arch in results.items():
        for arch, result in by_arch.items():
            wrong = complaint(result, arch)
            failures += wrong is not None and not (options.spills and wrong.startswith("spills "))
            print(f"{arch}  {key:60}  {wrong or _line(result)}", flush=True)
    if options.json:
        plain = {
            key: {a: r if isinstance(r, str) else asdict(r) for a, r in by_arch.items()}
            for key, by_arch in results.items()
        }
        options.json.write_text(json.dumps(plain))
    return int(failures > 0)


def _line(result: Resources | str) -> str:
    assert isinstance(result, Resources)
    return f"{result.registers:4} registers, {result.shared_bytes:6} bytes shared memory"


if __name__ == "__main__":
    sys.exit(main())
