"""All configurations that `tests.kernels.cases` lists, compiled by several processes."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib import import_module
from multiprocessing import get_context

import torch
from tests.kernels import cases
from tests.kernels.offline.case import CompileCase
from tests.kernels.offline.compilation import Resources, compile_offline
from triton.experimental.gluon._runtime import GluonJITFunction

OPS = sorted(module.name for module in pkgutil.iter_modules(cases.__path__))
"""Of which configurations are listed: the folders of kernels' ops, and ``sums``."""


def all_cases(ops: Iterable[str] = ()) -> dict[str, tuple[str, int]]:
    """``<op>: <case name>`` of every listed configuration -> (op, place in its list)."""
    found: dict[str, tuple[str, int]] = {}
    for op in sorted(set(ops) or OPS):
        for place, case in enumerate(cases_of(op)):
            key = f"{op}: {case.name}"
            if key in found:
                raise ValueError(f"two configurations are called {key!r}")
            found[key] = op, place
    return found


@cache
def cases_of(op: str) -> Sequence[CompileCase]:
    """All configurations of an op, in the same order in each process."""
    found: Callable[[], Iterable[CompileCase]]
    found = import_module(f"tests.kernels.cases.{op}").compile_cases
    return tuple(found())


Job = tuple[str, str, int, str]
"""Name of a case, op, place in its list, architecture."""


def every_job(
    ops: Iterable[str] = (), *, gluon_alone: bool = False, first_alone: bool = False
) -> list[Job]:
    """Every configuration for each GPU that it is meant for.

    ``gluon_alone``: of Gluon's kernels; ``first_alone``: the first of each kernel and GPU.
    """
    jobs = [
        (key, op, place, arch)
        for key, (op, place) in all_cases(ops).items()
        for case in [cases_of(op)[place]]
        if isinstance(case.kernel, GluonJITFunction) or not gluon_alone
        for arch in case.architectures
    ]
    if not first_alone:
        return jobs
    first: dict[tuple[object, str], Job] = {}
    for job in jobs:
        _, op, place, arch = job
        first.setdefault((cases_of(op)[place].kernel.fn, arch), job)
    return list(first.values())


def jobs_of_portable(arch: str, ops: Iterable[str] = ()) -> list[Job]:
    """The first configuration of each kernel for any GPU, for another GPU."""
    first: dict[str, Job] = {}
    for key, (op, place) in all_cases(ops).items():
        case = cases_of(op)[place]
        if not isinstance(case.kernel, GluonJITFunction) and "sm_80" in case.architectures:
            first.setdefault(f"{op}: {case.kernel.fn.__name__}", (key, op, place, arch))
    return list(first.values())


def compile_all(
    jobs: Sequence[Job], processes: int = 2, *, on_amd: bool = False
) -> dict[str, dict[str, Resources | str]]:
    """``{case: {arch: resources}}``; an error's text where one fails."""
    results: dict[str, dict[str, Resources | str]] = {}
    with ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_start, initargs=(on_amd,)
    ) as pool:
        for (key, _, _, arch), result in zip(jobs, pool.map(_job, jobs), strict=True):
            results.setdefault(key, {})[arch] = result
    return results


def _start(on_amd: bool) -> None:
    """As if torch were AMD's build: kernels ask it when they are imported."""
    if on_amd:
        torch.version.hip = "6.4"


def _job(job: Job) -> Resources | str:
    _, op, place, arch = job
    try:
        return compile_offline(cases_of(op)[place], arch)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
