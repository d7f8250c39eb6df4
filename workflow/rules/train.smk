# Training is one job: one process on this machine, or processes on several nodes of a cluster. Its
# checkpoints are not declared, since Snakemake deletes declared outputs of a job that failed or runs
# again, and interrupted training continues from its last checkpoint. Training with other settings has
# another key, thus another folder. With other data or initial weights it starts over in the same folder,
# and the earlier run moves to replaced/.
from scalefold.config import check_initial_weights, initial_weights_file
from scalefold.launcher import choose_degree
from scalefold.raw.chains import check_trainable
from scalefold.train.restart_warnings import restart_warnings

# These rules need neither weights nor chains to train on. If `--until` names no others, a lack of
# them is no error.
DATA_RULES = {"fetch_structures", "fetch_alignments", "structures", "all_structures"}
DATA_RULES |= {"unaligned", "search", "searched", "pack", "index", "verify"}


def started_from(wildcards):
    """A training run waits for the one whose weights it starts from; given weights must be there."""
    until = set(workflow.dag_settings.until)
    if until and until <= DATA_RULES:
        return []
    check_trainable(LISTED, CONFIG.data.splits or CONFIG.data.chains)
    say_restart_warnings(wildcards.key)
    keys = list(TRAININGS)
    position = keys.index(wildcards.key)
    if position > 0:
        return TRAINED.format(key=keys[position - 1])
    config = TRAININGS[wildcards.key]
    check_processes(config)
    if not os.path.exists(TRAINED.format(key=wildcards.key)):
        check_initial_weights(config)
    given = config.training.initial_weights
    return [] if given is None else given.as_posix()


def check_processes(config):
    """Processes that share a sample are on one node, and all of them train."""
    if config.evaluation.ranks:
        raise InputError(
            f"evaluation.ranks is {config.evaluation.ranks}, but in the workflow a job of its own "
            "evaluates beside training: set it to 0, or start `scalefold train` yourself"
        )
    given = workflow.get_rule("train").resources
    nodes, processes = (given[name].value for name in ("nodes", "processes"))
    batch_size = config.training.global_batch_size
    choose_degree(config.parallel.dap, nodes * processes, processes, batch_size)


@cache
def say_restart_warnings(key):
    """Warn if training is to start over, or lacks checkpoints that are wanted."""
    if workflow.is_main_process:
        training, evaluations = (
            Path(path.format(key=key)) for path in (TRAINING, EVALUATIONS)
        )
        shards = Path(shards_of(key))
        for warning in restart_warnings(training, shards, evaluations, TRAININGS[key]):
            logger.warning(warning)


def given_weights():
    """Time and size of the weights that the first training run starts from, as a parameter.

    As an input, the file only counts if it is newer than what was made of it.
    """
    first, config = next(iter(TRAININGS.items()))
    file = initial_weights_file(config)
    if file is None or not file.exists():
        return []
    known = {"initial_weights": [file.stat().st_mtime_ns, file.stat().st_size]}
    return [lambda wildcards: known if wildcards.key == first else None]


checkpoint train:
    input:
        index=lambda wildcards: f"{training_shards(wildcards)}/index.arrow",
        manifest=training_manifest,
        start=started_from,
    output:
        TRAINED,
    log:
        "<logs>/train/{key}.log",
    benchmark:
        "<benchmarks>/train/{key}.tsv"
    priority: 1  # goes before evaluations, where both wait for the same resources
    conda:
        ENVIRONMENT
    container:
        None  # see in_container
    threads: 8
    resources:
        mem_mb=32000,
        runtime=2880,
        gpu=1,
        nodes=1,
        processes=1,
    params:
        # All else that matters is in the key.
        *training_settings("training", without="training.accept_new_data"),
        *given_weights(),
        config=given_training,
        launcher=launcher,
        when_stopped=when_stopped,
        shards=training_shards,
        training=TRAINING,
        failed=FAILED,
        evaluations=EVALUATIONS,
    # Snakemake deletes a job's log when it starts again; training.log keeps all, also what is said after
    # SIGTERM of a cluster or SIGHUP of a closed terminal, which all processes get.
    shell:
        "mkdir -p {params.training:q}; rm -f {params.failed:q} {params.evaluations:q}/evaluated-*.done;"
        " {{ {params.launcher} train {params.config} --shards {params.shards:q}"
        " --out {params.training:q} --resume --set-aside --strict && touch {output:q}"
        " || {params.when_stopped}; }} 2>&1"
        " | (trap '' TERM HUP; tee -i -a {log:q} {params.training:q}/training.log)"
