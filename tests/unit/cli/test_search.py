"""``scalefold search`` on hostile sequences, and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.cli.conftest import DEMO, run

HOSTILE = (
    ">good_A\nMKVLAWYHH\n>stop\nMK*V\n>../up\nMKV\n>good_A\nMKVA\n>empty\n>long\n" + "M" * 35_000
)


@pytest.mark.parametrize(
    ("options", "code"), [([], 2), (["--part", "0/1"], 0), (["--part", "1/1"], 2)]
)
def test_bad_records_are_listed_and_the_rest_goes_on(
    tmp_path: Path, options: list[str], code: int
) -> None:
    (tmp_path / "my.fasta").write_text(HOSTILE)
    out = tmp_path / "out"
    words = [str(tmp_path / "my.fasta"), "-c", DEMO, "-s", "search={query_alone: true}"]
    done = run("search", *words, "--out", str(out), *options)
    assert done.exit_code == code, done.output
    if "1/1" in options:
        assert not out.exists()
        return
    assert (out / "alignments/good_A/a3m/swissprot_hits.a3m").is_file()
    (table,) = out.glob("rejected-search*.tsv")
    _, *rows = table.read_text().splitlines()
    assert len(rows) == 5
    assert all(f" ({tmp_path / 'my.fasta'}, line " in row for row in rows)
    assert not (tmp_path / "up").exists()


def test_a_good_file_and_an_empty_part(tmp_path: Path) -> None:
    path = tmp_path / "my.fasta"
    path.write_text(">good_A\nMKVLAWYHH\n")
    words = [str(path), "-c", DEMO, "-s", "search={query_alone: true}", "--out", str(tmp_path)]
    assert run("search", *words).exit_code == 0
    path.write_text("")
    assert run("search", *words, "--part", "0/2").exit_code == 0
    assert run("search", *words).exit_code == 2


def test_config_check_looks_for_databases_and_not_for_alignments(tmp_path: Path) -> None:
    settings = f"data.mirrors.alignments=[{tmp_path}]"
    words = ["config", "check", "-c", DEMO, "-s", settings]
    assert run(*words).exit_code == 2
    assert run(*words, "-s", "search={query_alone: true}").exit_code == 0
    step = f"{{tool: jackhmmer, databases: [{tmp_path}/no.fasta], name: swissprot_hits}}"
    done = run(*words, "-s", f"search={{steps: [{step}]}}")
    assert done.exit_code == 2
