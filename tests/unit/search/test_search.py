"""Search of several sequences: resumed, copied, given, set aside; and what packing makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.search.conftest import ALIGNMENTS, alignment, needs

from scalefold.config import make_config
from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.raw.a3m import parse_a3m, read_folder
from scalefold.raw.fasta import FastaRecord, part_of
from scalefold.raw.hhr import read_hhr
from scalefold.search import one_sequence
from scalefold.search import search as searching
from scalefold.search.a3m import query_of
from scalefold.search.process import ToolError
from scalefold.search.search import search

SEQUENCE = query_of(alignment("5pti_A"), "5pti_A")
RECORDS = [FastaRecord("one_A", SEQUENCE), FastaRecord("two_A", SEQUENCE)]
OTHER = FastaRecord("other_A", "WMHQDYCNRS" * 4)


def _config(**section: Any) -> Config:
    data = {
        "chains": "unused",
        "mirrors": {"mmcif": ["unused"], "alignments": ["unused"]},
        "alignments": ["uniref90_hits", "bfd_uniclust_hits"],
    }
    return make_config({"data": data, "search": {"threads": 1, **section}})


def _steps(*steps: tuple[str, str], database: str = "unused") -> list[dict[str, Any]]:
    return [{"tool": tool, "databases": [database], "name": name} for tool, name in steps]


class _Programs:
    """Stands in for the programs: finds a second row, and remembers what was run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: list[tuple[str, str]] = []
        self.fails: set[str] = set()
        monkeypatch.setattr(searching, "check_step", lambda step: None)
        monkeypatch.setattr(one_sequence, "run_step", self._run)

    def _run(self, step: Any, sequence: str, query: bytes, threads: int) -> bytes:
        self.runs.append((step.name, sequence))
        if step.name in self.fails:
            raise ToolError("took too long")
        return f">query\n{sequence}\n>hit\n{sequence}\n".encode()


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> _Programs:
    return _Programs(monkeypatch)


STEPS = _steps(("jackhmmer", "uniref90_hits"), ("hhblits", "bfd_uniclust_hits"))


def test_a_sequence_is_searched_once(tmp_path: Path, programs: _Programs) -> None:
    summary = search(RECORDS, _config(steps=STEPS), tmp_path)
    assert len(programs.runs) == len(STEPS)
    assert summary.rejected == []
    for record in RECORDS:
        folder = tmp_path / "alignments" / record.name
        names = ["uniref90_hits", "bfd_uniclust_hits"]
        assert len(read_folder(folder, SEQUENCE, names)) == 1  # the hit is a duplicate
    search(RECORDS, _config(steps=STEPS), tmp_path)
    assert len(programs.runs) == len(STEPS)


def test_a_failed_step_leaves_nothing_to_pack_and_is_tried_again(
    tmp_path: Path, programs: _Programs
) -> None:
    programs.fails = {"bfd_uniclust_hits"}
    summary = search([*RECORDS, OTHER], _config(steps=STEPS), tmp_path)
    assert {r.chain_key for r in summary.rejected} == {"one_A", "two_A", "other_A"}
    assert not (tmp_path / "alignments").exists()
    assert (tmp_path / "rejected-search.tsv").read_text().count("took too long") == 3
    programs.fails, programs.runs = set(), []
    search([*RECORDS, OTHER], _config(steps=STEPS), tmp_path)
    assert {name for name, _ in programs.runs} == {"bfd_uniclust_hits"}  # the other one is there
    assert (tmp_path / "rejected-search.tsv").read_text().count("\n") == 1
    assert not list((tmp_path / "searching").iterdir())


def test_many_sequences_without_any_result_are_an_error(
    tmp_path: Path, programs: _Programs
) -> None:
    programs.fails = {"bfd_uniclust_hits"}
    records = [FastaRecord(f"n{number}_A", "MKVLAWYHH" + "A" * number) for number in range(12)]
    with pytest.raises(InputError, match="none of 12 sequences"):
        search(records, _config(steps=STEPS), tmp_path)
    assert (tmp_path / "rejected-search.tsv").read_text().count("took too long") == 12


