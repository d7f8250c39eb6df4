"""A run of several training stages in a row; each starts from the weights of the one before.

A stage is the configuration with some settings laid over it. Alone it is the whole configuration of
one training run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scalefold.config.identity import run_key
from scalefold.config.load import Tree, make_config, merge, read_files
from scalefold.config.schema import Config
from scalefold.errors import InputError

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]*")
_OF_THE_RUN: Final = (
    "run_name",
    "results",
    "container",
    "data",
    "search",
    "shards",
    "predict",
    "distillation",
    "stages",
)
"""What all stages have in common."""


def load_stages(
    paths: Sequence[Path], overrides: Mapping[str, Any] | None = None
) -> dict[str, Config]:
    """Read a configuration, and make those of its training runs.

    Parameters
    ----------
    paths, overrides
        See `scalefold.config.load_config`. Overrides win over the stages' settings too.

    Returns
    -------
    dict of str to Config
        By name, in order; without ``stages``, the configuration itself under the empty name. Those
        after the first start from the averaged weights that the one before ends with: their
        ``training.initial_weights`` say so.

    Raises
    ------
    InputError
        Naming the file, the stage and the key.
    """
    given = dict(overrides or {})
    tree, source = read_files(paths, given)
    stages = make_config(tree, source).stages
    if not stages:
        return {"": make_config(tree, source)}
    made: dict[str, Config] = {}
    before: Config | None = None
    for name, settings in stages.items():
        where = f"{source}, stages.{name}"
        _check(name, settings, where)
        own = merge(merge({**tree, "stages": {}}, settings), {**given, "stages": {}})
        if before is not None:
            own = merge(own, {"training": {"initial_weights": _last_checkpoint(before, where)}})
        before = made[name] = make_config(own, where)
    return made


def teachers(stages: Mapping[str, Config]) -> dict[str, str | None]:
    """Say whose weights predict the structures that training runs are mixed with.

    Parameters
    ----------
    stages
        As `load_stages` returns them.

    Returns
    -------
    dict
        Of each stage with a ``sampling.distilled_share`` the stage before; None where the weights
        are given, as ``distillation.weights`` or to start from.

    Raises
    ------
    InputError
        There are no sequences or weights, or sequences that no stage is to learn from.
    """
    found: dict[str, str | None] = {}
    before: str | None = None
    for name, config in stages.items():
        set_ = config.distillation
        if config.sampling.distilled_share > 0:
            found[name] = before if set_.weights is None else None
            start = config.training.initial_weights
            where = f"stages.{name}.sampling" if name else "sampling"
            share = f"{where}.distilled_share is {config.sampling.distilled_share:g}"
            if set_.fasta is None:
                raise InputError(
                    f"{share}, but there are no sequences to predict: set distillation.fasta"
                )
            if set_.weights is None and start is None:
                raise InputError(
                    f"{share}, but nothing says which weights predict: set distillation.weights, "
                    "or training.initial_weights, or put a stage before"
                )
        before = name
    fasta = next(iter(stages.values())).distillation.fasta
    if fasta is not None and not found:
        raise InputError(
            f"distillation.fasta is {fasta}, but no training learns from it: set "
            "sampling.distilled_share, to 0.75 as AlphaFold2 has it, where one is to"
        )
    return found


def _check(name: str, settings: Tree, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(f"{where}: a stage's name has lower-case letters, digits, '-' and '_'")
    common = [key for key in settings if key in _OF_THE_RUN]
    if common:
        raise InputError(
            f"{where}: {', '.join(common)} belongs to the whole run: set it outside stages"
        )
    training = settings.get("training")
    if isinstance(training, dict) and "initial_weights" in training:
        raise InputError(
            f"{where}: training.initial_weights follows from the stage before; for the first one, "
            "set it outside stages"
        )


def _last_checkpoint(stage: Config, where: str) -> str:
    """Return where the workflow has a training run's last checkpoint."""
    for key in ("target_lddt", "patience"):
        value = getattr(stage.evaluation, key)
        if value is not None:
            raise InputError(
                f"{where}: starts from step {stage.training.steps} of the stage before, which "
                f"could end earlier: its evaluation.{key} is {value}. Set that in the last stage "
                "only"
            )
    folder = stage.results / stage.run_name / "weights" / run_key(stage)
    return (folder / f"step-{stage.training.steps:08d}").as_posix()
