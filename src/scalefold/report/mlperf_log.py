"""A run's log in the format that MLPerf's tools read (``:::MLLOG {…}``).

Training and evaluations are separate processes, so the log is made from their files and the times
of these: run_start is when the training's first process began to build the model, an evaluation
starts when its checkpoint is published and stops when its result is there. It does not name the
organisation, the platform or the division of a submission.

Keys: mlcommons/hpc, OpenFold, and the compliance checker for HPC v3.0 (mlcommons/logging).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch

from scalefold.checkpoint.read import checkpoint_path, ready_mark
from scalefold.config.load import make_config
from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.evaluate.results import reached_target
from scalefold.io.atomic import write_bytes
from scalefold.model import AlphaFold
from scalefold.report.inputs import RunResults, read_run
from scalefold.shards.reader import ShardReader

PREFIX: Final = ":::MLLOG "


def _event(
    seconds: float, key: str, value: Any = None, kind: str = "POINT_IN_TIME", **metadata: Any
) -> dict[str, Any]:
    """A line of the log; ``kind`` is INTERVAL_START, INTERVAL_END or POINT_IN_TIME."""
    return {
        "namespace": "",
        "time_ms": round(1000 * seconds),
        "event_type": kind,
        "key": key,
        "value": value,
        "metadata": {"file": "scalefold", "lineno": 0, **metadata},
    }


def write_mlperf_log(run: Path, key: str | None, shards: Path, out: Path) -> None:
    """Write the log of a run's training.

    Raises
    ------
    InputError
        If there is no such training, or it has not begun.
    """
    files = read_run(run, key, shards)
    if not files.checkpoints or not files.sessions:
        raise InputError(
            f"{run / 'weights' / files.key}: no training has published a checkpoint here yet: "
            "`scalefold train` does"
        )
    events = sorted(_events(run, files, shards), key=lambda event: event["time_ms"])
    write_bytes(out, "".join(f"{PREFIX}{json.dumps(event)}\n" for event in events).encode())


def _events(run: Path, files: RunResults, shards: Path) -> Iterator[dict[str, Any]]:
    config = make_config(files.checkpoints[-1].config, str(run))
    start = files.sessions[0].started

    yield _event(start, "init_start", kind="INTERVAL_START")
    for name, value in _facts(config, files, shards):
        yield _event(start, name, value)
    yield _event(start, "init_stop", kind="INTERVAL_END")
    yield _event(start, "run_start", kind="INTERVAL_START")

    size = config.training.global_batch_size
    split = config.evaluation.splits[0]
    last, before, reached = start, None, False
    for evaluation in files.evaluations:
        step, value = evaluation["step"], evaluation["mean"].get(split, {}).get("lddt_ca")
        about = {"epoch_num": step * size}
        ready = ready_mark(checkpoint_path(run / "weights" / files.key, step))
        if not ready.exists():
            continue  # the checkpoint was deleted to make room
        published = ready.stat().st_mtime
        if before is not None:
            yield _event(before, "epoch_start", kind="INTERVAL_START", **about)
            yield _event(published, "epoch_stop", kind="INTERVAL_END", **about)
        before = published
        done = files.evaluated_at[step]
        yield _event(published, "eval_start", kind="INTERVAL_START", **about)
        yield _event(done, "eval_accuracy", value, **about)
        yield _event(done, "eval_stop", kind="INTERVAL_END", **about)
        last = max(last, done)
        if reached_target(evaluation, config.evaluation) is not None:
            reached = True
            break
    yield _event(last, "run_stop", kind="INTERVAL_END", status="success" if reached else "aborted")


def _facts(config: Config, files: RunResults, shards: Path) -> Iterator[tuple[str, Any]]:
    """What MLPerf's rules want to see of a run's settings."""
    training, loss, optimiser = config.training, config.loss, config.optimiser
    index = ShardReader(shards).index.select(["split", "release_date"]).to_pylist()
    dates = [row["release_date"] for row in index if row["split"] == "train"]
    split = config.evaluation.splits[0]
    with torch.device("meta"):
        model = AlphaFold(config.model)
    yield "submission_benchmark", "openfold"
    yield "cache_clear", True
    yield "seed", config.seed
    yield "number_of_ranks", files.sessions[-1].processes
    yield "global_batch_size", training.global_batch_size
    yield "target_avg_lddt_ca_value", config.evaluation.target_lddt
    yield "train_max_pdb_release_date", str(max((d for d in dates if d), default=None))
    yield "train_samples", len(dates)
    yield "eval_samples", sum(row["split"] == split for row in index)
    yield "val_max_sequence_length", config.evaluation.max_length
    yield "val_every_iters", training.checkpoint_every
    yield "precision", training.precision
    yield "model_parameters_count", sum(p.numel() for p in model.parameters())
    initial = files.checkpoints[0].initial_weights_sha256
    if initial is not None:
        yield "init_checkpoint_sha256sum", initial
    yield "train_sequence_crop_size", config.features.crop_size
    yield "num_recycling_iters", training.max_recycling
    yield "max_msa_clusters", config.features.max_msa_clusters
    yield "max_extra_msa", config.features.max_extra_msa
    yield "templates_enabled", config.model.template.enabled
    yield "max_templates", config.features.max_templates
    yield "fape_loss_weight", loss.fape
    yield "fape_loss_backbone_weight", loss.fape_backbone_share
    yield "fape_loss_sidechain_weight", 1 - loss.fape_backbone_share
    yield "supervised_chi_loss_weight", loss.chi
    yield "distogram_loss_weight", loss.distogram
    yield "masked_msa_loss_weight", loss.masked_msa
    yield "plddt_loss_weight", loss.plddt
    yield "opt_name", "Adam"
    yield "opt_base_learning_rate", optimiser.learning_rate
    yield "opt_learning_rate_warmup_init", 0.0
    yield "opt_learning_rate_warmup_steps", optimiser.warmup_steps
    yield "opt_adam_beta_1", optimiser.beta1
    yield "opt_adam_beta_2", optimiser.beta2
    yield "opt_adam_epsilon", optimiser.eps
    yield "opt_weight_decay", 0.0
    yield "opt_amsgrad", False
    yield "opt_gradient_clipping", True
    yield "opt_gradient_clip_norm", optimiser.clip_norm
    yield "swa_enabled", optimiser.averaging == "swa"
    yield "swa_decay_rate", optimiser.averaging_decay
