r"""Command line: ``run`` times kernels, ``check`` compares them with float64, ``tune``.

To search the kernels for illegal accesses and races, run ``check`` under NVIDIA's compute-sanitizer
(tools memcheck, synccheck; racecheck with ``--dtype fp32``), with each tensor an allocation of its
own::

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --launch-timeout 0 \
        --report-api-errors no --error-exitcode 1 \
        python -m scalefold_kernels.bench check --shape "odd sizes" N=256
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch

from scalefold_kernels import WITHOUT_TRITON
from scalefold_kernels.bench.case import chosen
from scalefold_kernels.bench.run import check, run
from scalefold_kernels.bench.tune import tune

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 1 where a kernel is wrong, 2 where nothing can be measured."""
    parser = _parser()
    given = parser.parse_args(arguments)
    dtype, device = _DTYPES[given.dtype], torch.device("cuda")
    try:
        if find_spec("triton") is None:
            raise LookupError(WITHOUT_TRITON)
        cases = import_module("scalefold_kernels.bench.cases").CASES
        cases = chosen(cases, given.op, given.shape, odd=given.command == "check")
        if not torch.cuda.is_available():
            # An interpreter's times mean nothing, and the tests compare its results.
            raise LookupError("kernels are measured on a GPU, and torch finds none")
        if given.command == "check":
            return 0 if check(cases, dtype, device) else 1
        if given.command == "run":
            return 0 if run(cases, dtype, device, given.out, given.compare) else 1
        for path in tune(cases, dtype, device, given.folder):
            print(path)
    except (LookupError, OSError) as error:
        parser.exit(2, f"error: {error.args[0] if isinstance(error, LookupError) else error}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scalefold_kernels.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (
        ("run", "check kernels, then time them beside other implementations"),
        ("check", "compare kernels with float64"),
        ("tune", "find the fastest tiles on this GPU, and write them into the tables"),
    ):
        command = commands.add_parser(name, help=words, description=words)
        command.add_argument("--op", nargs="+", default=[], help="only these ops")
        command.add_argument("--dtype", choices=_DTYPES, default="bf16")
        text = "only cases whose setting or shape holds one of these, such as N=256"
        command.add_argument("--shape", nargs="+", default=[], metavar="TEXT", help=text)
        if name == "run":
            command.add_argument("-o", "--out", type=Path, default=Path("kernels.json"))
            text = "also torch.compile, and other implementations that are installed"
            switch = argparse.BooleanOptionalAction
            command.add_argument("--compare", action=switch, default=True, help=text)
        if name == "tune":
            text = "for the tables; default: where kernels read them"
            command.add_argument("--folder", type=_folder, help=text)
    return parser


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder")
    return Path(text)


if __name__ == "__main__":
    sys.exit(main())
