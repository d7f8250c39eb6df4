# Which checkpoints are evaluated, and when. With `evaluation.mode: after` it is known from the start,
# and all are evaluated when training has ended. With `async` a checkpoint is taken up while training
# goes on; those that are missing then (a job failed, no workflow was running) follow at its end.
# What a training has passed without a checkpoint, as with another `checkpoint_every`, is left out.
import threading
import time

from snakemake.exceptions import IncompleteCheckpointException
from snakemake.io import flag

ASYNC = CONFIG.evaluation.mode == "async"
SCHEDULED = {
    KEYS[stage]: config.training.published_steps() for stage, config in STAGES.items()
}


def evaluation(key, step):
    return f"{RUN}/evaluation/{key}/step-{step:08d}.json"


def published(key):
    """Steps of a training's checkpoints that were made from the present files, rising."""
    start = initial_weights_sha256(STAGES[stage_of(key)])
    return steps_made_from(Path(TRAINING.format(key=key)), data_hash(), start)


def data_hash():
    """What checkpoints name the shards by, see `scalefold.checkpoint.provenance`, which needs torch."""
    return hashlib.sha256(Path(f"{SHARDS}/manifest.json").read_bytes()).hexdigest()


def published_so_far(key):
    """The same; none where there are no shards yet, or a checkpoint cannot be read: training says so."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        return published(key)
    return []


def passed_without(key):
    """Scheduled steps that a training has passed and has no checkpoint of: none will come."""
    return passed_steps(published_so_far(key), STAGES[stage_of(key)].training)


class CheckpointNews:
    """Checkpoints of the training that runs now, in the form of a Snakemake queue (`from_queue`).

    Snakemake asks `finished` whether it has been told everything. It has, unless a thread of the main
    process found a checkpoint since. So nothing is to be closed when training ends, however it ends;
    and dry runs and jobs on the cluster, which have no such thread, wait for nothing.
    """

    last_checked = None

    def __init__(self):
        self.found = self.told = ()

    @property
    def finished(self):
        return self.found == self.told

    def tell(self):
        self.told = self.found
        return self.told

    def watch(self, scheduler):
        while True:
            time.sleep(2)
            # Before training runs, the shards may still change, and with them what is out of date.
            running = [job for job in list(scheduler.running) if job.name == "train"]
            if running:
                # One at a time: each starts from the one before.
                key = running[0].wildcards.key
                # A checkpoint may just be set aside, be damaged, or a network's file system hesitate.
                with contextlib.suppress(OSError, ValueError, KeyError):
                    self.found = tuple(
                        (key, step) for step in published(key) if step in SCHEDULED[key]
                    )
                if not self.finished:
                    # Snakemake remembers jobs that the end of an earlier training has replaced.
                    scheduler.workflow.dag._queue_input_jobs = None
                    # Wakes it, to ask for news and then to act on them.
                    scheduler._open_jobs.release(2)
            else:
                self.found = self.told


NEWS = CheckpointNews()


def evaluations_so_far(wildcards):
    """Of all trainings: those of the checkpoints published so far; all, once one has ended."""
    known, waiting = [], None
    for key in KEYS.values():
        try:
            known += evaluations_in_the_end(key)
        except IncompleteCheckpointException as error:
            waiting = error
    news = [evaluation(key, step) for key, step in NEWS.tell()]
    known += [path for path in news if path not in known]
    if waiting and not known:
        raise waiting
    return known


def evaluations_in_the_end(key):
    """Those of a training's checkpoints, when it has ended.

    Without `async` they are known before, unless an earlier training has passed some of the steps.
    """
    scheduled = SCHEDULED[key]
    if not ASYNC and not passed_without(key):
        return [evaluation(key, step) for step in scheduled]
    checkpoints.train.get(key=key)
    steps = published(key)
    # A training that reached its target ended between two scheduled steps.
    return [
        evaluation(key, step)
        for step in steps
        if step in scheduled or step == steps[-1]
    ]


# Only one job may have such an input: Snakemake (9.27) doubles those for which it has no news.
EVALUATIONS = (
    flag(evaluations_so_far, "from_queue", NEWS) if ASYNC else evaluations_so_far
)


def ready_mark(wildcards):
    if not ASYNC:
        checkpoints.train.get(key=wildcards.key)
    ask_evaluation(wildcards.key, int(wildcards.step))
    return f"{TRAINING.format(key=wildcards.key)}/step-{wildcards.step}.ready"


onstart:
    if ASYNC:
        threading.Thread(
            target=NEWS.watch, args=[workflow.scheduler], daemon=True
        ).start()
