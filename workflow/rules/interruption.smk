# What is said after Ctrl-C. Jobs then end because they were asked to, and say so themselves; Snakemake
# takes each for failed, and would add a dozen lines on it, the whole command twice.
import logging


class AfterInterruption(logging.Filter):
    """Leaves out the errors of Snakemake's log once it has said that it was interrupted."""

    interrupted = False

    def filter(self, record):
        self.interrupted |= "Terminating processes on user request" in str(record.msg)
        return not (self.interrupted and record.levelno >= logging.ERROR)


AFTER_INTERRUPTION = AfterInterruption()
logger.addFilter(AFTER_INTERRUPTION)


onerror:
    if AFTER_INTERRUPTION.interrupted:
        logger.info(
            "Interrupted. The same command goes on from here, a training from its last checkpoint."
        )
