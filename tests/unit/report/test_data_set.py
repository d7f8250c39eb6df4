"""The section on the data set: the counts of `scalefold inspect`, with figures."""

from __future__ import annotations

import re
import shutil
from dataclasses import asdict
from pathlib import Path

from tests.unit.report.conftest import content_of

from scalefold.raw.rejected import read_rejected
from scalefold.report.data_set import DataSet, data_figures, data_set
from scalefold.report.run import write_report
from scalefold.shards.audit import audit
from scalefold.shards.manifest import QUERY_ALONE
from scalefold.shards.reader import ShardReader
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
    assert len(data_figures(data)) == 7


def test_the_audit_is_that_of_inspect(make_run, shards):
    run = _with_shards(make_run(), shards)
    (run / "shards/rejected.tsv").write_text(
        "chain_key\tstage\treason\n5pti_A\tfetch\tno alignment\n9xyz_A\tfetch\tno structure\n"
    )
    content = content_of(run)
    index, rejected = ShardReader(run / "shards").index, read_rejected(run / "shards/rejected.tsv")
    assert content["audit"] == [asdict(line) for line in audit(index, rejected)]
    found = {line["what"]: (line["chains"], line["first"]) for line in content["audit"]}
    assert found["listed, but without alignment"] == (1, "5pti_A")
    assert found["listed, but without structure"] == (1, "9xyz_A")
    assert _numbers(run, "Audit of the data set") == [line["chains"] for line in content["audit"]]


def test_ten_thousand_chains_set_aside_are_counted_by_reason(make_run):
    run = make_run(evaluated=())
    lines = [f"{n:04}_A\tpack\t{n:04}_A: {n} columns, expected 7" for n in range(10_000)]
    (run / "shards/rejected.tsv").write_text(
        "\n".join(["chain_key\tstage\treason", "1abc_A\tfetch\tnot there", *lines])
    )
    content = content_of(run)
    assert [reason["chains"] for reason in content["reasons"]] == [10_000, 1]
    assert content["reasons"][0]["first"]["chain_key"] == "0000_A"
    assert len(content["rejected"]) == 10_001
    assert _numbers(run, "Reasons") == [10_000, 1]
    page = (run / "report.html").read_text("utf-8")
    listed = _table(page, "Chains set aside").count("<tr>") - 1
    assert listed < 1000
    assert f"{10_001 - listed:,} more" in page
    assert len(page) < 10_000_000


def _table(page: str, name: str) -> str:
    return page.partition(f'aria-label="{name}"')[2].partition("</table>")[0]


def _numbers(run: Path, name: str) -> list[int]:
    """The numbers of a table of the page, which is written here."""
    write_report(run)
    table = _table((run / "report.html").read_text("utf-8"), name)
    return [int(number) for number in re.findall(r'data-value="(\d+)"', table)]


def test_the_page_shows_them(make_run, shards):
    run = _with_shards(make_run(), shards)
    tree = read_sealed(run / "shards" / MANIFEST_FILE, "")
    tree["counts"][QUERY_ALONE] = 7
    (run / "shards" / MANIFEST_FILE).write_bytes(sealed(tree))
    write_report(run)
    (section,) = re.findall(
        r'<section id="data">.*?</section>', (run / "report.html").read_text("utf-8"), re.DOTALL
    )
    assert section.count("<svg") == 7
    assert "50 to 99" in section
    assert re.search(r"\b7 samples", section)


def test_shards_that_are_not_there_or_damaged(make_run, shards):
    run = make_run()
    assert content_of(run)["data"] == []
    assert data_set(run / "shards", None, []) == DataSet([], [])
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


def test_what_is_unknown_of_all_chains_is_not_drawn():
    lines = [{"group": "unknown", "train": 3, "validation": 0, "template": 0}]
    assert data_figures([{"what": "method", "lines": lines}]) == []
