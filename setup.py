"""A wheel that is built from a git checkout knows its commit; all else is in pyproject.toml."""

import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithCommit(build_py):
    """Write the checkout's commit where `scalefold.checkpoint.provenance` reads it."""

    def run(self) -> None:
        super().run()
        commit = None if self.editable_mode else checkout_commit(Path(__file__).parent)
        if commit:
            Path(self.build_lib, "scalefold", "commit.txt").write_text(f"{commit}\n")


def checkout_commit(folder: Path) -> str:
    """The commit, with ``+`` if files have changed since; empty outside of a checkout."""
    if not (folder / ".git").exists():
        return ""
    git = ["git", "-C", str(folder)]
    try:
        commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True).strip()
        changes = subprocess.check_output([*git, "status", "--porcelain", "-uno"], text=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit + ("+" if changes else "")


setup(cmdclass={"build_py": BuildWithCommit})
