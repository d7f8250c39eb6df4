# The checkpoints of the trainings, which of them are evaluated, and which predicts.
from scalefold.config import initial_weights_sha256
from scalefold.checkpoint.published import passed_steps, steps_made_from
from scalefold.checkpoint.target import read_end

ASYNC = CONFIG.evaluation.mode == "async"
SEARCHED_SEQUENCES = f"{RUN}/predictions/searched"
PREDICTIONS = f"{RUN}/predictions/{{key}}/step-{{step}}"
RELAXED = f"{RUN}/relaxed/{{key}}/step-{{step}}"


def evaluation(key, step):
    return f"{RUN}/evaluation/{key}/step-{step:08d}.json"


def data_hash():
    """By which checkpoints name the shards: SHA-256 of the manifest."""
    return hashlib.sha256(Path(f"{SHARDS}/manifest.json").read_bytes()).hexdigest()


def published(key):
    """Steps of a training's checkpoints, made from the present shards and initial weights, rising.

    Empty if there are no shards yet, or a checkpoint cannot be read: the training says so.
    """
    try:
        start = initial_weights_sha256(OF_KEY[key][1])
        return steps_made_from(Path(TRAINING.format(key=key)), data_hash(), start)
    except (OSError, ValueError, KeyError):
        return []


def passed_without(key):
    """Steps that a training has passed without a checkpoint, and that are to be published now."""
    return passed_steps(published(key), OF_KEY[key][1].training)


def has_ended(key):
    """Has a training made its last step, or was it ended? Its last checkpoint may be deleted."""
    config = OF_KEY[key][1]
    last = config.training.steps
    if last in published(key) or os.path.exists(evaluation(key, last)):
        return True
    try:
        training = Path(TRAINING.format(key=key))
        return read_end(training, config.evaluation, data_hash()) is not None
    except (OSError, ValueError):
        return False


FOLLOWED = [key for key in OF_KEY if ASYNC and not has_ended(key)]


def evaluations(key):
    """Evaluations of a training.

    They are known before it runs, unless it may end early or has passed some of the steps.
    """
    if key in FOLLOWED:
        checkpoints.evaluate_beside.get(key=key)
    scheduled = OF_KEY[key][1].training.published_steps()
    if not ASYNC and not passed_without(key):
        return [evaluation(key, step) for step in scheduled]
    checkpoints.train.get(key=key)
    steps = published(key)
    if not steps:
        raise WorkflowError(
            f"{TRAINING.format(key=key)}: this training is complete, but has no checkpoint. Bring one "
            "back with its .ready file, or delete the folder to train anew"
        )
    # A training that reaches its target ends between two scheduled steps.
    return [
        evaluation(key, step)
        for step in steps
        if step in scheduled or step == steps[-1]
    ]


def all_evaluations(wildcards):
    return [path for key in OF_KEY for path in evaluations(key)]


def predictions(wildcards):
    """What `all` asks for: nothing without sequences."""
    if CONFIG.predict.fasta is None:
        return []
    key, (_, config) = list(OF_KEY.items())[-1]
    step = config.training.steps
    if ASYNC:  # a training may end early
        checkpoints.train.get(key=key)
        step = published(key)[-1]
    table = f"{PREDICTIONS}/predictions.tsv"
    if CONFIG.predict.relax:
        table = f"{RELAXED}/relaxations.tsv"
    return table.format(key=key, step=f"{step:08d}")


def predict_options(wildcards):
    """Where alignments are, and the run's own settings of evaluation."""
    wanted, settings = CONFIG.predict, OF_KEY[wildcards.key][1].evaluation
    words = ["--early-stop", str(wanted.early_stop_angstrom)]
    if wanted.query_alone:
        words += ["--query-alone"]
    else:
        found = wanted.alignments or f"{SEARCHED_SEQUENCES}/alignments"
        words += ["--alignments", str(found)]
    for name in ("recycling", "precision", "max_length", "seed"):
        words += ["--set", f"evaluation.{name}={getattr(settings, name)}"]
    return shlex.join(words)


def ready_mark(wildcards):
    """The mark of the checkpoint that is used; the training has ended then."""
    checkpoints.train.get(key=wildcards.key)
    mark = f"{TRAINING.format(key=wildcards.key)}/step-{wildcards.step}.ready"
    if not os.path.exists(mark):
        raise WorkflowError(
            f"{mark}: no such file, though the training has ended. Bring the checkpoint back with its "
            ".ready file, or give the same snakemake command with --forcerun train, which makes what "
            "training.steps asks for"
        )
    return mark
