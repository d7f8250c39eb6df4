"""Evaluation by processes of training's own launch, which do not train."""

from __future__ import annotations

import _thread
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from rich.console import Console

from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.evaluate.follow import follow

logger = logging.getLogger(__name__)


def evaluation_folder(training: Path) -> Path:
    """Where the workflow has the evaluations of a training run.

    Raises
    ------
    InputError
        If the training's folder is not where the workflow has training runs.
    """
    folder = training.absolute()
    if folder.parent.name != "weights":
        raise InputError(
            f"--out {training}: evaluations belong in <run>/evaluation/<key>, so with "
            "evaluation.ranks it must be <run>/weights/<key>. Name such a folder, or set "
            "evaluation.ranks to 0"
        )
    return folder.parents[1] / "evaluation" / folder.name


def evaluate_inside(
    config: Config,
    training: Path,
    shards: Path,
    device: torch.device,
    stop: threading.Event,
    number: int,
    left: Callable[[], bool],
) -> None:
    """Evaluate this process's share of a training run's checkpoints, until all of it is done.

    An error is logged, and the training goes on.

    Parameters
    ----------
    stop : Event
        When set, the running evaluation is given up.
    number : int
        Of this process among ``evaluation.ranks``.
    left : callable
        Whether the training's processes have left it.
    """
    out, turn = evaluation_folder(training), (number, config.evaluation.ranks)
    try:
        with _interrupted_by(stop):
            quiet = Console(quiet=True)
            follow(config, training, shards, out, device, quiet, turn=turn, left=left)
    except KeyboardInterrupt:
        logger.info("evaluation stops with the training")
    except Exception:
        logger.exception(
            "evaluation has failed, and the training goes on without it. To evaluate what is left: "
            "scalefold evaluate --follow %s --out %s, with the same -c and --shards",
            training, out,
        )  # fmt: skip


@contextlib.contextmanager
def _interrupted_by(stop: threading.Event) -> Iterator[None]:
    """Raise KeyboardInterrupt here, in the main thread, once ``stop`` is set."""
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            if stop.wait(1.0) and not done.wait(0.1):
                _thread.interrupt_main()

    thread = threading.Thread(target=look, name="scalefold-stop", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
