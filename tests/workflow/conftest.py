"""A small workflow in a folder of its own: a few bundled chains, a few steps of a minute model."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.workflow.forked import snakemake

from scalefold.config import load_config, run_key
from scalefold.config.load import merge

ROOT = Path(__file__).parents[2]
PROFILES = ("local", "slurm", "test")
CHAINS = {
    "5pti_A": "train",
    "1a8o_A": "train",
    "1lcd_A": "train",
    "4zey_A": "train",
    "1ay7_B": "validation",
    "2crb_A": "template",
    "1mol_A": "train",
}
DAMAGED = "1mol"
"""Entry whose structure file is cut off, from the start."""

CONFIG = {
    "run_name": "micro",
    "preset": "tiny",
    "data": {
        "chains": "chains.tsv",
        "mirrors": {"mmcif": ["mirror/wwpdb"], "alignments": ["mirror/openproteinset"]},
        "alignments": ["swissprot_hits"],
        "buckets": 3,
    },
    "features": {"crop_size": 16, "max_msa_clusters": 4, "max_extra_msa": 4, "max_templates": 1},
    "model": {
        "evoformer": {"num_blocks": 1},
        "structure": {"num_layers": 1},
    },
    "training": {"steps": 2, "checkpoint_every": 1, "log_every": 1, "max_recycling": 0},
    "evaluation": {"splits": ["train", "validation"], "recycling": 0},
}


# A shell that starts the tests in the background has them, and what they start, ignore Ctrl-C, with
# which they interrupt workflows.
signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class Workflow:
    """A copy of the workflow, and its run."""

    folder: Path
    profile: str = "local"

    @property
    def run(self) -> Path:
        """The run's results."""
        return self.folder / "results/micro"

    def training(self, **settings: object) -> Path:
        """Folder of the training with the configuration, or with it changed."""
        return self.run / "weights" / self._key(settings)

    def evaluation(self) -> Path:
        """Folder of the training's evaluations."""
        return self.run / "evaluation" / self._key({})

    def _key(self, settings: dict[str, object]) -> str:
        return run_key(load_config([self.folder / "micro.yaml"], settings))

    def start(self, *arguments: str, output: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        """Start Snakemake as a user does, without the environment's programs on the PATH."""
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *self._options(arguments)],
            cwd=self.folder,
            env=_environment(),
            text=True,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def outcome(self, *arguments: str) -> tuple[int, str]:
        """Exit code and all output of a run."""
        return snakemake(self._options(arguments), self.folder, _environment())

    def _options(self, arguments: Sequence[str]) -> list[str]:
        options = ["--configfile", "micro.yaml", "--profile", self.profile, "--nocolor"]
        return [*options, *arguments]

    def succeed(self, *arguments: str) -> str:
        """Run to success and return all output."""
        code, output = self.outcome(*arguments)
        assert code == 0, output
        return output

    def planned(self, *arguments: str) -> dict[str, int]:
        """Jobs that a dry run lists, by rule, without those that have nothing to do."""
        output = self.succeed("--dry-run", *arguments)
        table = re.search(r"^Job stats:\njob .*\n[- ]+\n((?:\w+ +\d+\n)+)", output, re.MULTILINE)
        if table is None:
            assert "Nothing to be done" in output, output
            return {}
        counts = Counter({line.split()[0]: int(line.split()[1]) for line in table[1].splitlines()})
        del counts["total"], counts["all"]
        return dict(counts)


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": "/usr/local/bin:/usr/bin:/bin"}


def write_workflow(folder: Path, settings: dict[str, Any]) -> None:
    """Write everything but the results."""
    shutil.copy(ROOT / "Snakefile", folder)
    for name in ("workflow", "envs"):
        shutil.copytree(ROOT / name, folder / name)
    for name in PROFILES:
        (folder / name).symlink_to(f"workflow/profiles/{name}")
    (folder / "micro.yaml").write_text(yaml.safe_dump(merge(CONFIG, settings), sort_keys=False))
    rows = [f"{key}\t{split}\t{key}" for key, split in CHAINS.items()]
    (folder / "chains.tsv").write_text("\n".join(["chain_key\tsplit\tcluster_id", *rows]) + "\n")
    for key in CHAINS:
        entry = key[:4]
        relative = f"wwpdb/pub/pdb/data/structures/divided/mmCIF/{entry[1:3]}/{entry}.cif.gz"
        target = folder / "mirror" / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        content = (ROOT / "demo/mirror" / relative).read_bytes()
        target.write_bytes(content[: len(content) // 2] if entry == DAMAGED else content)
        alignments = ROOT / "demo/mirror/openproteinset/pdb" / key
        if alignments.exists():
            shutil.copytree(alignments, folder / "mirror/openproteinset/pdb" / key)


@pytest.fixture(scope="session")
def new_workflow(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Workflow]:
    """Makes workflows of their own: `new_workflow(profile, settings)`."""

    def make(profile: str, settings: dict[str, Any]) -> Workflow:
        folder = tmp_path_factory.mktemp("workflow")
        write_workflow(folder, settings)
        return Workflow(folder, profile)

    return make


@pytest.fixture(scope="session")
def template_folder(new_workflow: Callable[..., Workflow]) -> Path:
    """Everything but the results: for dry runs, whose plan depends on what there is."""
    return new_workflow("local", {}).folder


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository as it is checked out: of the folder that it is in, tests see no results, no
    data of its user's, and write nothing there.
    """
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("Snakefile", "config.yaml", "configs", "demo", "workflow", "envs", *PROFILES):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture(scope="session")
def finished(new_workflow: Callable[..., Workflow]) -> tuple[Workflow, str]:
    """The workflow after one whole run, and what that printed."""
    workflow = new_workflow("local", {})
    return workflow, workflow.succeed()


@pytest.fixture
def workflow(finished: tuple[Workflow, str]) -> Workflow:
    """The workflow after one whole run; a test leaves it as it found it."""
    return finished[0]
