from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from scalefold.errors import InputError
from scalefold.shards.inspect import describe_chain, describe_folder, effective_sequences
from scalefold.shards.reader import ShardReader


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=200)


def shown(console: Console) -> dict[str, list[str]]:
    """First cell -> other cells of all table rows."""
    assert isinstance(console.file, io.StringIO)
    lines = [line for line in console.file.getvalue().splitlines() if line.startswith("│")]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    return {first: rest for first, *rest in cells}


def test_folder(demo, console):
    describe_folder(demo.out, console)
    rows = shown(console)
    assert rows["chains, train"] == ["6"]
    assert rows["alignments"] == ["17"]
    assert rows["length: shortest, median, longest"] == ["51, 97, 167"]
    assert rows["index.arrow"][0] == "21"


def test_set_aside_chains_are_listed(demo_copy, console):
    (demo_copy.raw / "alignments/5pti_A/a3m/swissprot_hits.a3m").write_text("")
    demo_copy.pack()
    describe_folder(demo_copy.out, console)
    assert shown(console)["5pti_A"][0] == "alignment"


@pytest.mark.parametrize("name", ["chain-00000.arrow", "msa-00000.arrow", "index.arrow"])
def test_single_file_has_a_line_for_each_row(demo, console, name):
    describe_folder(demo.out / name, console)
    assert len(shown(console)) == ShardReader(demo.out).manifest.facts(name).rows


def test_chain_with_templates(demo, console):
    describe_chain(demo.out, "2nwd_X", console)
    rows = shown(console)
    sample = ShardReader(demo.out).sample("2nwd_X")
    assert rows["residues"] == ["130"]
    assert rows["observed atoms"] == [str(int(sample.chain.atom_mask.sum()))]
    assert rows["alignment rows"] == [f"{len(sample.msa.msa)} of {len(sample.msa.msa)}"]
    assert rows["deletions"] == [
        f"{sample.msa.del_val.sum()} residues at {len(sample.msa.del_col)} places"
    ]
    assert rows["1aki_A"][0] == "1997-11-19"
    assert rows["1hml_A"][0] == "1995-01-26"


def test_chains_that_share_an_alignment_are_named(demo, work, console):
    describe_chain(demo.out, "5pti_A", console)
    assert "alignment shared with" not in shown(console)
    entries = ["5pti", *(f"9xy{number}" for number in range(10))]
    work.list_chains(*((f"{entry}_A", "train", "") for entry in entries))
    for entry in entries:
        work.structure("5pti", renamed=entry)
    work.alignment("5pti_A")
    work.pack()
    describe_chain(work.out, "9xy0_A", console)
    named = ", ".join(["5pti_A", *(f"{entry}_A" for entry in entries[2:9])])
    assert shown(console)["alignment shared with"] == [f"{named} and 2 more"]


def test_chain_with_missing_residues(demo, console):
    describe_chain(demo.out, "3jqh_A", console)
    rows = shown(console)
    assert rows["residues"] == ["167"]
    assert rows["residues without atoms"] == ["144 (1-3, 27-167)"]
    assert rows["release date"] == ["unknown"]


def test_template_only_chain(demo, console):
    describe_chain(demo.out, "1aki_A", console)
    assert shown(console)["alignment"] == ["none: serves as a template only"]


def test_unknown_names_are_refused(demo, console, tmp_path):
    with pytest.raises(InputError, match="'9zzz_A'"):
        describe_chain(demo.out, "9zzz_A", console)
    for name in ("chain-00000.arrow", "msa-00000.arrow", "index.arrow"):
        with pytest.raises(InputError) as error:
            describe_chain(demo.out / name, "5pti_A", console)
        assert f"scalefold inspect {demo.out} --chain 5pti_A." in str(error.value)
    with pytest.raises(InputError, match="no such shard folder"):
        describe_folder(tmp_path / "no", console)
    with pytest.raises(InputError, match=r"manifest\.json"):
        describe_folder(demo.out / "manifest.json", console)
    for path, fix in (
        (demo.raw, f"raw folder: pack it with `scalefold pack --raw {demo.raw}`."),
        (demo.raw / "alignments/5pti_A", "alignments: `scalefold inspect "),
        (tmp_path, "Give the folder that was --out of `scalefold pack`."),
        (tmp_path / "x.a3m.gz", f"Unpack it: gunzip {tmp_path}/x.a3m.gz"),
    ):
        if path.suffix:
            path.touch()
        with pytest.raises(InputError) as error:
            describe_folder(path, console)
        what, reads, advice = str(error.value).partition(". Inspect reads a shard folder, ")
        assert what.startswith(f"{path}: no")
        assert reads
        assert fix in advice


def test_effective_sequences_against_loops():
    rng = np.random.default_rng(0)
    msa = np.repeat(rng.integers(0, 22, (6, 30)), 3, axis=0).astype(np.uint8)
    for row in msa:
        row[rng.integers(0, 30, 4)] = rng.integers(0, 22, 4)
    expected = 0.0
    for a in msa:
        columns = [i for i in range(30) if a[i] != 21]
        similar = [b for b in msa if sum(a[i] == b[i] for i in columns) >= 0.8 * len(columns)]
        expected += 1 / len(similar)
    assert effective_sequences(msa) == pytest.approx(expected)
    assert 6 <= expected < 18
    assert effective_sequences(np.repeat(msa[:1], 5, axis=0)) == pytest.approx(1)