def test_other_settings_are_searched_again(tmp_path: Path, programs: _Programs) -> None:
    search(RECORDS[:1], _config(steps=STEPS), tmp_path)
    longer = [{**step, "max_minutes": 500} for step in STEPS]
    search(RECORDS[:1], _config(steps=longer), tmp_path)
    assert len(programs.runs) == 2
    fewer = [{**step, "max_rows": 5} for step in STEPS]
    search(RECORDS[:1], _config(steps=fewer), tmp_path)
    assert len(programs.runs) == 4
    (tmp_path / "alignments/one_A/a3m/uniref90_hits.a3m").unlink()
    search(RECORDS[:1], _config(steps=fewer), tmp_path)
    assert len(programs.runs) == 6


def test_results_of_steps_that_are_gone_are_not_packed(tmp_path: Path, programs: _Programs) -> None:
    folder = tmp_path / "alignments/one_A/a3m"
    folder.mkdir(parents=True)
    (folder / "mgnify_hits.a3m").write_text(f">fetched\n{SEQUENCE}\n")
    search(RECORDS[:1], _config(steps=STEPS), tmp_path)
    search(RECORDS[:1], _config(steps=STEPS[1:]), tmp_path)
    names = {path.name for path in folder.iterdir()}
    assert names == {"bfd_uniclust_hits.a3m", "mgnify_hits.a3m"}
    (folder / "bfd_uniclust_hits.a3m").write_text(f">fetched later\n{SEQUENCE}\n")
    search(RECORDS[:1], _config(steps=STEPS[:1]), tmp_path)
    assert (folder / "bfd_uniclust_hits.a3m").read_text().startswith(">fetched later")


@pytest.mark.parametrize(
    ("tool", "told_by"),
    [("jackhmmer", "db"), ("hhblits", "db_cs219.ffindex"), ("mmseqs", "db.index")],
)
def test_a_renewed_database_is_searched_again_and_said(
    tool: str, told_by: str, tmp_path: Path, programs: _Programs, caplog: pytest.LogCaptureFixture
) -> None:
    file, out = tmp_path / told_by, tmp_path / "out"
    file.write_bytes(b">one" + bytes(3 << 20))
    steps = _steps((tool, "uniref90_hits"), database=str(tmp_path / "db"))
    records = [*RECORDS, OTHER]

    def searched(number: int, *, says: bool) -> None:
        programs.runs = []
        caplog.clear()
        search(records, _config(steps=steps), out)
        assert len(programs.runs) == number
        assert [str(tmp_path / "db") in one for one in caplog.messages] == [True] * says

    searched(2, says=False)
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content)  # a copy, of another date, is the same database
    searched(0, says=False)
    for renewed in (content[:-1] + b"x", b">two" + content[4:], content + b"\0"):
        file.write_bytes(renewed)
        searched(2, says=True)
        searched(0, says=False)
    file.unlink()  # what is done needs no database
    searched(0, says=False)


def test_results_of_earlier_versions_stay(tmp_path: Path, programs: _Programs) -> None:
    (tmp_path / "db").write_text(">one")
    steps = _steps(("jackhmmer", "uniref90_hits"), database=str(tmp_path / "db"))
    search(RECORDS[:1], _config(steps=steps), tmp_path)
    path = tmp_path / "alignments/one_A/searched.json"
    record = json.loads(path.read_text())
    del record["databases"]
    path.write_text(json.dumps(record))
    search(RECORDS[:1], _config(steps=steps), tmp_path)
    assert len(programs.runs) == 1


def test_the_query_alone_must_be_allowed(tmp_path: Path) -> None:
    summary = search([OTHER], _config(), tmp_path)
    assert "query_alone" in summary.rejected[0].reason
    summary = search([OTHER], _config(query_alone=True), tmp_path)
    assert summary.outcomes == {"query alone": 1}
    names = ["uniref90_hits"]
    assert len(read_folder(tmp_path / "alignments/other_A", OTHER.sequence, names)) == 1


