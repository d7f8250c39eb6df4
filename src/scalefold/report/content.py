"""The report as plain data: the content of ``report.json`` and of the page."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import scalefold
from scalefold.evaluate.chain_scores import METRICS
from scalefold.evaluate.results import chains_of_mean
from scalefold.raw.rejected import Rejected
from scalefold.report.calibration import calibration, head_calibration
from scalefold.report.clock import hours_trained
from scalefold.report.comparison import comparisons
from scalefold.report.falls_behind import falls_behind
from scalefold.report.findings import findings
from scalefold.report.groups import by_group
from scalefold.report.inputs import RunResults
from scalefold.report.other_run import beside
from scalefold.report.timeline import timeline
from scalefold.shards.audit import by_reason

FORMAT: Final = 1
_FACTS: Final = (
    "ptm",
    "alignment_rows",
    "release_date",
    "peptide_bonds",
    "broken_bonds",
    "clashes",
)
"""Facts of a chain in an evaluation besides its scores; earlier versions lack them."""
Content = dict[str, Any]


def report_content(
    name: str,
    files: RunResults,
    others: Sequence[tuple[str, Mapping[str, Any]]] = (),
    other_run: Mapping[str, Any] | None = None,
) -> Content:
    """Gather the report's numbers.

    Parameters
    ----------
    others : sequence of (str, mapping)
        Names and evaluations of other weights, to compare with the last evaluation.
    other_run : mapping, optional
        Report of another run, to show its training beside this one's.

    Returns
    -------
    dict
        ``summary``, ``notes``, ``findings`` (what stands out, in words), ``training`` (the metrics
        log, key by key), ``beside`` (see `beside`, or None), ``evaluations`` (means by checkpoint),
        ``others`` (means of other weights), ``comparisons`` (of the last evaluation, see
        `comparisons`), ``chains`` (scores of the last evaluation), ``groups`` (see `by_group`),
        ``calibration`` by split, ``head_calibration``, ``data`` and ``audit`` (see `DataSet`),
        ``timeline``, ``timings`` by stage, ``ladder`` (of the benchmark, or None), ``rejected``,
        ``reasons`` (of all that is rejected, see `by_reason`), ``provenance``.
        JSON can hold all of it.
    """
    calibrated, training, rejected = _calibration(files), _training(files), _rejected(files)
    config = files.checkpoints[-1].config if files.checkpoints else None
    compared = beside(training, config, other_run) if other_run else None
    return {
        "format": FORMAT,
        "run": name,
        "summary": _summary(files),
        "notes": [*files.notes, *_unscored(files)],
        "findings": [*findings(files, calibrated), *falls_behind(training, compared)],
        "training": training,
        "beside": compared,
        "evaluations": [
            {key: evaluation.get(key) for key in ("step", "checkpoint", "mean", "counts")}
            for evaluation in files.evaluations
        ],
        "others": [
            {"name": name, **{key: other.get(key) for key in ("step", "mean", "counts")}}
            for name, other in others
        ],
        "comparisons": comparisons(files.evaluations, others, _splits(files)),
        "chains": _chains(files),
        "groups": by_group(files.evaluations[-1]["chains"] if files.evaluations else ()),
        "calibration": calibrated,
        "head_calibration": head_calibration(
            chain for evaluation in files.evaluations[-1:] for chain in evaluation["chains"]
        ),
        "data": files.data.counts,
        "audit": files.data.audit,
        "timeline": timeline(files.sessions, files.metrics, files.evaluations),
        "timings": _timings(files),
        "ladder": files.ladder,
        "rejected": [asdict(one) for one in rejected],
        "reasons": [asdict(reason) for reason in by_reason(rejected)],
        "provenance": _provenance(files),
    }


def _summary(files: RunResults) -> dict[str, Any]:
    config = files.checkpoints[-1].config if files.checkpoints else {}
    last = files.metrics[-1] if files.metrics else {}
    speeds = [r["samples_per_second"] for r in files.metrics if r.get("samples_per_second")]
    return {
        "step": max([c.step for c in files.checkpoints] + [last.get("step", 0)]),
        "planned_steps": config.get("training", {}).get("steps"),
        "preset": config.get("preset"),
        "target_lddt": config.get("evaluation", {}).get("target_lddt"),
        "samples": last.get("samples"),
        "loss": last.get("loss"),
        "skipped_steps": last.get("skipped_steps"),
        "samples_per_second_median": statistics.median(speeds) if speeds else None,
        "training_seconds": _training_seconds(files),
        **_train_chains(files),
        "lddt_ca": {split: _progress_of(split, files) for split in _splits(files)},
    }


def _progress_of(split: str, files: RunResults) -> dict[str, Any]:
    """First, last and best mean lDDT-C-alpha of a split over the evaluated checkpoints.

    Each has ``step``, ``value``, and the chains that it is the mean of: how many of the split's
    (``chains``), and why it lacks the others, too (``over``).
    """
    known = []
    for evaluation in files.evaluations:
        value = evaluation["mean"].get(split, {}).get("lddt_ca")
        if value is not None:
            over = chains_of_mean(evaluation, split)
            chains = over.partition(";")[0]
            step = evaluation["step"]
            known.append({"step": step, "value": value, "chains": chains, "over": over})
    if not known:
        return {"first": None, "last": None, "best": None}
    best = max(known, key=lambda point: point["value"])
    return {"first": known[0], "last": known[-1], "best": best}


def _unscored(files: RunResults) -> Iterator[str]:
    """Name the splits without lDDT-C-alpha in the last evaluation."""
    for evaluation in files.evaluations[-1:]:
        for split, mean in evaluation["mean"].items():
            if mean.get("lddt_ca") is None:
                yield (
                    f"The evaluation of step {evaluation['step']} has no mean lDDT-Cα of {split}: "
                    f"{chains_of_mean(evaluation, split)}."
                )


def _splits(files: RunResults) -> list[str]:
    """Splits of the evaluations, validation first."""
    found = {split for evaluation in files.evaluations for split in evaluation["mean"]}
    return sorted(found, key=lambda split: (split != "validation", split))


def _training_seconds(files: RunResults) -> float | None:
    """Wall time of training's sessions, pauses between them left out."""
    if not files.sessions:
        return None
    return round(sum(session.ended - session.started for session in files.sessions), 3)


