# What all rules need to know: the checked configuration, the buckets, the checkpoints, the paths.
import contextlib
import gc
import hashlib
import json
import os
import shlex
import sys
from functools import cache, partial, reduce
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger
from snakemake.settings.types import DeploymentMethod
from snakemake.utils import validate

from scalefold.config import (
    check_image,
    check_initial_weights,
    initial_weights_file,
    initial_weights_sha256,
    load_config,
    load_stages,
    run_key,
)
from scalefold.config.identity import former_packing_settings
from scalefold.errors import InputError
from scalefold.raw.chain_files import (
    absent_files,
    check_files,
    local_sources,
)
from scalefold.raw.chains import check_trainable, read_chains
from scalefold.io.atomic import check_writable
from scalefold.shards.buckets import bucket_of
from scalefold.checkpoint.published import (
    other_initial_weights,
    passed_steps,
    steps_made_from,
)

overrides = workflow.config_settings.config
gc.disable()
try:
    files = [Path(path) for path in workflow.configfiles]
    CONFIG = load_config(files, overrides)
    STAGES = load_stages(files, overrides)
    CHAINS = {}
    rows = read_chains(CONFIG.data.chains)
    check_writable(CONFIG.results / CONFIG.run_name, "results")
    if DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method:
        check_image(CONFIG)
    for row in rows:
        CHAINS.setdefault(bucket_of(row.entry_id, CONFIG.data.buckets), []).append(row)
except InputError as error:
    unchosen = (
        ""
        if workflow.overwrite_configfiles
        else "\nNo --configfile was given, so config.yaml was taken. A run of your own is `snakemake "
        "--profile local --configfile my.yaml`, the demo `snakemake --profile local`"
    )
    raise WorkflowError(f"{error}{unchosen}") from None
# Of a large table there are a million objects to stay: the collector need not look at them again; nor,
# as often as it does by default, at a graph of thousands of jobs: a fifth of the time of a dry run.
gc.freeze()
gc.set_threshold(50_000, 20, 20)
gc.enable()
validate(
    CONFIG.model_dump(mode="json"), "../schemas/config.schema.json", set_default=False
)


def given_configuration(wildcards, threads):
    """The same files and overrides for every command, so that all see one configuration.

    How it was given is no reason to run a job again, which lists the keys that it uses. For that,
    Snakemake leaves out parameters that are functions of `threads`.
    """
    words = [w for p in workflow.configfiles for w in ("--config", os.path.relpath(p))]
    for key, value in overrides.items():
        words += ["--set", f"{key}={json.dumps(value)}"]
    return shlex.join(words)


def given_training(wildcards, threads):
    """The configuration of one training, likewise."""
    stage = stage_of(wildcards.key)
    chosen = f" --stage {shlex.quote(stage)}" if stage else ""
    return given_configuration(wildcards, threads) + chosen


# Commands log through `tee -i`, which outlives an interruption: a training that is interrupted says
# what it does while it ends in order.
# The environment that runs Snakemake also has `scalefold`, unless a container or conda brings one.
shell.prefix(
    f'set -euo pipefail; export PATH="$PATH":{json.dumps(str(Path(sys.executable).parent))}; '
)

RUN = (CONFIG.results / CONFIG.run_name).as_posix()
# The trainings of the run, in order. One with other settings has another key: those that its weights
# do not depend on do not count.
KEYS = {stage: run_key(config) for stage, config in STAGES.items()}
TRAINING = f"{RUN}/weights/{{key}}"
TRAINED = f"{TRAINING}/training.done"
REPORTS = {f"-{stage}" if stage else "": key for stage, key in KEYS.items()}
BUCKETS = [f"{bucket:05d}" for bucket in sorted(CHAINS)]


# Environments of `--sdm conda`. The one for the data stages is small; the image of `--sdm apptainer`,
# `container` in the configuration, serves all.
DATA_ENVIRONMENT = "../../envs/data.yaml"
ENVIRONMENT = "../../envs/scalefold.yaml"


container: CONFIG.container


wildcard_constraints:
    bucket=r"\d{5}",
    key=r"[0-9a-f]{12}",
    step=r"\d{8}",
    of=f"(?:{'|'.join(REPORTS)})",


def settings(*keys):
    """Keys and sections of the configuration as parameters: a job reruns when one changes.

    A dictionary each, which Snakemake takes as it is: of a text it would format the braces.
    """
    tree = CONFIG.model_dump(mode="json")
    return [
        {leaf: value}
        for key in keys
        for leaf, value in leaves(key, reduce(dict.__getitem__, key.split("."), tree))
    ]


def packing_params():
    """The same of all that packing depends on; shards of earlier versions need none of it anew."""
    return [{leaf: value} for leaf, value in former_packing_settings(CONFIG).items()]


def leaves(key, value):
    """All keys below a key, in full, with their values."""
    if not isinstance(value, dict):
        return [(key, value)]
    return [leaf for name in value for leaf in leaves(f"{key}.{name}", value[name])]


def training_settings(section, without=()):
    """The same, of the training that a job's wildcard `key` stands for; but those not named."""
    trees = {
        KEYS[stage]: {
            name: value
            for name, value in leaves(section, config.model_dump(mode="json")[section])
            if name not in without
        }
        for stage, config in STAGES.items()
    }

    def setting(name):
        return lambda wildcards: {name: trees[wildcards.key][name]}

    return [setting(name) for name in next(iter(trees.values()))]


def stage_of(key):
    """Name of the stage whose training has a key."""
    return next(stage for stage, of_stage in KEYS.items() if of_stage == key)


def literal(text):
    """A text as a parameter: Snakemake would take braces in the text itself for wildcards."""
    return lambda wildcards: text


def mirror_files(kind):
    """Input function: a bucket's files on local mirrors; one that changes is fetched again.

    A mirror that should be a folder and is not there is an input that is missing; so is the first
    file of a kind that no chain has.
    """
    absent = absent_files(rows, CONFIG.data, kind)

    def files(wildcards):
        sources = local_sources(CHAINS[int(wildcards.bucket)], CONFIG.data, kind)
        return [path.as_posix() for path in [*absent, *sources]]

    return files


def growing(amount):
    """A resource that is asked for twofold at the second attempt, threefold at the third."""
    return lambda wildcards, attempt: amount * attempt


@cache
def hashed_lines(bucket):
    rows = [(c.chain_key, c.split, c.cluster_id) for c in CHAINS[bucket]]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:12]


def chain_table(wildcards):
    """A bucket's lines of the list of chains, hashed: a changed line concerns its bucket only."""
    return hashed_lines(int(wildcards.bucket))


localrules:
    all,
    config,
    all_structures,