def test_given_alignments_are_taken(tmp_path: Path, programs: _Programs) -> None:
    given = tmp_path / "given"
    given.mkdir()
    colabfold = f"#{len(SEQUENCE)}\t1\n>101\n{SEQUENCE}\n>UniRef100_X\t30\n{SEQUENCE}\n"
    (given / "one_A.a3m").write_bytes(colabfold.encode() + b"\0")
    (given / "two_A.sto").write_text(f"# STOCKHOLM 1.0\ntwo_A {SEQUENCE}\nhit {SEQUENCE}\n//\n")
    (given / "other_A.a3m").write_text(f">query\n{SEQUENCE}\n")
    config = _config(steps=STEPS, given=str(given))
    third = FastaRecord("third_A", "MKVLAWYHH")
    summary = search([*RECORDS, OTHER, third], config, tmp_path / "out")
    assert {sequence for _, sequence in programs.runs} == {third.sequence}
    assert [r.chain_key for r in summary.rejected] == ["other_A"]  # of another sequence
    content = (tmp_path / "out/alignments/one_A/a3m/uniref90_hits.a3m").read_bytes()
    assert len(parse_a3m(content, SEQUENCE, "one_A")) == 2


def test_parts_are_disjoint_and_keep_a_sequence_together() -> None:
    letters = "ACDEFGHIKLMNPQRSTVWY"
    records = [FastaRecord(f"n{i}", letters[i % 20] * 5 + letters[i // 20]) for i in range(200)]
    assert {part_of(record, 4) for record in records} == {0, 1, 2, 3}
    assert part_of(FastaRecord("a", "MKV"), 7) == part_of(FastaRecord("b", "MKV"), 7)


def test_refuses_a_configuration_without_the_section(tmp_path: Path) -> None:
    config = _config().model_copy(update={"search": None})
    with pytest.raises(InputError, match="no section search"):
        search(RECORDS, config, tmp_path)


@pytest.mark.parametrize(
    ("steps", "fault"),
    [
        (_steps(("jackhmmer", "unread_hits")), "data.alignments"),
        (_steps(("hhsearch", "uniref90_hits")), "data.template_hits"),
        (_steps(("jackhmmer", "uniref90_hits"), ("hhblits", "uniref90_hits")), "name them apart"),
        (_steps(("blast", "uniref90_hits")), "search.steps.0.tool"),
        ([{**STEPS[0], "databases": ["a", "b"]}], "takes one database"),
        ([{**STEPS[0], "max_row": 3}], "search.steps.0.max_row"),
    ],
)
def test_refuses_steps_that_could_not_work(steps: list[dict[str, Any]], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        _config(steps=steps)


def test_an_absent_database_is_found_before_anything_is_run(tmp_path: Path) -> None:
    steps = _steps(("jackhmmer", "uniref90_hits"), database=str(tmp_path / "no.fasta"))
    with pytest.raises(InputError, match=r"no\.fasta|jackhmmer is not installed"):
        search(RECORDS, _config(steps=steps), tmp_path)


@needs("jackhmmer", "hhblits", "hhsearch")
def test_real_programs_one_after_another(tmp_path: Path, database: Path, sequences: Path) -> None:
    steps = [
        *_steps(("jackhmmer", "uniref90_hits"), database=str(sequences)),
        *_steps(
            ("hhblits", "bfd_uniclust_hits"), ("hhsearch", "pdb70_hits"), database=str(database)
        ),
    ]
    summary = search([RECORDS[0], OTHER], _config(steps=steps), tmp_path)
    assert [r.chain_key for r in summary.rejected] == ["other_A"]  # nothing is found
    folder = tmp_path / "alignments/one_A"
    assert len(read_folder(folder, SEQUENCE, ["uniref90_hits", "bfd_uniclust_hits"])) > 20
    assert read_hhr(folder / "hhr/pdb70_hits.hhr", SEQUENCE)[0].chain_key == "5pti_A"


def test_the_demos_alignments_can_all_be_given(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    records = []
    for folder in sorted(ALIGNMENTS.iterdir()):
        (given / f"{folder.name}.a3m").write_bytes(alignment(folder.name))
        records.append(FastaRecord(folder.name, query_of(alignment(folder.name), folder.name)))
    summary = search(records, _config(given=str(given)), tmp_path / "out")
    assert summary.outcomes == {"given": len(records)}
