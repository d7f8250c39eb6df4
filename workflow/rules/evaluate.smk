# Evaluation on the averaged weights. Rule `evaluate` evaluates one checkpoint after training. With
# `evaluation.mode: async`, rule `evaluate_beside` evaluates checkpoints while training goes on, and
# rule `evaluate` those that it has missed.
from scalefold.checkpoint.published import passed_steps
from scalefold.checkpoint.target import read_end

ASYNC = CONFIG.evaluation.mode == "async"


def evaluation(key, step):
    return f"{RUN}/evaluation/{key}/step-{step:08d}.json"


def has_ended(key):
    """Has a training made its last step, or was it ended? Its last checkpoint may be deleted."""
    config, training = TRAININGS[key], Path(TRAINING.format(key=key))
    last = config.training.steps
    if last in published(key) or os.path.exists(evaluation(key, last)):
        return True
    try:
        data = data_hash(Path(shards_of(key)))
        return read_end(training, config.evaluation, data) is not None
    except (OSError, ValueError):
        return False


FOLLOWED = [key for key in TRAININGS if ASYNC and not has_ended(key)]


def evaluations(key):
    """Evaluations of a training.

    They are known before it runs, unless it may end early or has passed some of the steps.
    """
    if key in FOLLOWED:
        checkpoints.evaluate_beside.get(key=key)
    training = TRAININGS[key].training
    scheduled = training.published_steps()
    if not ASYNC and not passed_steps(published(key), training):
        return [evaluation(key, step) for step in scheduled]
    steps = published_at_end(key)
    # A training that reaches its target ends between two scheduled steps.
    wanted = {*scheduled, steps[-1]}
    return [evaluation(key, step) for step in steps if step in wanted]


def all_evaluations(wildcards):
    return [path for key in TRAININGS for path in evaluations(key)]


rule evaluate:
    input:
        checkpoint=ready_mark,
        # Other data have other checkpoints.
        manifest=lambda wildcards: ancient(training_manifest(wildcards)),
    output:
        json="<results>/evaluation/{key}/step-{step}.json",
        table="<results>/evaluation/{key}/step-{step}.tsv",
    log:
        "<logs>/evaluate/{key}/step-{step}.log",
    benchmark:
        "<benchmarks>/evaluate/{key}/step-{step}.tsv"
    retries: 2
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(16000),
        runtime=240,
        gpu=1,
    params:
        # The mode says when, not what.
        *training_settings("evaluation", without="evaluation.mode"),
        config=given_training,
        checkpoint=f"{TRAINING}/step-{{step}}",
        shards=training_shards,
    shell:
        "scalefold evaluate {params.checkpoint:q} {params.config} --strict"
        " --shards {params.shards:q} --out {output.json:q} 2>&1 | tee -i {log:q}"


checkpoint evaluate_beside:
    # Has the inputs of the training, so they run beside each other where resources suffice.
    input:
        rules.train.input,
    output:
        touch("<results>/evaluation/{key}/beside.done"),
    log:
        "<logs>/evaluate_beside/{key}.log",
    benchmark:
        "<benchmarks>/evaluate_beside/{key}.tsv"
    retries: 2
    conda:
        ENVIRONMENT
    container:
        None  # see in_container
    threads: 1
    resources:
        mem_mb=growing(16000),
        runtime=2880,
        gpu=1,
    params:
        config=given_training,
        launcher=launcher_beside,
        shards=training_shards,
        training=TRAINING,
        evaluations=f"{RUN}/evaluation/{{key}}",
        # Always another value: the rule runs whenever a training has not ended.
        asked=lambda wildcards: time.time_ns(),
    shell:
        "{params.launcher} evaluate --follow {params.training:q} {params.config} --strict"
        " --shards {params.shards:q} --out {params.evaluations:q} 2>&1 | tee -i {log:q}"
