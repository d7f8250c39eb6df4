# Results that Snakemake has no record of. It remembers what it made with which settings in `.snakemake`,
# in the folder where it runs, by each path as it was given; whatever lies in a results folder that was
# copied, is used from a second clone, or is given by another path, it takes for up to date. So results
# are also asked themselves what they were made with, and are made again if that was something else.
from itertools import takewhile

from snakemake.io import IOFile
from snakemake.settings.types import RerunTrigger

from scalefold.config import config_to_yaml
from scalefold.raw.chains import entry_of
from scalefold.shards.packed_settings import other_chains, other_settings
from scalefold.shards.summary import in_words
from scalefold.checkpoint.target import read_target


def asks_results():
    """Not in the processes of jobs; nor where it was asked that changed parameters are no reason."""
    return workflow.is_main_process and RerunTrigger.PARAMS in workflow.rerun_triggers


def make_again(path):
    """Have the job run that makes a file, if the plan has it at all; as `-R` does, but no new target."""
    if asks_results():
        workflow.dag.forcefiles.add(path)


def made_since(path, time_ns):
    """Did Snakemake make a file after a time, as it remembers? Then it goes by its own record."""
    recorded = workflow.persistence.metadata(IOFile(path, rule=None)) is not None
    return recorded and Path(path).stat().st_mtime_ns > time_ns


def ask_shards(wildcards):
    """No inputs. Shards of other settings or of another list of chains are packed again."""
    if asks_results():
        for path in stale_data():
            make_again(path)
    return []


@cache
def stale_data():
    """Files of the last complete shards, and those that they were made of, that are to be made again."""
    manifest = Path(SHARDS) / "manifest.json"
    # Shards that are not complete are yet to be made; of damaged ones the next job says so.
    with contextlib.suppress(OSError, InputError):
        settings = other_settings(Path(SHARDS), CONFIG)
        chains = other_chains(Path(SHARDS), rows)
        stale = stale_by_settings(settings) | stale_by_chains(chains)
        packed_at = manifest.stat().st_mtime_ns
        there = [path for path in stale if Path(path).exists()]
        again = [path for path in there if not made_since(path, packed_at)]
        return [*again, *([manifest.as_posix()] if stale else [])]
    return []


def stale_by_settings(settings):
    """All shards, if settings of packing are others; what was fetched, if it was of other kinds."""
    if not settings:
        return set()
    logger.warning(
        f"{SHARDS} was packed with other settings: {in_words(settings)}. It is packed again"
    )
    stale = {
        f"{SHARDS}/{family}-{bucket}.arrow"
        for family in ("chain", "msa")
        for bucket in BUCKETS
    }
    if settings.keys() & {"data.alignments", "data.template_hits"}:
        stale |= {f"{RUN}/raw/fetched-alignments-{bucket}.tsv" for bucket in BUCKETS}
    return stale


def stale_by_chains(chains):
    """What was fetched and packed of the buckets of chains whose lines differ."""
    if not chains:
        return set()
    logger.warning(
        f"{SHARDS} was packed with another list of chains ({len(chains)} lines differ from "
        f"{CONFIG.data.chains}, {min(chains)} for one). It is packed again"
    )
    buckets = {bucket_of(entry_of(key), CONFIG.data.buckets) for key in chains}
    return {
        path
        for bucket in buckets
        for path in (
            f"{RUN}/raw/fetched-structures-{bucket:05d}.tsv",
            f"{RUN}/raw/fetched-alignments-{bucket:05d}.tsv",
            f"{SHARDS}/chain-{bucket:05d}.arrow",
            f"{SHARDS}/msa-{bucket:05d}.arrow",
        )
    }


@cache
def ask_training(key):
    """A training that ended at another step than it is to end at goes on, or starts anew.

    Not if that step was evaluated: then only its checkpoint was deleted.
    """
    training, config = Path(TRAINING.format(key=key)), STAGES[stage_of(key)]
    trained, last = TRAINED.format(key=key), config.training.steps
    if not Path(trained).exists() or Path(evaluation(key, last)).exists():
        return
    # Of a checkpoint that cannot be read, the training says so.
    with contextlib.suppress(OSError, ValueError, KeyError):
        target = read_target(training, config.evaluation, data_hash())
        if last not in published(key) and target is None:
            make_again(trained)


@cache
def ask_evaluation(key, step):
    """An evaluation that was made with other settings is made again."""
    path, wanted = evaluation(key, step), STAGES[stage_of(key)].evaluation
    with contextlib.suppress(OSError, ValueError, KeyError):
        # Only its head: the chains, with all residues, are long.
        with open(path) as file:
            lines = takewhile(lambda line: not line.startswith(' "chains": '), file)
            head = json.loads("".join(lines).rstrip(", \n") + "}")
        as_set = (
            head["recycling"] == wanted.recycling
            and head["seed"] == wanted.seed
            and head["mean"].keys() == set(wanted.splits)
            and wanted.precision in ("auto", head["precision"])
            and head.get("max_length", wanted.max_length) == wanted.max_length
        )
        if not as_set:
            make_again(path)


def ask_configuration(wildcards):
    """No inputs. The record of another configuration is written again."""
    with contextlib.suppress(OSError):
        record = Path(f"{RUN}/config.yaml")
        if record.read_bytes() != config_to_yaml(CONFIG).encode():
            make_again(record.as_posix())
    return []
