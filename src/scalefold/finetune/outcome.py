"""The result of a fine-tuning: scores before it, at best and at its end; the best weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scalefold.config.identity import run_key
from scalefold.config.schema import Config
from scalefold.errors import counted
from scalefold.evaluate.follow import evaluation_path
from scalefold.finetune.alignments import QUERY


def outcome(config: Config) -> list[str]:
    """Say what the first of the evaluated splits' mean lDDT-Ca was before, at best and at the end.

    Parameters
    ----------
    config : Config
        Of a run whose evaluations are there.
    """
    run, key, split = config.results / config.run_name, run_key(config), config.evaluation.splits[0]
    scores: dict[int, float] = {}
    chains: dict[int, int] = {}
    for path in sorted((run / "evaluation" / key).glob("step-*.json")):
        evaluation: dict[str, Any] = json.loads(path.read_text("utf-8"))
        value = evaluation["mean"].get(split, {}).get("lddt_ca")
        if value is not None:
            scores[evaluation["step"]] = value
            chains[evaluation["step"]] = evaluation["counts"][split]["scored"]
    if not scores:
        return []  # the workflow was not asked for them
    best, last = max(scores, key=scores.__getitem__), max(scores)
    lines = [
        f"mean lDDT-Cα of {counted(chains[last], f'{split} chain')}: {scores[min(scores)]:.3f} "
        f"with the given weights, {scores[best]:.3f} at best (step {best}), {scores[last]:.3f} at "
        f"the end (step {last})"
    ]
    if best == min(scores):
        lines.append(
            "no step is better than the given weights: keep these, or see docs/fine-tune.md for "
            "what to change"
        )
    else:
        checkpoint = run / "weights" / key / evaluation_path(Path(), best).stem
        lines.append(f"best weights: {checkpoint}")
        alone = config.data.alignments == [QUERY]
        given = "--query-alone" if alone else "--alignments my_alignments"
        predict = f"scalefold predict my.fasta {given} --weights {checkpoint}"
        lines.append(f"predict with them: {predict} --out predicted")
        lines.append(f"for other codes: scalefold weights export {checkpoint} --out finetuned.pt")
    lines.append(f"report: {run / 'report.html'}")
    return lines