def _train_chains(files: RunResults) -> dict[str, int | None]:
    """Chains of split train in the shards, and those that training uses, by the last session."""
    noted = [s for s in files.sessions if s.train_chains_drawn is not None]
    return {
        "train_chains": noted[-1].train_chains if noted else None,
        "train_chains_drawn": noted[-1].train_chains_drawn if noted else None,
    }


def _training(files: RunResults) -> dict[str, list[Any]]:
    columns = _columns(files.metrics)
    if "time" in columns:
        columns["hours"] = hours_trained(columns["time"], files.sessions)
    return columns


def _columns(records: list[dict[str, Any]]) -> dict[str, list[Any]]:
    keys = {key: None for record in records for key in record}
    return {key: [record.get(key) for record in records] for key in keys}


def _chains(files: RunResults) -> dict[str, Any]:
    if not files.evaluations:
        return {"step": None, "first_step": None, "rows": []}
    first, last = files.evaluations[0], files.evaluations[-1]
    before = {chain["chain_key"]: chain["lddt_ca"] for chain in first["chains"]}
    rows = []
    for chain in last["chains"]:
        earlier = before.get(chain["chain_key"]) if first is not last else None
        known = earlier is not None and chain["lddt_ca"] is not None
        rows.append(
            {
                **{key: chain.get(key) for key in ("chain_key", "split", "length", "observed")},
                **{metric: chain.get(metric) for metric in METRICS},
                **{key: chain.get(key) for key in _FACTS},
                "lddt_ca_gain": round(chain["lddt_ca"] - earlier, 6) if known else None,
            }
        )
    return {"step": last["step"], "first_step": first["step"], "rows": rows}


