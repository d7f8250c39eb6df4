"""Compare the whole chain with OpenFold or MLPerf HPC, float64 and float32; writes the numbers.

Not a test: a check for development, see tests/parity/whole_golden/README.md::

    python -m tools.parity.whole_golden.compare {openfold,mlperf} <folder that holds openfold/> \
        {float64,levelling,tiny,float32,deep,golden,golden-float32} [--seeds 5] [--json FILE]

``tiny``, ``float32`` and ``deep`` compare errors of float32: of the tiny model, two blocks, 48.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.parity.pooling import (
    KINDS,
    ZERO_GRADIENT,
    Errors,
    Pooled,
    float32_errors,
    pool_all,
    zero_floor,
)
from tests.parity.test_float32_error import CASE as FLOAT32_CASE
from tests.parity.test_float32_error import GOLDEN as FLOAT32_GOLDEN
from tests.parity.test_whole_golden import (
    CASES,
    GOLDEN,
    Result,
    load_passes,
    model_config,
    record,
    run,
)
from tools.parity.whole_golden.decisions import Decisions
from tools.parity.whole_golden.peers import Peer
from torch import Tensor

from scalefold.config.model import ModelConfig
from scalefold.features.contract import ALL_FEATURES, Features

TWO_BLOCKS: dict[str, Any] = {"evoformer": {"num_blocks": 2}, "extra_msa": {"num_blocks": 2}}
WHAT = ("float64", "levelling", "tiny", "float32", "deep", "golden", "golden-float32")
FoundErrors = dict[str, dict[str, list[Errors]]]
"""Of one seed, by mode (free, forced) and code (ours, oracle); one entry a draw."""


def errors(kind: str, found: dict[str, Tensor], true: dict[str, Tensor]) -> dict[str, float]:
    """Norm of the difference over the norm, by tensor; zero gradients against a floor."""
    floor = zero_floor(true) if kind == "gradients" else 0.0
    return {
        name: (found[name].double() - value).norm().item() / max(value.norm().item(), floor)
        for name, value in true.items()
        if name in found
    }


def together(found: dict[str, Tensor], true: dict[str, Tensor]) -> float:
    """Norm of all differences over the norm of all."""
    difference = sum((found[n].double() - v).square().sum().item() for n, v in true.items())
    return float((difference / sum(v.square().sum().item() for v in true.values())) ** 0.5)


def worst(by_name: dict[str, float]) -> dict[str, Any]:
    name = max(by_name, key=by_name.__getitem__)
    return {"error": by_name[name], "tensor": name}


def quantiles(values: list[float]) -> dict[str, float]:
    points = {"min": 0.0, "q05": 0.05, "median": 0.5, "q95": 0.95, "max": 1.0}
    return {name: float(np.quantile(values, q)) for name, q in points.items()}


def sizes(case: str, config: ModelConfig) -> dict[str, int]:
    features = load_passes(CASES[case].batch, 0)[0]
    return {
        "residues": features["aatype"].shape[1],
        "padded_residues": int((1 - features["seq_mask"]).sum()),
        "clusters": features["msa_feat"].shape[1],
        "extra_rows": features["extra_msa"].shape[1],
        "template_slots": int(features["template_mask"].shape[1]) if config.template.enabled else 0,
        "passes": CASES[case].recycles + 1,
        "evoformer_blocks": config.evoformer.num_blocks,
        "extra_blocks": config.extra_msa.num_blocks,
        "c_m": config.c_m,
        "c_z": config.c_z,
    }


def agreement(
    case: str, config: ModelConfig, seed: int, ours: Result, theirs: Result
) -> dict[str, Any]:
    """Errors of ours against theirs, both float64."""
    report: dict[str, Any] = {"case": case, "seed": seed, "sizes": sizes(case, config)}
    for kind in KINDS:
        mine, true = getattr(ours, kind), getattr(theirs, kind)
        if kind == "terms":  # of weight 0: they compute it, we do not
            true = {name: value for name, value in true.items() if name in mine}
        if mine.keys() != true.keys():
            raise AssertionError(mine.keys() ^ true.keys())
        by_name = errors(kind, mine, true)
        report[kind] = {"tensors": len(by_name), "worst": worst(by_name)}
        if kind == "terms":
            report[kind]["values"] = {n: v.item() for n, v in mine.items()}
            report[kind]["errors"] = by_name
    norms = [v.norm().item() for v in theirs.gradients.values()]
    zero = [norm for norm in norms if norm < ZERO_GRADIENT * max(norms)]
    report["gradients"] |= {
        "below_floor": len(zero),
        "largest_norm": max(norms),
        "largest_norm_below_floor": max(zero, default=0.0),
    }
    return report


def compare_float64(
    peer: Peer, case: str, config: ModelConfig, seed: int = 0, levelled: bool = True
) -> dict[str, Any]:
    chosen = CASES[case]
    passes = load_passes(chosen.batch, chosen.recycles)
    ours = run(config, chosen.loss, passes, seed)
    theirs = peer.run(config, chosen.loss, passes, seed, levelled)
    return agreement(case, config, seed, ours, theirs)


def reordered(passes: list[Features], draw: int) -> list[Features]:
    """The same with extra MSA rows in another order: equal results, rounded otherwise."""
    if draw == 0:
        return passes
    generator = torch.Generator().manual_seed(draw)
    rows = torch.randperm(passes[0]["extra_msa"].shape[1], generator=generator)
    return [
        {n: v[:, rows] if "E" in ALL_FEATURES[n].dims else v for n, v in features.items()}
        for features in passes
    ]


def compare_float32(
    peer: Peer, case: str, config: ModelConfig, seed: int, draws: int
) -> tuple[dict[str, Any], dict[str, Any], FoundErrors]:
    """Float64 against float64; and both codes' float32 against our float64, free and forced.

    The float32 run is repeated: each draw is rounded otherwise, the result that it should have is
    the same. Decisions are forced on the first.
    """
    chosen = CASES[case]
    wide = load_passes(chosen.batch, chosen.recycles)
    narrow = load_passes(chosen.batch, chosen.recycles, torch.float32)
    report: dict[str, Any] = {"case": case, "seed": seed, "sizes": sizes(case, config)}
    runs = {
        "ours": lambda passes: run(config, chosen.loss, passes, seed),
        "oracle": lambda passes: peer.run(config, chosen.loss, passes, seed),
    }
    found: dict[str, dict[str, list[Result]]] = {"free": {}, "forced": {}}
    references: dict[str, Result] = {}
    for code, function in runs.items():
        with Decisions.recorded() as decisions:
            references[code] = function(wide)
        with decisions.compared() as flips:
            first = function(narrow)
        rest = [function(reordered(narrow, draw)) for draw in range(1, draws)]
        found["free"][code] = [first, *rest]
        with decisions.forced():
            found["forced"][code] = [function(narrow)]
        report.setdefault("decisions", {})[code] = {
            kind: {"made": made, "otherwise_in_float32": flips[kind]}
            for kind, made in decisions.counts.items()
        }
    true = references["ours"]
    by_tensor: FoundErrors = {}
    for mode, by_code in found.items():
        by_tensor[mode] = {
            code: [float32_errors(result, true) for result in results]
            for code, results in by_code.items()
        }
        report[mode] = {kind: summary(kind, by_code, true) for kind in KINDS}
    return agreement(case, config, seed, true, references["oracle"]), report, by_tensor


def summary(kind: str, by_code: dict[str, list[Result]], true: Result) -> dict[str, Any]:
    """All numbers of one kind together: root mean square over the draws."""
    reference = getattr(true, kind)
    all_of_it = {
        code: float(np.sqrt(np.mean([together(getattr(r, kind), reference) ** 2 for r in results])))
        for code, results in by_code.items()
    }
    return {"together": {**all_of_it, "ratio": all_of_it["ours"] / all_of_it["oracle"]}}


def pooled(found: list[FoundErrors]) -> dict[str, Any]:
    """Over the runs, by mode and kind; of each tensor the numbers of `Pooled`."""
    report: dict[str, Any] = {"seeds": len(found), "numbers": list(Pooled._fields)}
    for mode in found[0]:
        both = [
            [errors for run in found for errors in run[mode][code]] for code in ("ours", "oracle")
        ]
        report[mode] = {"runs": len(both[0])} | {
            kind: {
                "tensors": len(by_name),
                **{
                    name: {
                        **quantiles([getattr(p, name) for p in by_name.values()]),
                        "above_twice": [n for n, p in by_name.items() if getattr(p, name) > 2],
                    }
                    for name in ("ratio", "each_alike")
                },
                "by_tensor": {name: list(numbers) for name, numbers in by_name.items()},
            }
            for kind, by_name in pool_all(*both).items()
        }
    return report


Compared = tuple[dict[str, Any], dict[str, Any], FoundErrors]


def kept(path: Path | None, make: Callable[[], Compared]) -> Compared:
    """One seed's results: read where they are kept, else made, and kept for the next run."""
    if path is None:
        return make()
    if not path.exists():
        exact, rounded, errors = make()
        rounded["commit"] = provenance()["commit"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([exact, rounded, errors]), "utf-8")
    exact, rounded, errors = json.loads(path.read_text("utf-8"))
    return exact, rounded, errors


