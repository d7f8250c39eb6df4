"""A summary of a run before it begins: chains, jobs, samples, hours, disk space."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.filesize import decimal

from scalefold.config.schema import Config, ModelConfig
from scalefold.config.stages import teachers
from scalefold.errors import counted, first_few, listed
from scalefold.fetch.on_mirrors import lacking_files, other_formats
from scalefold.plan.calibration import SIZES, Calibration
from scalefold.raw.chains import ChainRow
from scalefold.shards.bucket_count import with_bucket_count
from scalefold.shards.buckets import filled_buckets

_KIND: Final = "NVIDIA H200"
"""Hours and memory are said for one GPU of this kind."""
_BYTES_A_PARAMETER: Final = 16
"""In a checkpoint: weights, their average and Adam's two moments, in float32."""

_JOBS_A_BUCKET: Final = 4  # fetch_structures, fetch_alignments, structures, pack
_JOBS_A_RUN: Final = 3  # index, config, all


def run_summary(stages: Mapping[str, Config], chains: Sequence[ChainRow]) -> Iterator[str]:
    """Summarise a run, one fact a line. Lines that need torch come last.

    Parameters
    ----------
    stages
        The configurations of its training runs, by name, as `load_stages` gives them.
    chains
        The list of chains, some of them to train on: see `check_trainable`.
    """
    config = next(iter(stages.values()))
    yield f"chains: {_by_split(chains)}"
    structures = lacking_files(chains, config.data, "structures")
    alignments = lacking_files(chains, config.data, "alignments")
    yield from _lacking(config, structures, alignments)
    buckets = num_buckets(config, chains)
    yield f"jobs of a whole run: {num_jobs(stages, buckets)}, with {counted(buckets, 'bucket')}"
    rejected = [*(structures or ()), *(alignments or () if config.search is None else ())]
    unused = {row.chain_key for row in rejected}
    to_train_on = sum(row.split == "train" and row.chain_key not in unused for row in chains)
    for name, stage in stages.items():
        yield f"{_called(name)}training: {_training(stage, to_train_on)}"
    for name, stage in stages.items():
        yield f"{_called(name)}hours: {_hours(stage)}"
        yield f"{_called(name)}checkpoints: {_checkpoints(stage)}"


def _lacking(
    config: Config, structures: list[ChainRow] | None, alignments: list[ChainRow] | None
) -> Iterator[str]:
    """Say which chains have no structure, and which no alignment, as far as it is known."""
    if structures:
        if formats := other_formats(structures, config.data):
            yield (
                "formats: a run reads structures of one, and the mirrors have "
                f"{counted(len(formats), 'file')} of another; `scalefold convert` writes all as "
                ".cif.gz:" + listed(formats, 3)
            )
        yield (
            f"structures: the mirrors have none for {_by_split(structures)}; these are set aside: "
            f"{_first_keys(structures)}. Correct these names in {config.data.chains}, or bring the "
            "files"
        )
    if alignments:
        fate = "are set aside unless an identical chain's alignments serve them"
        if config.search is not None:
            fate = "are searched" if config.search.steps else "are used without"
        yield (
            f"alignments: the mirrors have none for {_by_split(alignments)}; these {fate}: "
            f"{_first_keys(alignments)}"
        )
    if structures is None or alignments is None:
        yield "files: a mirror is on the web; fetching says which chains lack files"
    elif not structures and not alignments:
        yield "files: all listed chains have the files that they need"


def _first_keys(chains: Sequence[ChainRow]) -> str:
    return first_few([row.chain_key for row in chains])


def num_buckets(config: Config, chains: Sequence[ChainRow]) -> int:
    """Return how many buckets have chains."""
    shards = config.results / config.run_name / "shards"
    count = with_bucket_count(config, shards, chains).data.num_buckets
    return len(filled_buckets(chains, count))


def num_jobs(stages: Mapping[str, Config], buckets: int) -> int:
    """Return how many jobs the workflow has if nothing is there yet."""
    last = list(stages.values())[-1]
    # Beside a training run Snakemake does not know yet which checkpoint is its last.
    is_known = last.predict.fasta is not None and last.evaluation.mode == "after"
    predicts = is_known * (1 + last.predict.relax)
    of_stages = sum(map(_jobs_of_stage, stages.values()))
    predicted_sets = len(set(teachers(stages).values()))
    distilled = predicted_sets * (last.distillation.jobs + 1)
    whole_run = _JOBS_A_RUN + _searches(last) + distilled
    return _JOBS_A_BUCKET * buckets + whole_run + of_stages + predicts


def _searches(config: Config) -> int:
    """Search for chains, with two jobs before and one after; search for sequences to predict."""
    if config.search is None:
        return 0
    of_sequences = config.predict.searches + config.distillation.searches
    return 3 + config.search.jobs * (1 + of_sequences)


