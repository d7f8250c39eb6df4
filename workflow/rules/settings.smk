# What all rules need to know: the checked configuration, the buckets, the checkpoints, the paths.
import json
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import validate

from scalefold.config import config_to_yaml, make_config
from scalefold.errors import InputError
from scalefold.raw.chains import read_chains
from scalefold.raw.fetch import local_sources
from scalefold.raw.mirrors import local_folder
from scalefold.shards.buckets import bucket_of
from scalefold.shards.manifest import packing_hash

try:
    CONFIG = make_config(config, source=", ".join(map(str, workflow.configfiles)))
    CHAINS = {}
    for row in read_chains(CONFIG.data.chains):
        CHAINS.setdefault(bucket_of(row.entry_id, CONFIG.data.buckets), []).append(row)
except InputError as error:
    raise WorkflowError(str(error)) from None
validate(CONFIG.model_dump(mode="json"), "../schemas/config.schema.json", set_default=False)

# The environment that runs Snakemake also has `scalefold`, unless a container or conda brings one.
shell.prefix(f'set -euo pipefail; export PATH="$PATH":{json.dumps(str(Path(sys.executable).parent))}; ')

RUN = (CONFIG.results / CONFIG.run_name).as_posix()
BUCKETS = [f"{bucket:05d}" for bucket in sorted(CHAINS)]


wildcard_constraints:
    bucket=r"\d{5}",
    step=r"\d{8}",


def settings(*keys):
    """The given keys of the configuration as text: a rule reruns when these change."""
    tree = CONFIG.model_dump(mode="json")
    chosen = {}
    for key in keys:
        value = tree
        for name in key.split("."):
            value = value[name]
        chosen[key] = value
    return json.dumps(chosen, sort_keys=True)


localrules:
    all,
    config,
    all_structures,


rule config:
    # The complete configuration: what every other rule reads, and a record of the run.
    output:
        f"{RUN}/config.yaml",
    log:
        f"{RUN}/logs/config.log",
    benchmark:
        f"{RUN}/benchmarks/config.tsv"
    threads: 1
    resources:
        mem_mb=500,
        runtime=5,
    params:
        tree=config_to_yaml(CONFIG),
    shell:
        "printf '%s' {params.tree:q} > {output:q} 2> {log:q}"
