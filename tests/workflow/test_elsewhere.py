"""Results that Snakemake has no record of: copied, from a second clone, or under another path.

Snakemake takes them for up to date. Each stage checks what it gets, and says the fix.
"""

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
PACK_AGAIN = ["--forcerun", "fetch_structures", "fetch_alignments"]
"""The fix that errors of shards name."""
AFTER_INDEX = {"train": 1, "evaluate": 3, "report": 1}
PACKED = {
    "fetch_structures": BUCKETS,
    "fetch_alignments": BUCKETS,
    "structures": BUCKETS,
    "pack": BUCKETS,
    "index": 1,
    **AFTER_INDEX,
}


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


def refusal(copy, *arguments: str) -> str:
    """The one line in which a run ends that does not do what it is asked for."""
    code, output = copy.outcome(*arguments)
    assert code != 0, output
    assert "MissingInput" not in output
    said = [line for line in output.splitlines() if "--forcerun" in line]
    assert said, output
    return said[0]


def test_a_copy_is_up_to_date(copy) -> None:
    assert copy.planned() == {}
    assert copy.planned(*changed(results=str(copy.folder / "results"))) == {}


def test_an_evaluation_made_by_hand_is_kept(copy) -> None:
    """It is there before the training that the workflow then finds complete."""
    (copy.training() / "training.done").unlink()
    for path in copy.run.glob("report.*"):
        path.unlink()
    by_hand, *others = sorted(copy.evaluation().glob("step-*.json"))
    for path in others:
        path.unlink()
    by_hand.write_bytes(by_hand.read_bytes() + b"\n")
    content = by_hand.read_bytes()
    copy.succeed()
    assert by_hand.read_bytes() == content
    assert all(path.exists() for path in others)
    assert copy.planned() == {}


def test_training_refuses_shards_of_other_settings(copy) -> None:
    options = changed(shards={"max_msa_rows": 2}, seed=7)
    assert "train" in copy.planned(*options)
    assert "shards.max_msa_rows: 10000 there, 2 now" in refusal(copy, *options)
    assert not list(copy.training(seed=7).glob("step-*"))
    another_training = {**PACKED, "evaluate_all": 1}
    del another_training["evaluate"]
    assert copy.planned(*options, *PACK_AGAIN).items() >= another_training.items()


@pytest.mark.parametrize("stage", ["index", "evaluate"])
def test_stages_refuse_shards_of_other_settings(copy, stage: str) -> None:
    options = changed(shards={"max_msa_rows": 2})
    assert "shards.max_msa_rows" in refusal(copy, *options, "--forcerun", stage)


def test_other_kinds_of_alignments_are_fetched(copy) -> None:
    path = copy.folder / "micro.yaml"
    tree = yaml.safe_load(path.read_text())
    tree["data"]["template_hits"] = None
    path.write_text(yaml.safe_dump(tree))
    assert "data.template_hits" in refusal(copy, "--forcerun", "index")
    assert copy.planned(*PACK_AGAIN).items() >= PACKED.items()


def test_as_asked_changed_settings_may_be_no_reason(copy) -> None:
    """As everywhere in Snakemake."""
    by_time = ["--rerun-triggers", "mtime"]
    assert copy.planned(*changed(shards={"max_msa_rows": 2}), *by_time) == {}


def test_another_list_of_chains_is_refused(copy) -> None:
    chains = copy.folder / "chains.tsv"
    listed = changed_list = chains.read_text()
    for line, instead in {
        "2crb_A\ttemplate\t2crb_A": "2crb_A\tvalidation\t2crb_A",
        "1lcd_A\ttrain\t1lcd_A": "1lcd_A\ttrain\tanother",
        "4zey_A\ttrain\t4zey_A\n": "",
    }.items():
        chains.write_text(listed.replace(line, instead))
        assert line[:6] in refusal(copy, "--forcerun", "index")
        assert line[:6] in refusal(copy, "--forcerun", "train")
        changed_list = changed_list.replace(line, instead)
    chains.write_text(changed_list)
    copy.succeed(*PACK_AGAIN, "--until", "index")
    assert copy.planned() == AFTER_INDEX


@pytest.mark.parametrize("mode", ["after", "async"])
def test_other_evaluations_are_made_once(copy, mode: str) -> None:
    options = changed(evaluation={"seed": 5, "mode": mode, "splits": ["validation"]})
    output = copy.succeed(*options)
    rules = Counter(re.findall(r"^Finished jobid: \d+ \(Rule: (\w+)\)$", output, re.MULTILINE))
    assert rules == {"evaluate_all": 1, "report": 1, "all": 1}
    for path in copy.evaluation().glob("*.json"):
        evaluation = json.loads(path.read_text())
        assert evaluation["seed"] == 5
        assert list(evaluation["mean"]) == ["validation"]
    assert copy.planned(*options) == {}


def test_all_checkpoints_deleted(copy) -> None:
    training = copy.training()
    for path in training.glob("step-*"):
        path.rename(copy.folder / path.name)
    assert str(training.relative_to(copy.folder)) in refusal(copy, "--dry-run")
    for name in ("step-00000001", "step-00000001.ready"):
        (copy.folder / name).rename(training / name)
    assert copy.planned() == {}


def test_more_steps_go_on(copy) -> None:
    settings = changed(training={"steps": 4, "checkpoint_every": 2, "max_recycling": 0})
    assert "step-00000004" in refusal(copy, "--dry-run", *settings)
    copy.succeed(*settings, "--forcerun", "train")
    training = copy.training()
    steps = sorted(int(path.stem.removeprefix("step-")) for path in training.glob("*.ready"))
    assert steps == [0, 1, 2, 4]
    assert not (training / "replaced").exists()
    assert copy.planned(*settings) == {}


def test_what_is_packed_again_is_trained_on(copy) -> None:
    settings = {"shards": {"max_msa_rows": 2}, "seed": 7}
    options = changed(**settings)
    copy.succeed(*options, *PACK_AGAIN, "--until", "structures")
    planned = copy.planned(*options)
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
    copy.succeed(*elsewhere, *PACK_AGAIN, "--until", "index")
    assert "shards.max_msa_rows" in refusal(copy)
    assert copy.planned(*PACK_AGAIN).items() >= PACKED.items()
