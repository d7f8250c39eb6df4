"""Where a chain's alignments may lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalefold.errors import InputError
from scalefold.finetune.alignments import find_alignments

SEQUENCES = {"1abc_A": "MKV", "1abc_B": "GGG"}
LAYOUTS = (
    "pdb/{chain}/{kind}/{name}.{kind}",
    "{chain}/{kind}/{name}.{kind}",
    "{chain}/{name}.{kind}",
)


def _write(folder: Path, layout: str, chain: str, name: str, kind: str = "a3m") -> None:
    path = folder / layout.format(chain=chain, name=name, kind=kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(">query\nMKV\n")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_usual_layout_is_found(layout: str, tmp_path: Path) -> None:
    for name in ("zzz_hits", "mgnify_hits", "uniref90_hits"):
        _write(tmp_path, layout, "1abc_A", name)
    _write(tmp_path, layout, "1abc_A", "pdb70_hits", "hhr")
    found = find_alignments(SEQUENCES, tmp_path, tmp_path / "own", query_alone=False)
    mirrors = found.data["mirrors"]
    for kind, template in (("a3m", "alignment_path"), ("hhr", "hhr_path")):
        assert mirrors[template] == layout.replace("{kind}", kind)
    assert found.data["alignments"] == ["uniref90_hits", "mgnify_hits", "zzz_hits"]
    assert found.data["template_hits"] == "pdb70_hits"
    assert found.sequences == {"1abc_A": "MKV"}
    assert [one.chain_key for one in found.rejected] == ["1abc_B"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_query_alone_serves_chains_without(layout: str, tmp_path: Path) -> None:
    given, queries = tmp_path / "given", tmp_path / "queries"
    _write(given, layout, "1abc_A", "own")
    found = find_alignments(SEQUENCES, given, queries, query_alone=True)
    assert (found.sequences, found.num_queries, found.rejected) == (SEQUENCES, 1, [])
    assert found.data["mirrors"]["alignments"] == [str(given), str(queries)]
    name, *_ = set(found.data["alignments"]) - {"own"}
    path = queries / found.data["mirrors"]["alignment_path"].format(chain="1abc_B", name=name)
    assert path.read_text() == ">1abc_B\nGGG\n"
    assert [p for p in queries.rglob("*") if p.is_file()] == [path]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_template_hits_are_found_in_a_folder_of_any_name(layout: str, tmp_path: Path) -> None:
    given = tmp_path / "a3m_of_mine"
    _write(given, layout, "1abc_A", "own")
    _write(given, layout, "1abc_A", "pdb70_hits", "hhr")
    found = find_alignments(SEQUENCES, given, tmp_path / "own", query_alone=False)
    assert found.data["template_hits"] == "pdb70_hits"


def test_without_a_folder_all_have_the_query_alone(tmp_path: Path) -> None:
    found = find_alignments(SEQUENCES, None, tmp_path, query_alone=True)
    assert (found.num_queries, found.data["template_hits"]) == (2, None)


def test_a_search_serves_chains_without(tmp_path: Path) -> None:
    given, own = tmp_path / "given", tmp_path / "own"
    _write(given, LAYOUTS[1], "1abc_A", "own_hits")
    tools = (("jackhmmer", "uniref90_hits"), ("hhsearch", "pdb70_hits"))
    search = {"steps": [{"tool": tool, "name": name} for tool, name in tools]}
    found = find_alignments(SEQUENCES, given, own, query_alone=False, search=search)
    assert (found.sequences, found.num_queries, found.rejected) == (SEQUENCES, 0, [])
    assert found.data["alignments"] == ["uniref90_hits", "own_hits"]
    assert found.data["template_hits"] == "pdb70_hits"


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    def find(given: Path | None) -> None:
        find_alignments(SEQUENCES, given, tmp_path / "own", query_alone=False)

    with pytest.raises(InputError, match="--query-alone"):
        find(None)
    with pytest.raises(InputError, match="no such folder"):
        find(tmp_path / "absent")
    with pytest.raises(InputError, match="1abc_A/a3m"):
        find(tmp_path)
