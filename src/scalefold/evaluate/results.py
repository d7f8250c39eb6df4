"""The files of an evaluation: one JSON file, and a table of chains as TSV."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scalefold.config.schema import EvaluationConfig
from scalefold.errors import InputError, first_few, listed
from scalefold.evaluate.chain_scores import METRICS
from scalefold.io.atomic import check_writable, make_folder, write_bytes
from scalefold.raw.table import write_table

logger = logging.getLogger(__name__)

TABLE_COLUMNS: Final = ("chain_key", "split", "length", "observed", *METRICS)


def mean_by_split(
    chains: Sequence[dict[str, Any]], splits: Iterable[str]
) -> dict[str, dict[str, float | None]]:
    """Mean of each metric over the chains of a split; each chain counts the same.

    Chains without a value are left out of that metric's mean. It is None if no chain has one.
    """
    means: dict[str, dict[str, float | None]] = {}
    for split in splits:
        means[split] = {}
        for metric in METRICS:
            values = [
                chain[metric]
                for chain in chains
                if chain["split"] == split and chain[metric] is not None
            ]
            means[split][metric] = round(sum(values) / len(values), 6) if values else None
    return means


def chains_of_mean(evaluation: Mapping[str, Any], split: str) -> str:
    """Say how many of a split's chains its mean lDDT-Ca is over, and why the others are not in it.

    Returns
    -------
    str
        Such as ``10 of 11 chains; 1 failed: 1lcd_A (the predicted positions are not finite)``.
    """
    scored, skipped, failed = (
        [chain for chain in evaluation[fate] if chain["split"] == split]
        for fate in ("chains", "skipped", "failed")
    )
    unknown = [chain["chain_key"] for chain in scored if chain["lddt_ca"] is None]
    total = len(scored) + len(skipped) + len(failed)
    said = f"{len(scored) - len(unknown)} of {total} chains"
    if skipped:
        said += f"; {len(skipped)} skipped, longer than evaluation.max_length"
    if unknown:
        said += f"; {len(unknown)} without lDDT-Cα: {first_few(unknown)}"
    if failed:
        # The first sentence says why, those after it how to fix it.
        reasons = [
            f"{chain['chain_key']} ({chain['reason'].partition('. ')[0]})" for chain in failed
        ]
        said += f"; {len(failed)} failed: {first_few(reasons)}"
    return said


def reached_target(evaluation: Mapping[str, Any], settings: EvaluationConfig) -> float | None:
    """Mean lDDT-Ca of the first of ``evaluation.splits`` if it is the target or more, else None.

    If a chain of the split failed, the mean lacks it and does not count.
    """
    split, target = settings.splits[0], settings.target_lddt
    value: float | None = evaluation["mean"].get(split, {}).get("lddt_ca")
    if target is None or value is None or value < target:
        return None
    failed = [chain["chain_key"] for chain in evaluation["failed"] if chain["split"] == split]
    if failed:
        logger.warning(
            "mean lDDT-Cα of %s is %.3f, not counted as the target: it lacks chains that failed:%s",
            split, value, listed(failed),
        )  # fmt: skip
        return None
    return value


def prepare_outputs(out: Path, structures: Path | None) -> None:
    """Make the folders of the results and try to write there, before hours of work.

    Parameters
    ----------
    out : Path
        The JSON file; the table is written beside it.

    Raises
    ------
    InputError
        ``out`` is a folder or has the table's name, or a folder cannot be made or written to.
    """
    if out == _table(out):
        raise InputError(f"{out}: the table is written there; name the JSON file, {out.stem}.json")
    if out.is_dir():
        raise InputError(f"{out}: is a folder; the evaluation is one JSON file, name it")
    for folder in (out.parent,) if structures is None else (out.parent, structures):
        check_writable(folder, "evaluation")
        make_folder(folder)


def write_evaluation(evaluation: dict[str, Any], out: Path) -> None:
    """Write the table, then the JSON file, each atomically: the JSON's presence means done.

    Parameters
    ----------
    out : Path
        The JSON file; the table gets the same name with ``.tsv``.

    Raises
    ------
    InputError
        If the disk is full or the folder may not be written.
    """
    cells = ([chain[column] for column in TABLE_COLUMNS] for chain in evaluation["chains"])
    rows = (["" if cell is None else str(cell) for cell in row] for row in cells)
    write_table(_table(out), TABLE_COLUMNS, rows)
    write_bytes(out, (json.dumps(evaluation, indent=1, allow_nan=False) + "\n").encode())


def _table(out: Path) -> Path:
    return out.with_suffix(".tsv")
