# Functions: what a training run learns from, and what it has left: checkpoints, which no rule declares,
# and their evaluations.
from scalefold.config import initial_weights_sha256
from scalefold.checkpoint.published import passed_steps, steps_made_from
from scalefold.checkpoint.early_stopping import read_end
from scalefold.evaluate.up_to_date import is_evaluated
from scalefold.shards.manifest import data_hash

ASYNC = CONFIG.evaluation.mode == "async"


def shards_of(key):
    """The folder that a training run reads."""
    return f"{RUN}/distilled/{TEACHERS[key]}/shards" if key in TEACHERS else SHARDS


def training_shards(wildcards):
    return shards_of(key_of(wildcards))


def training_manifest(wildcards):
    return f"{training_shards(wildcards)}/manifest.json"


def published(key):
    """Steps, ascending, of a training run's checkpoints from the present shards and initial weights.

    Empty if there are no shards yet, or a checkpoint cannot be read: the training says so.
    """
    try:
        start = initial_weights_sha256(TRAININGS[key])
        data = data_hash(Path(shards_of(key)))
        return steps_made_from(Path(TRAINING.format(key=key)), data, start)
    except (OSError, ValueError, KeyError):
        return []


def published_at_end(key):
    """Steps of the checkpoints that a training run has when it has ended: at least one."""
    checkpoints.train.get(key=key)
    steps = published(key)
    if not steps:
        raise WorkflowError(
            f"{TRAINING.format(key=key)}: this training run is complete, but has no checkpoint. Bring "
            "one back with its .ready file, or delete the folder to train from the start"
        )
    return steps


def mark_of(key, checkpoint):
    """The mark of a training run's checkpoint that is used; the training has ended then."""
    checkpoints.train.get(key=key)
    mark = f"{checkpoint}.ready"
    if not os.path.exists(mark):
        raise WorkflowError(
            f"{mark}: no such file, though the training has ended. Bring the checkpoint back with its "
            ".ready file, or give the same snakemake command with --forcerun train, which makes what "
            "training.steps asks for"
        )
    return mark


def ready_mark(wildcards):
    return mark_of(wildcards.key, CHECKPOINT.format(**wildcards))


def last_mark(wildcards):
    """The mark of the checkpoint that a training run ends with."""
    key = wildcards.key
    return mark_of(key, checkpoint_folder(key, TRAININGS[key].training.steps))


def checkpoint_folder(key, step):
    return CHECKPOINT.format(key=key, step=f"{step:08d}")


def evaluation(key, step):
    return f"{EVALUATIONS}/step-{step:08d}.json".format(key=key)


def has_ended(key):
    """Has a training run made its last step, or was it ended? Its last checkpoint may be deleted."""
    config, training = TRAININGS[key], Path(TRAINING.format(key=key))
    last = config.training.steps
    if last in published(key) or os.path.exists(evaluation(key, last)):
        return True
    try:
        data = data_hash(Path(shards_of(key)))
        return read_end(training, config.evaluation, data) is not None
    except (OSError, ValueError):
        return False


def asked(key):
    """A hash of the evaluations that the configuration asks for."""
    config = TRAININGS[key]
    settings = config.evaluation.model_dump_json(exclude={"mode"})
    return hashed((settings, *config.training.published_steps()))


def to_evaluate(key):
    """Is rule `evaluate_all` due? What is deleted later, rule `evaluate` makes again."""
    if os.path.exists(EVALUATED.format(key=key, asked=asked(key))):
        return False
    config = TRAININGS[key]
    steps = {*config.training.published_steps()} & {*published(key)}
    return not has_ended(key) or not all(
        is_evaluated(
            Path(evaluation(key, step)),
            Path(f"{checkpoint_folder(key, step)}.ready"),
            config.evaluation,
        )
        for step in steps
    )


TO_EVALUATE = [key for key in TRAININGS if to_evaluate(key)]


def evaluations(key):
    """Evaluations of a training run. If it is made again, all are known before."""
    training = TRAININGS[key].training
    scheduled = training.published_steps()
    if key in TO_EVALUATE:
        checkpoints.evaluate_all.get(key=key, asked=asked(key))
    elif not ASYNC and not passed_steps(published(key), training):
        return [evaluation(key, step) for step in scheduled]
    steps = published_at_end(key)
    # A training run that reaches its target ends between two scheduled steps.
    wanted = {*scheduled, steps[-1]}
    return [evaluation(key, step) for step in steps if step in wanted]


def compared(wildcards):
    """What a report compares its training with."""
    wanted = TRAININGS[key_of(wildcards)].report
    return [path.as_posix() for path in (*wanted.against, wanted.beside) if path]