def _calibration(files: RunResults) -> dict[str, Any]:
    if not files.evaluations:
        return {}
    chains = files.evaluations[-1]["chains"]
    return {
        split: calibration(chain for chain in chains if chain["split"] == split)
        for split in _splits(files)
        if any(chain["split"] == split for chain in chains)
    }


def _timings(files: RunResults) -> list[dict[str, Any]]:
    rules: dict[str, dict[str, Any]] = {}
    for job in files.benchmarks:
        row = rules.setdefault(
            job.rule, {"stage": job.rule, "jobs": 0, "seconds": 0.0, "max_rss_mb": None}
        )
        row["jobs"] += 1
        row["seconds"] = round(row["seconds"] + job.seconds, 3)
        if job.max_rss_mb is not None:
            row["max_rss_mb"] = max(row["max_rss_mb"] or 0.0, job.max_rss_mb)
    if files.sessions:
        # Snakemake measured only the last job, which may have found the training complete.
        known = [s.max_rss_mb for s in files.sessions if s.max_rss_mb is not None]
        row = rules.setdefault("train", {"stage": "train", "max_rss_mb": None})
        row["jobs"] = len(files.sessions)
        row["seconds"] = _training_seconds(files)
        row["max_rss_mb"] = max([row["max_rss_mb"] or 0.0, *known]) or None
    return sorted(rules.values(), key=lambda row: -row["seconds"])


def _rejected(files: RunResults) -> list[Rejected]:
    last = files.evaluations[-1] if files.evaluations else {}
    not_scored = [
        Rejected(chain["chain_key"], f"evaluate ({fate})", chain["reason"])
        for fate in ("skipped", "failed")
        for chain in last.get(fate, ())
    ]
    return [*files.rejected, *not_scored]


def _provenance(files: RunResults) -> dict[str, Any]:
    last = files.checkpoints[-1] if files.checkpoints else None
    evaluation = files.evaluations[-1] if files.evaluations else {}
    times = [record["time"] for record in files.metrics if record.get("time")]
    manifest = files.manifest
    return {
        "commit": last and last.commit,
        "scalefold_version": last and last.scalefold_version,
        "report_version": scalefold.__version__,
        "run_key": files.key or None,
        "config_hash": last and last.config_hash,
        "config": last and last.config,
        "checkpoints": [checkpoint.step for checkpoint in files.checkpoints],
        "checkpoint_bytes": last and sum(facts.bytes for facts in last.files.values()),
        "data_manifest_sha256": files.manifest_sha256,
        "former_data": [asdict(data) for data in last.former_data] if last else [],
        "data_source": manifest and asdict(manifest.source),
        "data_counts": manifest and manifest.counts,
        "shards": _shards(files),
        "evaluated_with": {
            key: evaluation.get(key)
            for key in (
                "scalefold_version",
                "commit",
                "torch_version",
                "device",
                "recycling",
                "precision",
                "seed",
            )
        },
        "trained_with": [
            {"processes": session.processes, **session.made_with} for session in files.sessions
        ],
        "first_record_time": min(times) if times else None,
        "last_record_time": max(times) if times else None,
    }


def _shards(files: RunResults) -> dict[str, dict[str, int]]:
    """Files, rows and bytes by shard family."""
    families: dict[str, dict[str, int]] = {}
    for facts in files.manifest.files if files.manifest else ():
        if not facts.file.endswith(".arrow"):
            continue
        family = facts.file.partition("-")[0].removesuffix(".arrow")
        row = families.setdefault(family, {"files": 0, "rows": 0, "bytes": 0})
        row["files"] += 1
        row["rows"] += facts.rows
        row["bytes"] += facts.bytes
    return families
