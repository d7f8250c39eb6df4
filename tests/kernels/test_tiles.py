"""Tile tables: which rule a launch meets, and rules that none can meet."""

import json
from pathlib import Path

import pytest

from scalefold_kernels import tiles

SHAPE = {"N": 100, "dtype": "bfloat16"}


def written(folder: Path, where: dict) -> None:
    rules = [{"where": where, "tile": {"BLOCK": 2}}, {"where": {}, "tile": {"BLOCK": 3}}]
    table = {"default": {"BLOCK": 1}, "sm_90": rules}
    (folder / "tiles.json").write_text(json.dumps({"kernel": table}))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the tables, instead of the package's."""
    monkeypatch.setattr(tiles, "_FOLDER", tmp_path)
    for read in (tiles._all_tables, tiles._lookup):
        monkeypatch.setattr(tiles, read.__name__, read.__wrapped__)  # nothing is remembered
    return tmp_path


@pytest.mark.parametrize(
    ("where", "arch", "block"),
    [
        ({"N": [0, 100], "dtype": "bfloat16"}, "sm_90", 2),
        ({"N": [0, 99], "dtype": "bfloat16"}, "sm_90", 3),
        ({"N": [0, 100], "dtype": "float32"}, "sm_90", 3),
        ({"N": [0, 100], "dtype": "bfloat16"}, "sm_80", 1),
    ],
)
def test_the_first_rule_that_holds_wins(folder: Path, where: dict, arch: str, block: int) -> None:
    written(folder, where)
    assert tiles.find_config("kernel", arch, SHAPE) == {"BLOCK": block}


@pytest.mark.parametrize("arch", ["sm_90", "sm_80", "cpu"])
@pytest.mark.parametrize(
    ("where", "wrong"),
    [({"dtype": "bf16"}, "'bf16'"), ({"M": [0, 9]}, "'M'"), ({"N": [0, 9], "M": [0, 9]}, "'M'")],
)
def test_a_rule_that_no_launch_can_meet_is_refused(
    folder: Path, where: dict, wrong: str, arch: str
) -> None:
    written(folder, where)
    with pytest.raises(ValueError, match=rf"tiles\.json: kernel has a rule on .*{wrong}"):
        tiles.find_config("kernel", arch, SHAPE)
