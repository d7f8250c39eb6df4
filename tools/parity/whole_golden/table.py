"""Print the tables of docs/numerics.md from docs/benchmarks/numerics.json.

python -m tools.parity.whole_golden.table docs/benchmarks/numerics.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

Run = dict[str, Any]
Groups = dict[tuple[str, str], list[Run]]
KINDS = ("outputs", "terms", "gradients")
CODES = ("ours", "oracle")
ROWS = (
    ("free", "outputs"),
    ("free", "terms"),
    ("free", "gradients"),
    ("forced", "gradients"),
)


def grouped(sections: dict[str, Any], comparison: str, *, by_passes: bool = False) -> Groups:
    """Runs by model, with the number of passes where that is asked for, and oracle."""
    groups: Groups = {}
    for section, content in sections.items():
        for run in content["runs"]:
            if run["comparison"] == comparison:
                sizes = run["sizes"]
                width = "full width" if sizes["c_m"] == 256 else "tiny"
                model = f"{width}, {sizes['evoformer_blocks']} blocks"
                passes = f", {sizes['passes']} passes" if by_passes else ""
                key = (model + passes, section.split()[0])
                groups.setdefault(key, []).append(run)
    return dict(sorted(groups.items()))


def label(mode: str, kind: str) -> str:
    return kind + (", decisions forced" if mode == "forced" else "")


def mean_square(values: list[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def float64_table(groups: Groups) -> None:
    print("| model | oracle | cases | seeds | outputs | terms and total | gradients |")
    print("|---|---|---|---|---|---|---|")
    for key, runs in groups.items():
        cells = [f"{max(r[kind]['worst']['error'] for r in runs):.1e}" for kind in KINDS]
        counts = [str(len({r[name] for r in runs})) for name in ("case", "seed")]
        print(f"| {' | '.join([*key, *counts, *cells])} |")


def together_table(groups: Groups) -> None:
    """All tensors of a kind in one run: ours, the oracle's, and their ratio in the runs."""
    print("| model | oracle | runs | what | ours | oracle's | ratio: min / median / max |")
    print("|---|---|---|---|---|---|---|")
    for key, runs in groups.items():
        for mode, kind in ROWS:
            parts = [r[mode][kind]["together"] for r in runs]
            ratios = np.quantile([p["ratio"] for p in parts], [0, 0.5, 1])
            cells = [
                *key,
                str(len(runs)),
                label(mode, kind),
                *(f"{mean_square([p[code] for p in parts]):.1e}" for code in CODES),
                " / ".join(f"{ratio:.2f}" for ratio in ratios),
            ]
            print(f"| {' | '.join(cells)} |")


def pooled_table(sections: dict[str, Any]) -> None:
    """Each tensor over the runs: how many are above twice the oracle's error, and the largest."""
    print("| section | runs | what | tensors | ratio: median, max, above 2 | each run alike |")
    print("|---|---|---|---|---|---|")
    for section, content in sections.items():
        pooled = content.get("pooled")
        for mode, kind in ROWS if pooled else ():
            part = pooled[mode][kind]
            cells = [section, str(pooled[mode]["runs"]), label(mode, kind), str(part["tensors"])]
            for name in ("ratio", "each_alike"):
                found = part[name]
                cells.append(
                    f"{found['median']:.2f}, {found['max']:.2f}, {len(found['above_twice'])}"
                )
            print(f"| {' | '.join(cells)} |")


def terms_table(sections: dict[str, Any]) -> None:
    """Error of each loss term over the runs, decisions free."""
    for section, content in sections.items():
        if "pooled" in content:
            print(f"\n| {section} | ours | oracle's | ratio | each run alike |")
            print("|---|---|---|---|---|")
            for name, numbers in content["pooled"]["free"]["terms"]["by_tensor"].items():
                ours, oracle, ratio, alike = numbers
                print(f"| {name} | {ours:.1e} | {oracle:.1e} | {ratio:.2f} | {alike:.2f} |")


def level_table(groups: Groups) -> None:
    runs = [run for found in groups.values() for run in found]
    for name in runs[0]["terms"]["errors"]:
        print(f"{name}: at most {max(r['terms']['errors'][name] for r in runs):.0e}")
    print(f"a gradient: {max(r['gradients']['worst']['error'] for r in runs):.0e}")


def main() -> None:
    sections = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    float64_table(grouped(sections, "float64"))
    print()
    together_table(grouped(sections, "float32", by_passes=True))
    print()
    pooled_table(sections)
    terms_table(sections)
    print()
    level_table(grouped(sections, "not levelled"))


if __name__ == "__main__":
    main()
