"""What a fine-tuning says at its end."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

from scalefold.config.identity import run_key
from scalefold.config.load import make_config, merge
from scalefold.finetune.outcome import outcome

ROOT = Path(__file__).parents[3]
DATA = {"chains": "-", "mirrors": {"mmcif": ["-"], "alignments": ["-"]}}


@pytest.mark.parametrize(("scores", "best"), [((0.5, 0.7, 0.6), 40), ((0.5, 0.4, 0.3), None)])
def test_the_best_weights_are_named_with_the_command_that_uses_them(
    tmp_path: Path, scores: tuple[float, ...], best: int | None
) -> None:
    config = make_config({"data": DATA, "results": str(tmp_path), "run_name": "mine"})
    folder = tmp_path / "mine/evaluation" / run_key(config)
    folder.mkdir(parents=True)
    for step, score in zip((0, 40, 80), scores, strict=True):
        found = {"mean": {"validation": {"lddt_ca": score}}, "step": step}
        found["counts"] = {"validation": {"scored": 3}}
        (folder / f"step-{step:08d}.json").write_text(json.dumps(found))
    commands = [line for line in outcome(config) if "scalefold predict" in line]
    assert len(commands) == (best is not None)
    for line in commands:
        words = shlex.split(line)
        weights = Path(words[words.index("--weights") + 1])
        assert weights == tmp_path / "mine/weights" / run_key(config) / f"step-{best:08d}"


def test_small_settings_lie_over_the_preset() -> None:
    small = yaml.safe_load((ROOT / "demo/finetune.yaml").read_text())
    given = make_config({"data": DATA, "preset": "finetune-own"})
    config = make_config(merge({"data": DATA, "preset": "finetune-own"}, small))
    assert config.training.steps < given.training.steps / 10
    assert config.evaluation.patience == given.evaluation.patience
