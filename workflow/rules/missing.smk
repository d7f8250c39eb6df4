# What is said where an input is missing that only the user can bring: a mirror's folder, weights to
# start from. Snakemake knows whether a job needs it, and then ends, but says no more than its name.
import logging


class MissingInputs(logging.Filter):
    """Says what to do about a missing input, in place of Snakemake's error.

    Mirrors that no job needs, since all is fetched, are warned of when the plan of jobs is made.
    """

    planning = False

    def __init__(self, checks, warned):
        self.checks, self.warned = checks, warned

    def filter(self, record):
        if getattr(record, "exception", None) == "MissingInputException":
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
                "train": partial(check_initial_weights, next(iter(STAGES.values()))),
            },
            warned=["fetch_structures", "fetch_alignments"],
        )
    )
