"""The section on the data set: the counts of `scalefold inspect`, with figures."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.unit.report.conftest import content_of

from scalefold.report.data_set import data_figures, data_set
from scalefold.report.run import write_report
from scalefold.shards.manifest import QUERY_ALONE
from scalefold.shards.schema import MANIFEST_FILE
from scalefold.shards.sealed_json import read_sealed, sealed


def _with_shards(run: Path, shards: Path) -> Path:
    shutil.rmtree(run / "shards")
    shutil.copytree(shards, run / "shards")
    return run


def test_every_property_counts_every_chain(make_run, shards):
    data = content_of(_with_shards(make_run(), shards))["data"]
    assert data[0] == {
        "what": "all",
        "lines": [{"group": "", "train": 2, "validation": 0, "template": 0}],
    }
    for section in data:
        assert sum(line["train"] for line in section["lines"]) == 2, section["what"]
    lengths = next(section["lines"] for section in data if section["what"] == "residues")
    assert [line["group"] for line in lengths] == ["50 to 99"]  # 58 and 70 residues
    assert len(data_figures(data)) == 4


def test_the_page_shows_them(make_run, shards):
    run = _with_shards(make_run(), shards)
    tree = read_sealed(run / "shards" / MANIFEST_FILE, "")
    tree["counts"][QUERY_ALONE] = 7
    (run / "shards" / MANIFEST_FILE).write_bytes(sealed(tree))
    write_report(run)
    (section,) = re.findall(
        r'<section id="data">.*?</section>', (run / "report.html").read_text("utf-8"), re.DOTALL
    )
    assert section.count("<svg") == 4
    assert "50 to 99" in section
    assert re.search(r"\b7 samples", section)


def test_shards_that_are_not_there_or_damaged(make_run, shards):
    run = make_run()
    assert content_of(run)["data"] == []
    assert data_set(run / "shards", None) == []
    damaged = _with_shards(run, shards)
    msa = next((damaged / "shards").glob("msa-*.arrow"))
    msa.write_bytes(msa.read_bytes()[:-100])
    content = content_of(damaged)
    assert content["data"] == []
    assert any(msa.name in note for note in content["notes"])


def test_a_split_without_chains_is_not_drawn():
    lines = [
        {"group": "below 20", "train": 3, "validation": 0, "template": 0},
        {"group": "20 to 49", "train": 1, "validation": 2, "template": 0},
    ]
    (figure,) = data_figures([{"what": "residues", "lines": lines}])
    assert "4 train chains, most of them below 20 residues" in figure.svg
    assert "template" not in figure.svg
