"""Results that Snakemake has no record of: copied, from a second clone, or under another path."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
import yaml

from scalefold.config import load_config
from scalefold.config.identity import packing_hash
from scalefold.shards.manifest import Manifest

BUCKETS = 2
"""Of the three, in which there are chains."""
AFTER_INDEX = {"train": 1, "evaluate": 3, "report": 1}
PACKED = {"structures": BUCKETS, "all_structures": 1, "pack": BUCKETS, "index": 1, **AFTER_INDEX}


def changed(**sections: object) -> list[str]:
    """Options that set keys of the configuration."""
    return ["--config", *(f"{name}={json.dumps(value)}" for name, value in sections.items())]


@pytest.fixture
def copy(workflow, tmp_path: Path):
    """The finished workflow as ``cp -a`` copies it, without Snakemake's record."""
    folder = tmp_path / "copy"
    shutil.copytree(
        workflow.folder, folder, symlinks=True, ignore=shutil.ignore_patterns(".snakemake")
    )
    return type(workflow)(folder)


def test_a_copy_is_up_to_date(copy) -> None:
    assert copy.planned() == {}
    assert copy.planned(*changed(results=str(copy.folder / "results"))) == {"config": 1}
    (copy.run / "config.yaml").write_bytes(b"\xff, damaged")
    assert copy.planned() == {"config": 1}


def test_other_settings_concern_their_stages(copy) -> None:
    packed = copy.planned(*changed(shards={"max_msa_rows": 2}))
    assert packed == {"config": 1, **PACKED}
    said = copy.succeed("--dry-run", *changed(shards={"max_msa_rows": 2}))
    assert "packed with other settings: shards.max_msa_rows: 10000 there, 2 now" in said
    evaluated = copy.planned(*changed(evaluation={"recycling": 1}))
    assert evaluated == {"config": 1, "evaluate": 3, "report": 1}
    assert copy.planned(*changed(data={"download_threads": 3})) == {"config": 1}


def test_other_kinds_of_alignments_are_fetched(copy) -> None:
    path = copy.folder / "micro.yaml"
    tree = yaml.safe_load(path.read_text())
    tree["data"]["template_hits"] = None
    path.write_text(yaml.safe_dump(tree))
    assert copy.planned() == {"config": 1, "fetch_alignments": BUCKETS, **PACKED}


def test_as_asked_changed_settings_may_be_no_reason(copy) -> None:
    """As everywhere in Snakemake."""
    by_time = ["--rerun-triggers", "mtime"]
    assert copy.planned(*changed(shards={"max_msa_rows": 2}), *by_time) == {}


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("2crb_A\ttemplate\t2crb_A", "2crb_A\tvalidation\t2crb_A"),
        ("4zey_A\ttrain\t4zey_A", "4zey_A\ttrain\tanother"),
        ("4zey_A\ttrain\t4zey_A\n", ""),
    ],
)
def test_other_chains_concern_their_bucket(copy, line: str, instead: str) -> None:
    chains = copy.folder / "chains.tsv"
    chains.write_text(chains.read_text().replace(line, instead))
    planned = copy.planned()
    for rule in ("fetch_structures", "fetch_alignments", "structures", "index"):
        assert planned[rule] == 1
    assert "packed with another list of chains (1 lines differ from chains.tsv, " in copy.succeed(
        "--dry-run"
    )


@pytest.mark.parametrize("mode", ["after", "async"])
def test_other_evaluations_are_made_once(copy, mode: str) -> None:
    options = changed(evaluation={"seed": 5, "mode": mode, "splits": ["validation"]})
    output = copy.succeed(*options)
    rules = Counter(re.findall(r"^(?:local)?rule (\w+):", output, re.MULTILINE))
    assert rules == {"config": 1, "evaluate": 3, "report": 1, "all": 1}
    for path in copy.evaluation().glob("*.json"):
        evaluation = json.loads(path.read_text())
        assert evaluation["seed"] == 5
        assert list(evaluation["mean"]) == ["validation"]
    assert copy.planned(*options) == {}


def test_all_checkpoints_deleted(copy) -> None:
    training = copy.training()
    for path in training.glob("step-*"):
        path.rename(copy.folder / path.name)
    code, output = copy.outcome("--dry-run")
    assert code != 0
    assert f"error: {training.relative_to(copy.folder)}: this training is complete" in output
    assert "MissingInput" not in output
    for name in ("step-00000001", "step-00000001.ready"):
        (copy.folder / name).rename(training / name)
    assert copy.planned() == {}


def test_more_steps_go_on(copy) -> None:
    settings = changed(training={"steps": 4, "checkpoint_every": 2, "max_recycling": 0})
    assert copy.planned(*settings)["train"] == 1
    copy.succeed(*settings)
    training = copy.training()
    steps = sorted(int(path.stem.removeprefix("step-")) for path in training.glob("*.ready"))
    assert steps == [0, 1, 2, 4]
    assert not (training / "replaced").exists()
    assert copy.planned(*settings) == {}


def test_what_is_packed_again_is_trained_on(copy) -> None:
    settings = {"shards": {"max_msa_rows": 2}, "seed": 7}
    options = changed(**settings)
    copy.succeed(*options, "--until", "structures")
    planned = copy.planned(*options)  # of itself it remembers what it has made since
    assert "structures" not in planned
    assert planned["pack"] == BUCKETS
    copy.succeed(*options)
    shards = copy.run / "shards"
    now = load_config([copy.folder / "micro.yaml"], settings)
    assert Manifest.read(shards).config_hash == packing_hash(now)
    (mark,) = copy.training(seed=7).glob("step-00000002.ready")
    assert "other settings" not in (mark.parent / "training.log").read_text()
    assert copy.planned(*options) == {}


def test_the_way_back_by_another_path(copy) -> None:
    """What is remembered of one path says nothing of what was made by another."""
    copy.succeed("--forcerun", "index", "--until", "index")
    elsewhere = changed(results=str(copy.folder / "results"), shards={"max_msa_rows": 2})
    copy.succeed(*elsewhere, "--until", "index")
    assert copy.planned().items() >= PACKED.items()
