# The checked configuration, and what all rules use: paths, environments, parameters, resources.
import hashlib
import json
import os
import shlex
import shutil
import sys
import time
from functools import cache
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger
from snakemake.settings.types import DeploymentMethod

from scalefold.checkpoint.lock import FAILED_MARK
from scalefold.config import check_image, load_config, load_stages, run_key
from scalefold.config.identity import former_packing_settings, leaves
from scalefold.config.stages import teachers
from scalefold.errors import InputError
from scalefold.raw.chains import read_chains
from scalefold.raw.chains import with_splits
from scalefold.io.atomic import check_writable
from scalefold.shards.bucket_count import with_bucket_count
from scalefold.shards.buckets import bucket_of
from scalefold.shards.manifest import is_former
from scalefold.shards.repack_hint import PACK_ALIGNMENTS_AGAIN

GIVEN = "given"
overrides = workflow.config_settings.config
try:
    files = [Path(path) for path in workflow.configfiles]
    CONFIG = load_config(files, overrides)
    STAGES = load_stages(files, overrides)
    # The training runs, in order, by a hash of the settings that the weights depend on.
    KEYS = {stage: run_key(config) for stage, config in STAGES.items()}
    # Of those that are mixed with predicted structures: the training whose weights predict these.
    TEACHERS = {
        KEYS[stage]: GIVEN if teacher is None else KEYS[teacher]
        for stage, teacher in teachers(STAGES).items()
    }
    # With given weights there is nothing but predictions.
    rows = [] if CONFIG.predict.weights else read_chains(CONFIG.data.chains)
    # Fetched and packed are `rows`. Only index and training ask for the splits of data.splits.
    LISTED = rows and with_splits(rows, CONFIG.data)
    folder = CONFIG.results / CONFIG.run_name
    check_writable(folder, "results")
    CONFIG = with_bucket_count(CONFIG, folder / "shards", rows)
    if DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method:
        check_image(CONFIG)
except InputError as error:
    hint = (
        "\nNo --configfile was given, so config.yaml was taken. The demo: "
        "`snakemake --profile local --configfile demo/config.yaml`"
    )
    raise WorkflowError(
        f"{error}{'' if workflow.overwrite_configfiles else hint}"
    ) from None

# The list of chains, in buckets.
CHAINS = {}
for row in rows:
    CHAINS.setdefault(bucket_of(row.entry_id, CONFIG.data.num_buckets), []).append(row)
BUCKETS = [f"{bucket:05d}" for bucket in sorted(CHAINS)]

TRAININGS = {KEYS[stage]: config for stage, config in STAGES.items()}
REPORTS = {f"-{stage}" if stage else "": key for stage, key in KEYS.items()}

RUN = folder.as_posix()
SHARDS = f"{RUN}/shards"
TRAINING = f"{RUN}/weights/{{key}}"
CHECKPOINT = f"{TRAINING}/step-{{step}}"
TRAINED = f"{TRAINING}/training.done"
FAILED = f"{TRAINING}/{FAILED_MARK}"
EVALUATIONS = f"{RUN}/evaluation/{{key}}"
EVALUATED = f"{EVALUATIONS}/evaluated-{{asked}}.done"

# Environments of `--sdm conda`; the image of `--sdm apptainer` serves all rules.
DATA_ENVIRONMENT = "../../envs/data.yaml"
ENVIRONMENT = "../../envs/scalefold.yaml"


container: CONFIG.container


# What <results>, <logs> and <benchmarks> stand for in the paths of rules.
pathvars:
    results=RUN,
    logs=f"{RUN}/logs",
    benchmarks=f"{RUN}/benchmarks",


wildcard_constraints:
    bucket=r"\d{5}",
    part=r"\d{5}",
    key=r"[0-9a-f]{12}",
    asked=r"[0-9a-f]{12}",
    step=r"\d{8}",
    purpose="predictions|distilled",
    teacher="[0-9a-f]{12}|given",
    of=f"(?:{'|'.join(REPORTS)})",


onstart:
    # Once for the whole run, and not for a dry run.
    if workflow.executor_plugin.name == "slurm" and not shutil.which("sbatch"):
        raise WorkflowError(
            "this machine has no Slurm: `sbatch` is not found. Start on a login node of the cluster, "
            "or run everything here with --profile local"
        )


# `scalefold` is in the environment that runs Snakemake, unless a container or conda brings one.
# Commands log through `tee -i`, which outlives an interruption.
shell.prefix(
    f'set -euo pipefail; export PATH="$PATH":{shlex.quote(str(Path(sys.executable).parent))}; '
)


def given_configuration(wildcards, threads):
    """The files and overrides of the configuration, the same for every command.

    A job lists the keys that it uses as parameters of their own, so this one is no reason to run it
    again: Snakemake does not compare parameters that are functions of `threads`.
    """
    words = [w for p in workflow.configfiles for w in ("--config", os.path.relpath(p))]
    for key, value in overrides.items():
        words += ["--set", f"{key}={json.dumps(value)}"]
    return shlex.join([*words, "--set", f"data.buckets={CONFIG.data.buckets}"])


def key_of(wildcards):
    """The training that a job's wildcard `key`, or `of`, stands for."""
    return wildcards.get("key") or REPORTS[wildcards.of]


def given_training(wildcards, threads):
    """The configuration of that training run."""
    (stage,) = [stage for stage, key in KEYS.items() if key == key_of(wildcards)]
    chosen = f" --stage {shlex.quote(stage)}" if stage else ""
    return given_configuration(wildcards, threads) + chosen


def flat(config):
    """All settings by dotted key."""
    return dict(leaves(config.model_dump(mode="json")))


def settings(*sections):
    """Keys and sections of the configuration as parameters: a job reruns when one changes.

    Each is a dictionary, since Snakemake would take braces in a text for wildcards.
    """
    return [
        {key: value}
        for key, value in flat(CONFIG).items()
        if any(f"{key}.".startswith(f"{section}.") for section in sections)
    ]


def training_settings(section, without):
    """All keys of a section but one, with the values of the training of a job's wildcard `key`."""
    of = {key: flat(config) for key, config in TRAININGS.items()}
    first, *_ = of.values()
    names = [n for n in first if n.startswith(f"{section}.") and n != without]
    return [lambda wildcards, n=n: {n: of[wildcards.key][n]} for n in names]


# All settings that packing depends on; shards of earlier versions stay valid.
PACKING = [{key: value} for key, value in former_packing_settings(CONFIG).items()]


def literal(folder):
    """A folder as a parameter; lint takes a text that outputs begin with for a mistake."""
    return lambda wildcards: folder


def growing(amount):
    """A resource that is asked for twofold at the second attempt, threefold at the third."""
    return lambda wildcards, attempt: amount * attempt


@cache
def hashed(lines):
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()[:12]


def chain_table(wildcards):
    """A bucket's lines of the list of chains, hashed: a changed line concerns its bucket only."""
    return hashed(tuple(CHAINS[int(wildcards.bucket)]))


def of_this_version(wildcards):
    """Refuse shards of schema version 1 before Snakemake deletes any; no input."""
    asked_for = "fetch_alignments" in workflow.dag_settings.forcerun
    if workflow.is_main_process and is_former(Path(SHARDS)) and not asked_for:
        raise WorkflowError(
            f"{SHARDS} holds shards of schema version 1. {PACK_ALIGNMENTS_AGAIN}"
        )
    return []
