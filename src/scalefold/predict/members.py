"""The sets of weights that predict, each with its configuration."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from scalefold.checkpoint.read import AVERAGED_FILE, METADATA_FILE, read_metadata
from scalefold.config.load import make_config, merge, preset_config
from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.predict.loaded_weights import LoadedWeights, read_weights
from scalefold.weights.archive import check_is_weights

_ALPHAFOLD: Final = re.compile(r"(?:params_)?(model_[1-5](?:_ptm)?)")


@dataclass(frozen=True)
class Member:
    """A set of weights.

    Attributes
    ----------
    label : str
        Names its files; no other member has it.
    config : Config
        Of its own training, or of a preset.
    """

    label: str
    loaded: LoadedWeights
    config: Config

    @property
    def averaged(self) -> bool:
        """Whether they are known to be a training run's averaged weights."""
        return self.loaded.checkpoint is not None

    def about(self) -> dict[str, Any]:
        """What identifies the weights, for the record of a prediction."""
        return {
            "label": self.label,
            "file": self.loaded.path.name,
            "kind": "averaged" if self.averaged else "file",
            "step": self.loaded.step,
            "sha256": self.loaded.weights_sha256,
        }


def says_model(path: Path) -> bool:
    """Whether weights state their model: a checkpoint does, AlphaFold's files do by their names."""
    checkpoint = path if path.is_dir() else path.parent
    named = path.suffix == ".npz" and _ALPHAFOLD.fullmatch(path.stem) is not None
    return path.is_dir() or (checkpoint / METADATA_FILE).is_file() or named


def read_members(
    paths: Sequence[Path],
    given: Config | None,
    overrides: Mapping[str, Any],
    refuse: Callable[[Path, str], None],
) -> list[Member]:
    """Read sets of weights.

    Parameters
    ----------
    given : Config or None
        The configuration of weights that do not state theirs.
    overrides : mapping
        Override settings of each configuration that weights state.
    refuse : callable
        Called with the path of weights that cannot be used, and why; the others are read.

    Raises
    ------
    InputError
        None can be used, or all state their configuration and ``given`` is not used.
    """
    members = []
    for path in paths:
        try:
            members.append(_read_member(path, given, overrides))
        except InputError as error:
            if len(paths) == 1:
                raise
            refuse(path, str(error))
    if not members:
        raise InputError(f"none of {len(paths)} sets of weights can be used: correct --weights")
    if given is not None and all(member.config is not given for member in members):
        first = members[0]
        raise InputError(
            f"--preset or --config says preset {given.preset}, but {first.loaded.path} names its "
            f"own model, preset {first.config.preset}, which takes precedence: leave the option "
            "out. --set changes single settings"
        )
    return _told_apart(members)


def _read_member(path: Path, given: Config | None, overrides: Mapping[str, Any]) -> Member:
    if not path.exists():
        raise InputError(f"{path}: no such checkpoint folder or weight file")
    if path.name == AVERAGED_FILE and (path.parent / METADATA_FILE).is_file():
        path = path.parent  # the checkpoint has the file's hash
    checkpoint = path if path.is_dir() else path.parent
    named = _ALPHAFOLD.fullmatch(path.stem) if path.suffix == ".npz" else None
    if path.is_dir() or (checkpoint / METADATA_FILE).is_file():
        tree = merge(read_metadata(checkpoint).config, dict(overrides))
        config = make_config(tree, source=str(checkpoint))
    elif named is not None:
        config = preset_config(named[1], overrides)
    elif given is not None:
        config = given
    else:
        check_is_weights(path)
        raise InputError(
            f"{path}: does not say which model its weights are of: add --preset, such as "
            "--preset model_1_ptm, or the run's --config"
        )
    label = re.sub(r"[^A-Za-z0-9._-]", "_", path.name if path.is_dir() else path.stem)
    return Member(label.removeprefix("params_"), read_weights(path, config.model), config)


def _told_apart(members: Sequence[Member]) -> list[Member]:
    """Number the labels that several members have."""
    total, seen = Counter(member.label for member in members), Counter[str]()
    numbered = []
    for member in members:
        seen[member.label] += 1
        several = total[member.label] > 1
        label = f"{member.label}-{seen[member.label]}" if several else member.label
        numbered.append(replace(member, label=label))
    return numbered
