# What is said where an input is missing that only the user can bring: a mirror's folder, chains to
# train on, weights to start from, deleted checkpoints. Snakemake knows whether a job needs it, and then
# ends, but says no more than its name. Likewise of a target that is misspelt.
import logging
import re
from difflib import get_close_matches


class MissingInputs(logging.Filter):
    """Says what to do about a missing input, in place of Snakemake's error.

    Mirrors that no job needs, since all is fetched, are warned of when the plan of jobs is made.
    """

    planning = False

    def __init__(self, checks, warned):
        self.checks, self.warned = checks, warned

    def filter(self, record):
        exception = getattr(record, "exception", None)
        if exception in ("MissingInputException", "InputFunctionException"):
            self.planning = False
            needed = [name for name in self.checks if f"in rule {name} " in record.msg]
            for found in filter(None, map(self.finding, needed)):
                record.msg = f"error: {found}"
        elif "Building DAG of jobs" in str(record.msg):
            self.planning = True
        elif self.planning:
            self.planning = False
            for found in filter(None, map(self.finding, self.warned)):
                logger.warning(found)
        return True

    def finding(self, name):
        """What is wrong with a rule's inputs, if anything is."""
        try:
            self.checks[name]()
        except InputError as error:
            return str(error)


def check_training():
    check_trainable(rows, CONFIG.data.chains)
    check_initial_weights(next(iter(STAGES.values())))


def check_checkpoints():
    """Raise an InputError if a complete training has no checkpoint left."""
    for key in KEYS.values():
        trained, folder = Path(TRAINED.format(key=key)), Path(TRAINING.format(key=key))
        if trained.exists() and not any(folder.glob("step-*.ready")):
            raise InputError(
                f"{folder}: this training is complete ({trained.name}), but has no checkpoint left. "
                "Bring one back, with its .ready file: steps without one are left out, and what was "
                "made of them stays. Or delete the folder: that trains anew"
            )


def name_near_rules(record):
    """Says which rules a target may have meant that is no rule, nor a file that one makes."""
    if getattr(record, "exception", None) == "MissingRuleException":
        asked = re.search(r"No rule to produce (\S+)", record.msg)[1]
        near = get_close_matches(asked, [rule.name for rule in workflow.rules])
        if near:
            record.msg = (
                f"error: {asked}: no such rule, did you mean {' or '.join(near)}?"
            )
    return True


logger.addFilter(name_near_rules)
if workflow.is_main_process:
    logger.addFilter(
        MissingInputs(
            {
                "fetch_structures": partial(
                    check_files, rows, CONFIG.data, "structures"
                ),
                "fetch_alignments": partial(
                    check_files, rows, CONFIG.data, "alignments"
                ),
                "train": check_training,
                "evaluate": check_checkpoints,
            },
            warned=["fetch_structures", "fetch_alignments"],
        )
    )
