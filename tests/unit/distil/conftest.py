"""Predictions of bundled sequences by random weights, with confidences that are set."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from tests.example import set_example_weights
from typer.testing import CliRunner

from scalefold.cli import app
from scalefold.config import Config
from scalefold.model import AlphaFold

ALIGNMENTS = Path(__file__).parents[3] / "demo/mirror/openproteinset/pdb"
NAMES = {"1lcd_A": "1lcd", "4zey_A": "4zey", "3zee_A": "tr|X1|PAR3_A", "5pti_A": "5pti"}
"""Bundled chain -> name of its sequence; 5pti_A is in the shards too."""
RARE = "MKVULAYGXW" * 6
"""Selenocysteine and an unknown residue; its alignment is itself."""


@pytest.fixture(scope="session")
def alignments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alignments")
    for chain, name in NAMES.items():
        shutil.copytree(ALIGNMENTS / chain, folder / name)
    (folder / "rare/a3m").mkdir(parents=True)
    (folder / "rare/a3m/swissprot_hits.a3m").write_text(f">rare\n{RARE}\n")
    return folder


@pytest.fixture(scope="session")
def predicted(
    micro: Config, alignments: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Folders of predictions, of each part of two, and of all together; not to be changed."""
    folder = tmp_path_factory.mktemp("predicted")
    model = AlphaFold(micro.model)
    set_example_weights(model, 0)
    torch.save(model.state_dict(), folder / "weights.pt")
    (folder / "micro.yaml").write_text(yaml.safe_dump(micro.model_dump(mode="json")))
    first = [(alignments / name / "a3m/swissprot_hits.a3m") for name in NAMES.values()]
    records = [
        f">{name}\n{path.read_text().splitlines()[1]}\n"
        for name, path in zip(NAMES.values(), first, strict=True)
    ]
    records += [f">rare\n{RARE}\n", ">unaligned\nMKVLAYGW\n", ">stop\nMK*\n"]
    (folder / "all.fasta").write_text("".join(records))
    words = ["--weights", folder / "weights.pt", "--config", folder / "micro.yaml"]
    words += ["--alignments", alignments, "--recycling", 0, "--device", "cpu"]
    logger = logging.getLogger("scalefold")
    handlers = logger.handlers  # the command's own writes to what is closed afterwards
    for name, part in (("all", "0/1"), ("first", "0/2"), ("second", "1/2")):
        command = ["predict", folder / "all.fasta", *words, "--out", folder / name, "--part", part]
        result = CliRunner().invoke(app, list(map(str, command)))
        assert result.exit_code == 0, result.output
    logger.handlers = handlers
    return {name: folder / name for name in ("all", "first", "second")}


@pytest.fixture(scope="session")
def set_confidence() -> Callable[[Path, str, list[float]], None]:
    """Give the residues of a prediction other confidences, by turns."""

    def change(folder: Path, name: str, values: list[float]) -> None:
        path = folder / name / "prediction.json"
        record = json.loads(path.read_text())
        best = record["models"][0]
        best["plddt"] = [values[i % len(values)] for i in range(record["length"])]
        path.write_text(json.dumps(record))

    return change


@pytest.fixture
def predictions(
    predicted: dict[str, Path],
    set_confidence: Callable[[Path, str, list[float]], None],
    tmp_path: Path,
) -> Path:
    """A copy of all of them, to be changed; every second residue is confident."""
    folder = tmp_path / "predictions"
    shutil.copytree(predicted["all"], folder)
    for name in [*NAMES.values(), "rare"]:
        set_confidence(folder, name, [90.0, 40.0])
    return folder
