# The checkpoints of trainings, which no rule declares: what they learn from, and which are there.
from scalefold.config import initial_weights_sha256
from scalefold.checkpoint.published import steps_made_from
from scalefold.shards.manifest import data_hash

DISTILLED = f"{RUN}/distilled/{{teacher}}"
GIVEN = "given"


def teacher_of(key):
    """The training whose weights predict a part of what a training learns from, or None."""
    (stage,) = [stage for stage in KEYS if KEYS[stage] == key]
    if stage not in TEACHERS:
        return None
    return GIVEN if TEACHERS[stage] is None else KEYS[TEACHERS[stage]]


def shards_of(key):
    """The folder that a training reads."""
    teacher = teacher_of(key)
    return f"{DISTILLED}/shards".format(teacher=teacher) if teacher else SHARDS


def training_shards(wildcards):
    return shards_of(key_of(wildcards))


def training_manifest(wildcards):
    return f"{training_shards(wildcards)}/manifest.json"


def published(key):
    """Steps, ascending, of a training's checkpoints from the present shards and initial weights.

    Empty if there are no shards yet, or a checkpoint cannot be read: the training says so.
    """
    try:
        start = initial_weights_sha256(TRAININGS[key])
        data = data_hash(Path(shards_of(key)))
        return steps_made_from(Path(TRAINING.format(key=key)), data, start)
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


def mark_of(key, step):
    """The mark of a complete checkpoint that is used; the training has ended then."""
    checkpoints.train.get(key=key)
    mark = f"{TRAINING.format(key=key)}/step-{step}.ready"
    if not os.path.exists(mark):
        raise WorkflowError(
            f"{mark}: no such file, though the training has ended. Bring the checkpoint back with its "
            ".ready file, or give the same snakemake command with --forcerun train, which makes what "
            "training.steps asks for"
        )
    return mark


def ready_mark(wildcards):
    return mark_of(wildcards.key, wildcards.step)
