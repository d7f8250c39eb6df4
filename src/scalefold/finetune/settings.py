"""The configuration file of a fine-tuning, which its user may edit and run again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from scalefold.errors import InputError
from scalefold.io.atomic import write_bytes

_ABOUT: Final = {
    "run_name": "Results go to <results>/<run_name>.",
    "preset": "Learning rate, losses, steps, early stop: docs/fine-tune.md says what and why.",
    "data": "The chains, their structures, their alignments.",
    "model": "The model that the weights belong to, where it is not the preset's.",
    "features": "Sizes of samples, where they are not the preset's.",
    "loss": "Weights of loss terms.",
    "optimiser": "Adam and its schedule.",
    "training": "What is trained, and how long.",
    "evaluation": "How the held-out chains are predicted.",
}
"""What a section's comment says."""
_COMMAND_LINE: Final = "#   scalefold finetune "


def snakemake_command(path: Path, profile: str, options: Sequence[str] = ()) -> list[str]:
    """The command that runs a configuration file, without the interpreter."""
    sharing = ["--resources", "gpu=2"] if evaluates_beside(profile) else []
    return ["snakemake", "--profile", profile, "--configfile", str(path), *sharing, *options]


def evaluates_beside(profile: str) -> bool:
    """Whether evaluations run beside training here, both on the CPU: they can end it early."""
    import torch

    return profile == "local" and not torch.cuda.is_available()


def write_settings(path: Path, tree: Mapping[str, Any], command: str, about: str) -> None:
    """Write a configuration file with comments, atomically.

    Parameters
    ----------
    tree : mapping
        The settings; every top-level key becomes a paragraph.
    command : str
        The arguments that it is made by, in one line.
    about : str
        One line on what it is for.
    """
    parts = [
        f"# {about} This command wrote the file:\n"
        f"{_COMMAND_LINE}{command}\n"
        "# Change what you like; config.yaml explains every key. Run it, and go on after an "
        "interruption, with\n"
        f"#   {shlex.join(snakemake_command(path, 'local'))}\n"
    ]
    for key, value in tree.items():
        comment = f"# {_ABOUT[key]}\n" if key in _ABOUT else ""
        parts.append(comment + yaml.safe_dump({key: value}, sort_keys=False, width=100))
    write_bytes(path, "\n".join(parts).encode())


def check_command(path: Path, command: str) -> bool:
    """Whether a configuration file is there already, made by the same command.

    Raises
    ------
    InputError
        Another command made it, or none.
    """
    if not path.exists():
        return False
    lines = path.read_text("utf-8").splitlines()
    found = [line.removeprefix(_COMMAND_LINE) for line in lines if line.startswith(_COMMAND_LINE)]
    if found[:1] == [command]:
        return True
    was = f"by: scalefold finetune {found[0]}" if found else "by something else"
    raise InputError(
        f"{path}: was written {was}. Give the same arguments to go on, --anew to write the file "
        "and the list of chains again, or another --out"
    )
