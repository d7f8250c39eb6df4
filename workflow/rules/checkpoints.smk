# The checkpoints of the trainings: what they learn from, which of them are evaluated, which predict.
from scalefold.config import initial_weights_sha256
from scalefold.config.stages import teachers
from scalefold.checkpoint.published import passed_steps, steps_made_from
from scalefold.checkpoint.early_stopping import read_end
from scalefold.shards.manifest import data_hash

ASYNC = CONFIG.evaluation.mode == "async"
DISTILLED = f"{RUN}/distilled/{{teacher}}"
GIVEN = "given"
try:
    # Of trainings that are mixed with predicted structures: whose weights predict these.
    TEACHERS = {
        KEYS[stage]: GIVEN if teacher is None else KEYS[teacher]
        for stage, teacher in teachers(STAGES).items()
    }
except InputError as error:
    raise WorkflowError(str(error)) from None


def evaluation(key, step):
    return f"{RUN}/evaluation/{key}/step-{step:08d}.json"


def shards_of(key):
    """The folder that a training reads."""
    if key not in TEACHERS:
        return SHARDS
    return f"{DISTILLED}/shards".format(teacher=TEACHERS[key])


def shard_file_of(name):
    """Input function: a file of that folder."""
    return lambda wildcards: f"{shards_of(wildcards.key)}/{name}"


def published(key):
    """Steps, ascending, of a training's checkpoints from the present shards and initial weights.

    Empty if there are no shards yet, or a checkpoint cannot be read: the training says so.
    """
    try:
        start = initial_weights_sha256(OF_KEY[key][1])
        return steps_made_from(
            Path(TRAINING.format(key=key)), data_hash(Path(shards_of(key))), start
        )
    except (OSError, ValueError, KeyError):
        return []


def published_at_end(key):
    """Steps of the checkpoints that a training has when it has ended: at least one."""
    checkpoints.train.get(key=key)
    steps = published(key)
    if not steps:
        raise WorkflowError(
            f"{TRAINING.format(key=key)}: this training is complete, but has no checkpoint. Bring one "
            "back with its .ready file, or delete the folder to train from the start"
        )
    return steps


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
        return (
            read_end(training, config.evaluation, data_hash(Path(shards_of(key))))
            is not None
        )
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
    steps = published_at_end(key)
    # A training that reaches its target ends between two scheduled steps.
    return [
        evaluation(key, step)
        for step in steps
        if step in scheduled or step == steps[-1]
    ]


def all_evaluations(wildcards):
    return [path for key in OF_KEY for path in evaluations(key)]


def ready_mark(wildcards):
    """The mark of the checkpoint that is used; the training has ended then."""
    return mark_of(wildcards.key, wildcards.step)


def mark_of(key, step):
    checkpoints.train.get(key=key)
    mark = f"{TRAINING.format(key=key)}/step-{step}.ready"
    if not os.path.exists(mark):
        raise WorkflowError(
            f"{mark}: no such file, though the training has ended. Bring the checkpoint back with its "
            ".ready file, or give the same snakemake command with --forcerun train, which makes what "
            "training.steps asks for"
        )
    return mark
