# The checked configuration, and what all rules use: paths, parameters, resources.
import hashlib
import json
import os
import shlex
import shutil
import sys
from functools import cache, reduce
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger
from snakemake.settings.types import DeploymentMethod
from snakemake.utils import validate

from scalefold.checkpoint.lock import FAILED_MARK
from scalefold.config import check_image, load_config, load_stages, run_key
from scalefold.config.identity import former_packing_settings
from scalefold.errors import InputError
from scalefold.raw.chains import read_chains
from scalefold.raw.chains import with_splits
from scalefold.io.atomic import check_writable
from scalefold.shards.bucket_count import with_bucket_count
from scalefold.shards.buckets import bucket_of

overrides = workflow.config_settings.config
try:
    files = [Path(path) for path in workflow.configfiles]
    CONFIG = load_config(files, overrides)
    STAGES = load_stages(files, overrides)
    # With given weights there is nothing but predictions.
    rows = [] if CONFIG.predict.weights else read_chains(CONFIG.data.chains)
    # Fetched and packed are `rows`. Only index and training ask for the splits of data.splits.
    LISTED = rows and with_splits(rows, CONFIG.data)
    check_writable(CONFIG.results / CONFIG.run_name, "results")
    CONFIG = with_bucket_count(
        CONFIG, CONFIG.results / CONFIG.run_name / "shards", rows
    )
    if DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method:
        check_image(CONFIG)
except InputError as error:
    hint = (
        ""
        if workflow.overwrite_configfiles
        else "\nNo --configfile was given, so config.yaml was taken. The demo: "
        "`snakemake --profile local --configfile demo/config.yaml`"
    )
    raise WorkflowError(f"{error}{hint}") from None
CHAINS = {}
for row in rows:
    CHAINS.setdefault(bucket_of(row.entry_id, CONFIG.data.num_buckets), []).append(row)
validate(
    CONFIG.model_dump(mode="json"), "../schemas/config.schema.json", set_default=False
)

RUN = (CONFIG.results / CONFIG.run_name).as_posix()
SHARDS = f"{RUN}/shards"
BUCKETS = [f"{bucket:05d}" for bucket in sorted(CHAINS)]
# The trainings of the run, in order. The key is a hash of the settings that the weights depend on.
KEYS = {stage: run_key(config) for stage, config in STAGES.items()}
OF_KEY = {KEYS[stage]: (stage, config) for stage, config in STAGES.items()}
TRAINING = f"{RUN}/weights/{{key}}"
TRAINED = f"{TRAINING}/training.done"
FAILED = f"{TRAINING}/{FAILED_MARK}"
REPORTS = {f"-{stage}" if stage else "": key for stage, key in KEYS.items()}

# Environments of `--sdm conda`; the image of `--sdm apptainer` serves all rules.
DATA_ENVIRONMENT = "../../envs/data.yaml"
ENVIRONMENT = "../../envs/scalefold.yaml"


container: CONFIG.container


wildcard_constraints:
    bucket=r"\d{5}",
    part=r"\d{5}",
    key=r"[0-9a-f]{12}",
    step=r"\d{8}",
    purpose="predictions|distilled",
    teacher="[0-9a-f]{12}|given",
    of=f"(?:{'|'.join(REPORTS)})",


localrules:
    all,
    config,
    all_structures,


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


def given_training(wildcards, threads):
    """The configuration of the training that a job's wildcard `key`, or `of`, stands for."""
    stage, _ = OF_KEY[wildcards.get("key") or REPORTS[wildcards.of]]
    chosen = f" --stage {shlex.quote(stage)}" if stage else ""
    return given_configuration(wildcards, threads) + chosen


def settings(*keys):
    """Keys and sections of the configuration as parameters: a job reruns when one changes.

    Each is a dictionary, since Snakemake would take braces in a text for wildcards.
    """
    tree = CONFIG.model_dump(mode="json")
    return [
        {leaf: value}
        for key in keys
        for leaf, value in leaves(key, reduce(dict.__getitem__, key.split("."), tree))
    ]


def packing_params():
    """All settings that packing depends on, as parameters; shards of earlier versions stay valid."""
    return [{leaf: value} for leaf, value in former_packing_settings(CONFIG).items()]


def leaves(key, value):
    """All keys below a key, in full, with their values."""
    if not isinstance(value, dict):
        return [(key, value)]
    return [leaf for name in value for leaf in leaves(f"{key}.{name}", value[name])]


def training_settings(section, without=()):
    """Keys of a section as parameters, with the values of the training of a job's wildcard `key`."""
    trees = {
        key: dict(leaves(section, config.model_dump(mode="json")[section]))
        for key, (_, config) in OF_KEY.items()
    }

    def setting(name):
        return lambda wildcards: {name: trees[wildcards.key][name]}

    names = next(iter(trees.values()))
    return [setting(name) for name in names if name not in without]


def literal(text):
    """A text as a parameter, in which braces are no wildcards."""
    return lambda wildcards: text


def growing(amount):
    """A resource that is asked for twofold at the second attempt, threefold at the third."""
    return lambda wildcards, attempt: amount * attempt


@cache
def hashed_bucket(bucket):
    return hashed(CHAINS[bucket])


def hashed(lines):
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()[:12]


def chain_table(wildcards):
    """A bucket's lines of the list of chains, hashed: a changed line concerns its bucket only."""
    return hashed_bucket(int(wildcards.bucket))


def split_list():
    """The lines with the splits of data.splits, hashed, as a parameter; none without it."""
    return [] if CONFIG.data.splits is None else [hashed(LISTED)]
