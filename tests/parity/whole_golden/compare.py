"""Compare the whole chain with OpenFold or MLPerf HPC, float64 and float32; writes the numbers.

Not a test: a check for development, see README.md::

    python tests/parity/whole_golden/compare.py {openfold,mlperf} <folder that holds openfold/> \
        {float64,levelling,float32,deep,golden} [--seeds 5] [--json docs/benchmarks/numerics.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
from decisions import Decisions  # noqa: E402
from peers import Peer  # noqa: E402
from test_whole_golden import (  # noqa: E402
    CASES,
    GOLDEN,
    Result,
    load_passes,
    model_config,
    openfold_angle_tolerance,
    record,
    run,
)

from scalefold.config.schema import ModelConfig  # noqa: E402

TWO_BLOCKS: dict[str, Any] = {"evoformer": {"num_blocks": 2}, "extra_msa": {"num_blocks": 2}}
KINDS = ("outputs", "terms", "gradients")
ZERO_GRADIENT = 1e-8  # of the largest: smaller ones are measured against this


def errors(kind: str, found: dict[str, Tensor], true: dict[str, Tensor]) -> dict[str, float]:
    """Norm of the difference over the norm, by tensor; zero gradients against a floor."""
    largest = max(value.norm().item() for value in true.values())
    floor = ZERO_GRADIENT * largest if kind == "gradients" else 0.0
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


def compare_float32(
    peer: Peer, case: str, config: ModelConfig, seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Float64 against float64; and both codes' float32 against our float64, free and forced."""
    chosen = CASES[case]
    wide = load_passes(chosen.batch, chosen.recycles)
    narrow = load_passes(chosen.batch, chosen.recycles, torch.float32)
    report: dict[str, Any] = {"case": case, "seed": seed, "sizes": sizes(case, config)}
    runs = {
        "ours": lambda passes: run(config, chosen.loss, passes, seed),
        "oracle": lambda passes: peer.run(config, chosen.loss, passes, seed),
    }
    found: dict[str, dict[str, Result]] = {"free": {}, "forced": {}}
    references: dict[str, Result] = {}
    for code, function in runs.items():
        with Decisions.recorded() as decisions:
            own = function(wide)
        with decisions.compared() as flips:
            found["free"][code] = function(narrow)
        with decisions.forced():
            found["forced"][code] = function(narrow)
        report.setdefault("decisions", {})[code] = {
            kind: {"made": made, "otherwise_in_float32": flips[kind]}
            for kind, made in decisions.counts.items()
        }
        references[code] = own
    for mode, results in found.items():
        report[mode] = {}
        for kind in KINDS:
            reference = getattr(references["ours"], kind)
            by_code = {}
            for code, result in results.items():
                values = {n: v for n, v in getattr(result, kind).items() if n in reference}
                by_code[code] = (errors(kind, values, reference), together(values, reference))
            (mine, mine_all), (other, other_all) = by_code["ours"], by_code["oracle"]
            if kind == "gradients":  # those that are nothing but rounding tell nothing
                floor = ZERO_GRADIENT * max(v.norm().item() for v in reference.values())
                real = {n for n, v in reference.items() if v.norm().item() > floor}
                mine, other = ({n: e[n] for n in e if n in real} for e in (mine, other))
            ratio = {n: mine[n] / max(other[n], 1e-9) for n in mine}
            top = max(ratio, key=ratio.__getitem__)
            report[mode][kind] = {
                "together": {"ours": mine_all, "oracle": other_all, "ratio": mine_all / other_all},
                "worst": {"ours": worst(mine), "oracle": worst(other)},
                "ratio_by_tensor": quantiles(list(ratio.values())),
                "largest_ratio": {"tensor": top, "ours": mine[top], "oracle": other[top]},
                "above_twice": sum(r > 2 for r in ratio.values()),
                "below_half": sum(r < 0.5 for r in ratio.values()),
                "tensors": len(ratio),
            }
            if kind != "gradients":
                report[mode][kind]["errors"] = {"ours": mine, "oracle": other}
            else:
                pairs = [(mine[n], other[n]) for n in mine]
                report[mode][kind]["median_error"] = {
                    code: float(np.median(values))
                    for code, values in zip(("ours", "oracle"), zip(*pairs, strict=True))
                }
    return agreement(case, config, seed, references["ours"], references["oracle"]), report


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["openfold", "mlperf"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", choices=["float64", "levelling", "float32", "deep", "golden"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    peer = Peer(given.kind, given.folder)
    reports: list[dict[str, Any]] = []

    def note(kind: str, report: dict[str, Any], start: float) -> None:
        report = {"comparison": kind, "seconds": round(time.time() - start, 1), **report}
        reports.append(report)
        print(json.dumps(report, indent=1), flush=True)

    seeds = range(given.first_seed, given.first_seed + given.seeds)
    if given.what == "golden":
        stored = {}
        for case in CASES:
            chosen = CASES[case]
            passes = load_passes(chosen.batch, chosen.recycles)
            result = peer.run(model_config(chosen), chosen.loss, passes)
            stored |= {f"{case}/{key}": value for key, value in record(result).items()}
        np.savez_compressed(GOLDEN, **stored)
        print(f"{GOLDEN.name}: {GOLDEN.stat().st_size / 1e3:.0f} kB")
        return
    with openfold_angle_tolerance():
        for case in given.cases:
            chosen, start = CASES[case], time.time()
            wide = model_config(chosen, "initial_training", **TWO_BLOCKS)
            if given.what == "float64":
                note("float64", compare_float64(peer, case, model_config(chosen)), start)
                start = time.time()
                note("float64", compare_float64(peer, case, wide), start)
            elif given.what in ("float32", "deep"):
                full = model_config(chosen, "initial_training")
                for seed in seeds:
                    start = time.time()
                    config = wide if given.what == "float32" else full
                    exact, rounded = compare_float32(peer, case, config, seed)
                    note("float64", exact, start)
                    note("float32", rounded, start)
    if given.what == "levelling":  # what the levelled differences amount to, on these batches
        for case in given.cases:
            start = time.time()
            found = compare_float64(peer, case, model_config(CASES[case]), levelled=False)
            note("not levelled", found, start)
    if given.json is not None:
        file = json.loads(given.json.read_text("utf-8")) if given.json.exists() else {}
        command = f"compare.py {given.kind} FOLDER {' '.join(sys.argv[3:])}"
        file[f"{given.kind} {given.what}"] = {
            **provenance(),
            "command": command.partition(" --json")[0],
            "runs": six_digits(reports),
        }
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(file, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