def six_digits(value: Any) -> Any:
    """More digits are not read, and would make the file large."""
    if isinstance(value, dict):
        return {name: six_digits(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [six_digits(entry) for entry in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def provenance() -> dict[str, Any]:
    def git(*words: str) -> str:
        root = Path(__file__).parents[3]
        return subprocess.run(
            ["git", "-C", str(root), *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": cpu,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": git("rev-parse", "HEAD"),
    }


def _one_line(numbers: re.Match[str]) -> str:
    return f"[{' '.join(numbers[1].split())}]"


def write_golden(peer: Peer) -> None:
    """The peer's float64 numbers, for `test_whole_golden.py`."""
    stored: dict[str, np.ndarray] = {}
    for case, chosen in CASES.items():
        passes = load_passes(chosen.batch, chosen.recycles)
        result = peer.run(model_config(chosen), chosen.loss, passes)
        stored |= {f"{case}/{key}": value for key, value in record(result).items()}
    np.savez_compressed(GOLDEN, **stored)
    print(f"{GOLDEN.name}: {GOLDEN.stat().st_size / 1e3:.0f} kB")


def write_golden_float32(peer: Peer, seeds: range) -> None:
    """The peer's float32 errors against its own float64, for `test_float32_error.py`."""
    chosen = CASES[FLOAT32_CASE]
    config = model_config(chosen)
    runs = [
        float32_errors(
            peer.run(config, chosen.loss, load_passes(chosen.batch, 0, torch.float32), seed),
            peer.run(config, chosen.loss, load_passes(chosen.batch, 0), seed),
        )
        for seed in seeds
    ]
    stored: dict[str, Any] = {}
    if FLOAT32_GOLDEN.exists():  # the other peer's
        with np.load(FLOAT32_GOLDEN) as others:
            stored = dict(others)
    for kind in KINDS:
        names = sorted(set.intersection(*(set(errors[kind]) for errors in runs)))
        stored[f"{peer.kind}/{kind}/names"] = np.array(names)
        stored[f"{peer.kind}/{kind}"] = np.float32([[e[kind][n] for n in names] for e in runs])
    np.savez_compressed(FLOAT32_GOLDEN, **stored)
    print(f"{FLOAT32_GOLDEN.name}: {FLOAT32_GOLDEN.stat().st_size / 1e3:.0f} kB")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["openfold", "mlperf"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=1, help="float32 runs of each seed")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--keep", type=Path, help="folder of seeds' results: made once, in any run")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    peer, made_with = Peer(given.kind, given.folder), provenance()
    reports: list[dict[str, Any]] = []
    found: list[FoundErrors] = []

    def note(kind: str, report: dict[str, Any], start: float) -> None:
        report = {"comparison": kind, "seconds": round(time.time() - start, 1), **report}
        reports.append(report)
        print(json.dumps(report, indent=1), flush=True)

    seeds = range(given.first_seed, given.first_seed + given.seeds)
    if given.what == "golden":
        write_golden(peer)
    elif given.what == "golden-float32":
        write_golden_float32(peer, seeds)
    for case in given.cases:
        chosen, start = CASES[case], time.time()
        models = {
            "tiny": model_config(chosen),
            "float32": model_config(chosen, "initial_training", **TWO_BLOCKS),
            "deep": model_config(chosen, "initial_training"),
        }
        if given.what == "float64":
            note("float64", compare_float64(peer, case, models["tiny"]), start)
            start = time.time()
            note("float64", compare_float64(peer, case, models["float32"]), start)
        elif given.what in models:
            for seed in seeds:
                start = time.time()
                exact, rounded, errors = kept(
                    given.keep and given.keep / f"{peer.kind}-{given.what}-{case}-{seed}.json",
                    partial(compare_float32, peer, case, models[given.what], seed, given.draws),
                )
                found.append(errors)
                if given.what != "tiny":  # of its many runs only the pooled errors are kept
                    note("float64", exact, start)
                    note("float32", rounded, start)
    if given.what == "levelling":  # what the levelled differences amount to, on these batches
        for case in given.cases:
            start = time.time()
            report = compare_float64(peer, case, model_config(CASES[case]), levelled=False)
            note("not levelled", report, start)
    if given.json is not None:
        file = json.loads(given.json.read_text("utf-8")) if given.json.exists() else {}
        keep = f" --keep {given.keep}" if given.keep else ""
        command = f"compare.py {given.kind} FOLDER {' '.join(sys.argv[3:])}".replace(keep, "")
        file[f"{given.kind} {given.what}"] = {
            **made_with,
            "command": command.partition(" --json")[0],
            "runs": six_digits(reports),
            **({"pooled": six_digits(pooled(found))} if found else {}),
        }
        given.json.parent.mkdir(parents=True, exist_ok=True)
        # lists of numbers on one line
        text = re.sub(r"\[([-+.e\d,\s]+)\]", _one_line, json.dumps(file, indent=1))
        given.json.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
