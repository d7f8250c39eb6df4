"""Each test sees the same, whatever ran before it and whatever the shell has set."""

import logging
import os
import signal
from collections.abc import Iterator

import pytest
import torch

COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE", "GITHUB_ACTIONS")
"""Have programs print colours into a pipe too; GITHUB_ACTIONS does so to Typer."""
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Set by torchrun: a training would look for others."""
SNAKEMAKE = ("SNAKEMAKE_PROFILE",)
"""A profile of the user's, for the runs that name none."""
GIT = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""Set by git for a hook: its commands would work on the repository that is committed to."""

for name in (*COLOURS, *LAUNCHER, *SNAKEMAKE, *GIT):
    os.environ.pop(name, None)

if not torch.cuda.is_available():
    # Kernels then run in Triton's interpreter (tests/kernels). Triton reads this when it defines
    # its own functions, so before anything imports it, as modules of the library do.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before the fixtures: what draws from torch's own generator draws the same in any order."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _log_as_imported() -> None:
    """Commands set up the log for their process; fixtures of a session or a module call some."""
    logger = logging.getLogger("scalefold")
    logger.handlers = []
    logger.setLevel(logging.NOTSET)


@pytest.fixture
def without_nohup() -> Iterator[None]:
    """Under nohup SIGHUP is ignored, by what a test starts, too; the other tests are left so."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