def _jobs_of_stage(config: Config) -> int:
    """Training, evaluation, report, and MLPerf's log."""
    return 3 + (config.preset == "mlperf")


def _training(config: Config, chains: int) -> str:
    steps, size = config.training.steps, config.training.global_batch_size
    samples = f"{steps:,} steps of {counted(size, 'sample')} are {steps * size:,} samples"
    if not chains:
        return f"{samples}, and no chain is left to train on"
    epochs = steps * size / chains
    digits = 1 if epochs < 100 else 0
    return f"{samples}, {epochs:,.{digits}f} epochs of {counted(chains, 'chain')}"


def _hours(config: Config) -> str:
    from scalefold.plan.rows import Planner
    from scalefold.plan.timing import Cluster

    known = Calibration.read([])
    recorded = dict.fromkeys(step.sizes for step in known.of_kind(_KIND))  # the fastest first
    sizes = min(recorded, key=lambda sizes: _growth(sizes, config))
    growth = _growth(sizes, config)
    if not math.isfinite(growth):
        return (
            "not recorded for a larger model than AlphaFold2's; the training log shows the time "
            "left. On a GPU, `scalefold bench step` measures a step"
        )
    training = config.training
    if growth > 1:
        alone = (step for step in known.of_kind(_KIND) if (step.sizes, step.dap) == (sizes, 1))
        slowest = max(alone, key=lambda step: step.seconds)
        last, further = slowest.passes
        seconds = growth * (last + training.max_recycling / 2 * further)
        return (
            f"at most about {training.steps * training.global_batch_size * seconds / 3600:,.1f} on "
            f"one H200 with training.recomputation {slowest.recomputation}, at {seconds:.4g} s a "
            "sample; its memory is not recorded, and auto takes what fits"
        )
    features = config.features.model_copy(update=dict(zip(SIZES, sizes, strict=True)))
    measured = config.model_copy(update={"features": features, "model": ModelConfig()})
    cluster = Cluster(_KIND, 8, known.fabrics["ndr"], known.gpu_gib[_KIND], 1000.0, 2.5)
    row = Planner(measured, cluster, known).fastest(1)
    if row.gpu_hours < 0.1:
        return "less than 0.1 on one H200; the training log shows the time left"
    least = min(step.gib for step in known.steps if step.gib and step.sizes == sizes)
    about = "" if measured == config else "at most about "
    return (
        f"{about}{row.gpu_hours:,.1f} on one H200 with training.recomputation "
        f"{row.recomputation}, at {row.step_seconds / row.samples:.4g} s a sample and "
        f"{row.memory_gib:.0f} GiB of its memory; auto takes less where there is less, down to "
        f"{least:.1f} GiB"
    )


def _growth(sizes: tuple[int, ...], config: Config) -> float:
    """How many times as long as a recorded sample one of this configuration takes at most.

    1 if no size is larger. Else each part of the model grows by a product of sizes, and their sum
    by the largest growth at most. Infinite if a number of the model is larger than the recorded
    one's. The head of aligned errors takes little. Templates' torsions are rows of the alignment.
    """
    own, most = (list(_integers(model.model_dump())) for model in (config.model, ModelConfig()))
    if any(one > other for one, other in zip(own, most, strict=True)):
        return math.inf
    crop, clusters, extra, slots = (getattr(config.features, key) for key in SIZES)
    slots = config.model.template.num_rows(slots)
    recorded = (sizes[0], sizes[1] + sizes[3], *sizes[2:])
    now = (crop, clusters + slots, extra, slots)
    n, s, e, t = (max(1.0, one / other) for one, other in zip(now, recorded, strict=True))
    # triangles, of templates too; rows and columns of the MSA; rows of the extra MSA
    return max(n**3 * t, n**2 * s, n * s**2, n**2 * e)


def _integers(tree: Mapping[str, object]) -> Iterator[int]:
    for value in tree.values():
        if isinstance(value, Mapping):
            yield from _integers(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            yield value


def _checkpoints(config: Config) -> str:
    number = len(config.training.published_steps())
    each = checkpoint_bytes(config)
    return f"{number:,} of {decimal(each)}, {decimal(number * each)} in all"


def checkpoint_bytes(config: Config) -> int:
    """Return the size of a checkpoint."""
    from scalefold.engine.memory import num_parameters

    return _BYTES_A_PARAMETER * num_parameters(config)


def _called(stage: str) -> str:
    return f"{stage}, " if stage else ""


def _by_split(chains: Sequence[ChainRow]) -> str:
    counts = Counter(row.split for row in chains)
    return ", ".join(f"{count:,} {split}" for split, count in sorted(counts.items()))
