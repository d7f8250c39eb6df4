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
KINDS = ("outputs", "terms", "gradients")


def model_of(run: Run) -> str:
    sizes = run["sizes"]
    width = "full width" if sizes["c_m"] == 256 else "tiny"
    return f"{width}, {sizes['evoformer_blocks']} blocks"


def float64_rows(sections: dict[str, Any]) -> None:
    print("| oracle | case | model | seeds | outputs | loss terms, total | gradients |")
    print("|---|---|---|---|---|---|---|")
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for section, content in sections.items():
        for run in content["runs"]:
            if run["comparison"] == "float64":
                key = (section.split()[0], run["case"], model_of(run))
                groups.setdefault(key, []).append(run)
    for key, runs in groups.items():
        cells = [max(run[kind]["worst"]["error"] for run in runs) for kind in KINDS]
        seeds = len({run["seed"] for run in runs})
        print(f"| {' | '.join(key)} | {seeds} | " + " | ".join(f"{c:.0e}" for c in cells) + " |")


def float32_rows(sections: dict[str, Any]) -> None:
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for section, content in sections.items():
        for run in content["runs"]:
            if run["comparison"] == "float32":
                key = (section.split()[0], run["case"], model_of(run))
                groups.setdefault(key, []).append(run)
    for key, runs in groups.items():
        print("\n" + ", ".join(key) + f", seeds {[run['seed'] for run in runs]}")
        for mode in ("free", "forced"):
            for kind in KINDS:
                parts = [run[mode][kind] for run in runs]
                cells = [
                    "ours "
                    + " ".join(f"{p['together']['ours']:.1e}" for p in parts)
                    + " oracle "
                    + " ".join(f"{p['together']['oracle']:.1e}" for p in parts)
                ]
                if kind == "gradients":
                    by_tensor = [p["ratio_by_tensor"] for p in parts]
                    cells.append(
                        "by tensor: median ratio "
                        + " ".join(f"{r['median']:.2f}" for r in by_tensor)
                        + " largest "
                        + " ".join(f"{r['max']:.2f}" for r in by_tensor)
                        + f" above 2: {sum(p['above_twice'] for p in parts)}"
                        + f" below 1/2: {sum(p['below_half'] for p in parts)}"
                        + f" of {sum(p['tensors'] for p in parts)}"
                    )
                    totals = [
                        np.sqrt(np.mean([p["together"][c] ** 2 for p in parts]))
                        for c in ("ours", "oracle")
                    ]
                    cells.append(f"root mean square {totals[0]:.1e} and {totals[1]:.1e}")
                else:
                    for name in parts[0]["errors"]["ours"]:
                        mine, other = (
                            float(np.sqrt(np.mean([p["errors"][c][name] ** 2 for p in parts])))
                            for c in ("ours", "oracle")
                        )
                        cells.append(f"{name} {mine:.1e} {other:.1e} x{mine / other:.2f}")
                print(f"  {mode} {kind}: " + "; ".join(cells))
        for run in runs:
            flips = {
                code: {k: v["otherwise_in_float32"] for k, v in kinds.items()}
                for code, kinds in run["decisions"].items()
            }
            print(f"  decided otherwise, seed {run['seed']}: {flips}")


def levelling_rows(sections: dict[str, Any]) -> None:
    for section, content in sections.items():
        for run in content["runs"]:
            if run["comparison"] == "not levelled":
                terms = {n: f"{e:.0e}" for n, e in run["terms"]["errors"].items()}
                gradients = run["gradients"]["worst"]
                print(section.split()[0], run["case"], terms, gradients)


def main() -> None:
    sections = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    float64_rows(sections)
    float32_rows(sections)
    levelling_rows(sections)


if __name__ == "__main__":
    main()
