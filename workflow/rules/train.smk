# Training, as one job: one process on this machine, or processes on several nodes of a cluster.
# Its checkpoints stay undeclared: Snakemake deletes the declared outputs of a job that failed or runs
# again, and an interrupted training goes on from its last checkpoint. With other settings it has
# another key, thus another folder; with other data, or other initial weights under the same name, it
# starts anew, and the earlier one is moved to replaced/ in the folder.
BEFORE_TRAINING = {rule.name for rule in workflow.rules}


def started_from(wildcards):
    """A training that starts from the weights of another waits for it; given ones must be there.

    Some chain must be there to train on, too.

    Not where `--until` names rules before it alone: Snakemake plans the training, too, then drops it.
    """
    until = set(workflow.dag_settings.until)
    if until and until <= BEFORE_TRAINING:
        return []
    check_trainable(rows, CONFIG.data.chains)
    ask_training(wildcards.key)
    keys = list(KEYS.values())
    position = keys.index(wildcards.key)
    if position > 0:
        return TRAINED.format(key=keys[position - 1])
    given = next(iter(STAGES.values())).training.initial_weights
    if workflow.is_main_process:
        look_at_weights(wildcards.key)
        look_at_steps(wildcards.key)
    return [] if given is None else given.as_posix()


@cache
def look_at_weights(key):
    """Warn if the weights that a training starts from are not those it had."""
    training, config = TRAINING.format(key=key), STAGES[stage_of(key)]
    now = initial_weights_sha256(config)
    # Of a checkpoint that cannot be read, the training says so.
    with contextlib.suppress(OSError, ValueError, KeyError):
        before = other_initial_weights(Path(training), now)
        if before is not None:
            logger.warning(
                f"{config.training.initial_weights}: other initial weights than those that {training} "
                f"was trained from (sha256 {before[:12]} then, {now[:12]} now). It is trained anew; "
                "the earlier training is moved to replaced/ in its folder"
            )
            make_again(TRAINED.format(key=key))


@cache
def look_at_steps(key):
    """Warn if a training has passed steps of which a checkpoint is wanted, and has none."""
    training, config = TRAINING.format(key=key), STAGES[stage_of(key)].training
    passed, made = passed_without(key), published_so_far(key)
    if config.steps in passed:
        choice = [step for step in made if step > 0]
        logger.warning(
            f"training.steps is {config.steps}, but {training} has made {made[-1]} and has no checkpoint "
            f"of step {config.steps}. It is trained anew; the earlier training is moved to replaced/ in "
            f"its folder. To keep it, set training.steps to one of {enumeration(choice)}, or to more"
        )
        return
    missed = [step for step in passed if not Path(evaluation(key, step)).exists()]
    if missed:
        logger.warning(
            f"{training} has passed step {made[-1]} and has no checkpoint of {enumeration(missed)}, "
            "wanted now (training.checkpoint_every was another, or they were deleted). It is kept, and "
            "goes on if steps are left; those steps are not evaluated. For all of them, delete the "
            "folder: that trains anew"
        )


def enumeration(steps, most=8):
    """Steps in words, not more than a few."""
    more = f" and {len(steps) - most} more" if len(steps) > most else ""
    return ", ".join(map(str, steps[:most])) + more


def given_weights():
    """Time and size of the weights that the first training starts from, as a parameter.

    The file is an input, too, but as such it only counts if it is newer than what was made of it.
    """
    file = initial_weights_file(next(iter(STAGES.values())))
    if file is None or not file.exists():
        return []
    known = {"initial_weights": [file.stat().st_mtime_ns, file.stat().st_size]}
    first = next(iter(KEYS.values()))
    return [lambda wildcards: known if wildcards.key == first else None]


checkpoint train:
    input:
        index=f"{SHARDS}/index.arrow",
        manifest=f"{SHARDS}/manifest.json",
        start=started_from,
    output:
        TRAINED,
    log:
        f"{RUN}/logs/train/{{key}}.log",
    benchmark:
        f"{RUN}/benchmarks/train/{{key}}.tsv"
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
        *training_settings("training"),  # all else that matters is in the key
        *given_weights(),
        config=given_training,
        launcher=launcher,
        when_stopped=when_stopped,
        shards=literal(SHARDS),
        training=TRAINING,
    # Snakemake deletes a job's log when it starts again; training.log tells the whole story, also what
    # is said after a cluster's SIGTERM or the end of a terminal (SIGHUP), which all processes get.
    shell:
        "mkdir -p {params.training:q};"
        " {{ {params.launcher} train {params.config} --shards {params.shards:q}"
        " --out {params.training:q} --resume --set-aside && touch {output:q}"
        " || {params.when_stopped}; }} 2>&1"
        " | (trap '' TERM HUP; tee -i -a {log:q} {params.training:q}/training.log)"
