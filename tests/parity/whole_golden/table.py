"""Print the tables of docs/numerics.md from docs/benchmarks/numerics.json.

python tests/parity/whole_golden/table.py docs/benchmarks/numerics.json
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


def mean_square(values: list[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def float64_table(groups: Groups) -> None:
    print("| model | oracle | cases | seeds | outputs | terms and total | gradients |")
    print("|---|---|---|---|---|---|---|")
    for key, runs in groups.items():
        cells = [f"{max(r[kind]['worst']['error'] for r in runs):.1e}" for kind in KINDS]
        counts = [str(len({r[name] for r in runs})) for name in ("case", "seed")]
        print(f"| {' | '.join([*key, *counts, *cells])} |")


def float32_table(groups: Groups) -> None:
    print("| model | oracle | seeds | what | ours | oracle's | worst single ratio |")
    print("|---|---|---|---|---|---|---|")
    for key, runs in groups.items():
        for kind in ("outputs", "terms"):
            names = runs[0]["free"][kind]["errors"]["ours"]
            by_name = {
                n: [mean_square([r["free"][kind]["errors"][c][n] for r in runs]) for c in CODES]
                for n in names
            }
            top = max(by_name, key=lambda n: by_name[n][0] / by_name[n][1])
            ratio = f"{by_name[top][0] / by_name[top][1]:.2f} ({top}, {by_name[top][0]:.1e})"
            cells = [
                f"{mean_square([r['free'][kind]['together'][c] for r in runs]):.1e}" for c in CODES
            ]
            print(f"| {' | '.join([*key, str(len(runs)), kind, *cells, ratio])} |")
        for mode in ("free", "forced"):
            parts = [r[mode]["gradients"] for r in runs]
            cells = [f"{mean_square([p['together'][c] for p in parts]):.1e}" for c in CODES]
            ratio = f"{max(p['ratio_by_tensor']['max'] for p in parts):.2f}"
            name = "gradients" + (", decisions forced" if mode == "forced" else "")
            print(f"| {' | '.join([*key, str(len(runs)), name, *cells, ratio])} |")


def ratio_table(groups: Groups) -> None:
    """Ours to the oracle's: of all tensors of a kind together, and how single ones scatter."""
    print("| model | oracle | what | ratio in a run: min / median / max | single > 2 | < 1/2 |")
    print("|---|---|---|---|---|---|")
    for key, runs in groups.items():
        for mode, kind in (("free", "outputs"), ("free", "gradients"), ("forced", "gradients")):
            parts = [r[mode][kind] for r in runs]
            ratios = np.quantile([p["together"]["ratio"] for p in parts], [0, 0.5, 1])
            tensors = sum(p["tensors"] for p in parts)
            cells = [
                kind + (", decisions forced" if mode == "forced" else ""),
                " / ".join(f"{ratio:.2f}" for ratio in ratios),
                *(
                    f"{sum(p[k] for p in parts)} of {tensors}"
                    for k in ("above_twice", "below_half")
                ),
            ]
            print(f"| {' | '.join([*key, *cells])} |")


def gradient_table(groups: Groups) -> None:
    print(
        "| model | oracle | seed | ours, oracle's | by tensor: 5 % / median / 95 % | > 2 | < 1/2 |"
    )
    print("|---|---|---|---|---|---|---|")
    for key, runs in groups.items():
        for run in runs:
            for mode in ("free", "forced"):
                part = run[mode]["gradients"]
                total, ratio = part["together"], part["ratio_by_tensor"]
                share = [f"{part[k]} of {part['tensors']}" for k in ("above_twice", "below_half")]
                cells = [
                    f"{run['seed']}{', forced' if mode == 'forced' else ''}",
                    f"{total['ours']:.1e}, {total['oracle']:.1e}",
                    " / ".join(f"{ratio[q]:.2f}" for q in ("q05", "median", "q95")),
                ]
                print(f"| {' | '.join([*key, *cells, *share])} |")


def level_table(groups: Groups) -> None:
    runs = [run for found in groups.values() for run in found]
    for name in runs[0]["terms"]["errors"]:
        print(f"{name}: at most {max(r['terms']['errors'][name] for r in runs):.0e}")
    print(f"a gradient: {max(r['gradients']['worst']['error'] for r in runs):.0e}")


def main() -> None:
    sections = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    float64_table(grouped(sections, "float64"))
    for table in (float32_table, ratio_table, gradient_table):
        print()
        table(grouped(sections, "float32", by_passes=True))
    print()
    level_table(grouped(sections, "not levelled"))


if __name__ == "__main__":
    main()
