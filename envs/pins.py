"""Write the pins of the conda environments: pyproject.toml's dependencies, direct or not.

Versions are those of constraints.txt; who needs whom is read from the packages installed beside
this interpreter. After a change of either file, in the developer environment:

    python envs/pins.py
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ENVS = Path(__file__).parent
CONSTRAINTS = ENVS / "constraints.txt"
CUDA_BLOCK = "# What the CUDA build of torch brings along"
NOT_FOR_DATA = frozenset({"torch", "matplotlib", "tensorboard", "jinja2", "modelcif"})
"""Direct dependencies that the data stages do not import."""
OWN = "scalefold-kernels"
"""The checkout's own package: post-deploy.sh installs it."""


def main() -> None:
    """Write every environment's pip section anew; say which changed."""
    for path in sorted(ENVS.glob("*.yaml")):
        text = with_pins(path)
        if text != path.read_text("utf-8"):
            path.write_text(text, "utf-8")
            print(f"{path.name}: written anew", file=sys.stderr)


def with_pins(path: Path) -> str:
    """The environment file with the pins that it should have: they are the end of the file."""
    head = path.read_text("utf-8").partition("  - pip:\n")[0]
    python = next(
        str(item).partition("=")[2]
        for item in yaml.safe_load(head)["dependencies"]
        if str(item).startswith("python=")
    )
    lines = [f"      - {pin}\n" for pin in pins(path.stem, python)]
    return "".join([head, "  - pip:\n", *lines])


def pins(environment: str, python: str) -> list[str]:
    """Lines of constraints.txt that ``environment`` ("data" or "scalefold") consists of."""
    project = tomllib.loads((ENVS.parent / "pyproject.toml").read_text("utf-8"))
    # The build system too: the checkout itself is installed into the environment.
    direct = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    direct = [line for line in direct if _name(line) != OWN]
    if environment == "data":
        direct = [line for line in direct if _name(line) not in NOT_FOR_DATA]
    else:
        direct += project["project"]["optional-dependencies"]["workflow"]
    names = set(closure(direct, python))
    text = CONSTRAINTS.read_text("utf-8")
    if "torch" in names:  # whichever build of torch is installed here
        names |= {_name(line) for line in _lines(text[text.index(CUDA_BLOCK) :])}
    available = {_name(line): line for line in _lines(text)}
    if missing := sorted(names - set(available)):
        raise SystemExit(f"{CONSTRAINTS}: no pin of {', '.join(missing)}: add one")
    return sorted((available[name] for name in names), key=str.lower)


def closure(lines: Iterable[str], python: str) -> Iterator[str]:
    """Names of what ``lines`` ask for on Linux with ``python``, and of what that asks for."""
    platform: dict[str, Any] = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
    }
    todo, seen = [Requirement(line) for line in lines], set()
    while todo:
        wanted = todo.pop()
        key = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if key in seen:
            continue
        seen.add(key)
        yield key[0]
        for line in metadata.requires(wanted.name) or []:
            needed = Requirement(line)
            extras = ["", *wanted.extras]
            if needed.marker is None or any(
                needed.marker.evaluate({**platform, "extra": extra}) for extra in extras
            ):
                todo.append(needed)


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if re.match(r"[\w.-]+==", line):
            yield line.strip()


def _name(line: str) -> str:
    return canonicalize_name(Requirement(line).name)


if __name__ == "__main__":
    main()
