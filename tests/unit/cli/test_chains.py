"""``scalefold chains`` as a user meets it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gemmi
import pytest
from tests.unit.cli.conftest import DEMO, ROOT, run

from scalefold.raw.chains import read_chains
from scalefold.raw.outline import read_outline

MIRROR = ROOT / "demo/mirror"


def entity_clusters(path: Path) -> None:
    """RCSB's file for the bundled structures: lysozymes together, else a line a chain."""
    lines: dict[str, set[str]] = {}
    for file in (MIRROR / "wwpdb").rglob("*.cif.gz"):
        outline = read_outline(file)
        for chain in outline.chains:
            family = "lysozyme" if outline.entry_id in ("1aki", "2nwd") else chain.sequence
            lines.setdefault(family, set()).add(f"{outline.entry_id}_{chain.entity}".upper())
    path.write_text("".join(" ".join(sorted(line)) + "\n" for line in lines.values()))


def test_open_protein_set_with_structures(tmp_path: Path) -> None:
    out, clusters = tmp_path / "chains.tsv", tmp_path / "clusters-by-entity-40.txt"
    entity_clusters(clusters)
    result = run(
        "chains", str(MIRROR / "openproteinset"), str(MIRROR / "wwpdb"), "--clusters",
        str(clusters), "--train-until", "2010-01-01", "--templates", "-o", str(out),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = {row.chain_key: row for row in read_chains(out)}
    folders = {folder.name for folder in (MIRROR / "openproteinset/pdb").iterdir()}
    samples = {key for key, row in rows.items() if row.split != "template"}
    assert samples < folders
    assert "1aki_A" in rows.keys() - folders, "it has no alignment, and is a template"
    assert {row.split for row in rows.values()} == {"train", "validation", "template"}
    assert "1lcd" not in rows or rows["1lcd_A"].cluster_id == "1lcd_3"
    assert "release date unknown" in result.output


def test_a_validation_chain_without_most_of_its_atoms_is_warned_of(tmp_path: Path) -> None:
    for entry, left in (("5pti", 10), ("1ay7", None)):
        structure = gemmi.read_structure(str(next((MIRROR / "wwpdb").rglob(f"{entry}.cif.gz"))))
        structure.remove_ligands_and_waters()
        if left is not None:
            del structure[0][0][left:]  # the sequence stays as it is
        structure.make_mmcif_document().write_file(str(tmp_path / f"{entry}.cif"))
    for held_out in ("5pti_A", "1ay7_B"):
        (named := tmp_path / "named.txt").write_text(held_out)
        result = run(
            "chains", str(tmp_path), "--clusters", "none", "--validation-list", str(named),
            "-o", str(tmp_path / "chains.tsv"),
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        assert ("warning" in result.stderr) == (held_out == "5pti_A"), result.stderr


def test_structures_date_a_list_that_has_no_dates(tmp_path: Path) -> None:
    outlines = [read_outline(path) for path in (MIRROR / "wwpdb").rglob("*.cif.gz")]
    dated = {outline.entry_id for outline in outlines if outline.release_date is not None}
    fasta, out = tmp_path / "pdb_seqres.txt", tmp_path / "chains.tsv"
    chains = [(o.entry_id, chain) for o in outlines for chain in o.chains]
    fasta.write_text("".join(f">{chain.chain_key}\n{chain.sequence}\n" for _, chain in chains))
    options = ["--clusters", "none", "-o", str(out)]
    result = run("chains", str(fasta), *options, "--train-until", "2000-01-01")
    assert result.exit_code == 2, result.output
    result = run("chains", str(fasta), *options, "--validation", "0")
    assert len(read_chains(out)) == len(chains), "all of them are to be fetched"
    by_date = [*options, "--train-until", "2000-01-01"]
    result = run("chains", str(fasta), str(MIRROR / "wwpdb"), *by_date)
    rows = read_chains(out)
    assert {row.split for row in rows} == {"train", "validation"}, result.output
    assert {row.entry_id for row in rows} <= dated


def test_nothing_is_written_after_an_error(tmp_path: Path) -> None:
    out = tmp_path / "chains.tsv"
    out.write_text("mine")
    cache = tmp_path / "cache.json"
    cache.write_text(json.dumps({"1abc_A": {"seq": "MK"}, "2abc_A": {"seq": "AA"}}))
    for options in (
        ["--preset", "mlperf"],
        ["--preset", "mlperf", "--validation-list", str(cache), "--max-length", "9"],
        ["--train-until", "September"],
        ["--train-until", "2020-01-01", "--clusters", "none"],
        ["--clusters", str(tmp_path / "absent")],
        ["--clusters", "none", "--validation-list", str(cache)],
    ):
        result = run("chains", str(cache), "-o", str(out), *options)
        assert result.exit_code == 2, result.output
    assert out.read_text() == "mine"


def test_what_was_passed_over_is_said_where_no_chain_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tmp_path / "cache.json"
    cache.write_text(json.dumps({"1abc_A": {"seq": "MK"}, "no chain": {"seq": "AA"}}))
    result = run("chains", str(cache), "-o", str(tmp_path / "chains.tsv"), "--clusters", "none")
    assert result.exit_code == 2, result.output
    assert "'no chain'" in caplog.text


def test_mlperf_takes_cameos_targets(tmp_path: Path) -> None:
    """By the archive's names of chains first, as its reference does."""
    table, targets = tmp_path / "chains.csv", tmp_path / "cameo_targets.py"
    table.write_text(
        "pdb_chain_id,mmcif_chain_ids,release_date,resolution,pdb_cluster_id,sequence\n"
        "7ny6_A,B,2021-10-20,1.5,17,ACDEFGH\n7ny6_B,A,2021-10-20,1.5,18,ACDEFGHI\n"
        "1abc_A,A,2001-01-01,,17,ACDEFGHIKL\n1bad_A,A,2001-01-01,9.0,19,ACDEFGHIKL\n"
    )
    targets.write_text('CAMEO_TARGETS = {\n    "2021-09-18": [\n        "7ny6 [A]",\n    ],\n}\n')
    out = tmp_path / "chains.tsv"
    result = run(
        "chains", str(table), "--preset", "mlperf", "--validation-list", str(targets),
        "-o", str(out),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    splits = {row.chain_key: row.split for row in read_chains(out)}
    assert splits == {
        "7ny6_A": "template",
        "7ny6_B": "validation",
        "1abc_A": "train",
        "1bad_A": "template",
    }
    assert "594,595" in result.output


def test_convert(tmp_path: Path) -> None:
    database = tmp_path / "alignment_db"
    database.mkdir()
    (database / "0.db").write_bytes(b">q\nMK\n")
    item = {"db": "0.db", "files": [["uniref90_hits.a3m", 0, 6]]}
    index = database / "alignment_db_0.index"
    index.write_text(json.dumps({"1abc_A": item, "../A": item}))
    out = tmp_path / "out"
    result = run("convert", str(database), "--out", str(out))
    assert result.exit_code == 2, result.output
    assert (out / "pdb/1abc_A/a3m/uniref90_hits.a3m").read_bytes() == b">q\nMK\n"
    assert result.stderr.endswith(
        f"'../A': no name of a chain such as 1abc_A\nerror: {database}: 1 left out, listed above\n"
    )
    index.write_text(json.dumps({"1abc_A": item}))
    assert run("convert", str(database), "--out", str(out)).exit_code == 0
    stockholm = tmp_path / "uniref90_hits.sto"
    stockholm.write_text("# STOCKHOLM 1.0\nq   MK-V\nrow M-aV\n//\n")
    result = run("convert", str(stockholm), "--out", str(out), "--chain", "2abc_A")
    assert result.exit_code == 0, result.output
    assert (out / "pdb/2abc_A/a3m/uniref90_hits.a3m").read_bytes() == b">q\nMKV\n>row\nM-aV\n"
    index.write_text("{}")
    assert run("convert", str(database), "--out", str(out)).exit_code == 2
    for name in ("features.pkl", "empty.sto"):
        empty = tmp_path / name
        empty.write_bytes(b"")
        for options in ([], ["--chain", "../A"], ["--chain", "1abc_A"]):
            result = run("convert", str(empty), "--out", str(out), *options)
            assert result.exit_code == 2, result.output


def test_structures_of_two_formats_are_warned_of_and_converted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mixed, mirror = tmp_path / "mixed", tmp_path / "mirror"
    mixed.mkdir()
    for name in ("1ay7", "4i6p"):
        (path,) = (MIRROR / "wwpdb").rglob(f"{name}.cif.gz")
        shutil.copy(path, mixed)
    gemmi.read_structure(str(mixed / "4i6p.cif.gz")).write_pdb(str(mixed / "mine.pdb"))
    chains = ("-o", str(tmp_path / "chains.tsv"), "--clusters", "none")
    assert run("chains", str(mixed), *chains).exit_code == 0
    assert "2 .cif.gz, 1 .pdb" in caplog.text
    caplog.clear()
    for expected in (0, 2):  # what a folder holds is not deleted
        result = run("convert", str(mixed), "--out", str(mirror))
        assert result.exit_code == expected, result.output
    assert len(list(mirror.iterdir())) == 3
    assert run("chains", str(mirror), *chains).exit_code == 0
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert "mine_A" in {row.chain_key for row in read_chains(tmp_path / "chains.tsv")}
    caplog.clear()
    bad = mirror / "2bad.cif.gz"
    bad.write_bytes(b"data_")
    assert run("chains", str(mirror), *chains).exit_code == 0
    assert caplog.messages[-1].endswith(
        f"{bad}: named .gz, but is not gzipped, it begins with "
        "b'data_': gzip it, or download it again."
    )
    result = run("convert", str(mirror), "--out", str(tmp_path / "again"))
    assert result.exit_code == 2, result.output
    assert "\n2bad.cif.gz: named .gz, but is not gzipped" in result.stderr
    assert result.stderr.endswith(f"error: {mirror}: 1 left out, listed above\n")
    assert len(list((tmp_path / "again").iterdir())) == 3


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.a3m", ">q\nMK\n"),
        ("x.a3m.gz", ""),
        ("pdb70_hits.hhr", "Query q\n"),
        ("chain_data_cache.json", '{"1abc_A": {"release_date": "2000-01-01"}}'),
        ("folder/x.a3m", ">q\nMK\n"),
        ("absent.index", None),
    ],
)
def test_what_convert_does_not_read(name: str, content: str | None, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if content is not None:
        path.write_text(content)
    source = path.parent if path.parent != tmp_path else path
    result = run("convert", str(source), "--out", str(tmp_path / "out"))
    assert result.exit_code == 2, result.output
    assert result.output.startswith(f"error: {source}")
    assert result.output.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_inspect_of_a_structure() -> None:
    (path,) = MIRROR.rglob("1lcd.cif.gz")
    result = run("inspect", str(path))
    assert result.exit_code == 0, result.output
    assert "1lcd_A" in result.output
    for name in ("absent.cif", "absent"):
        absent = run("inspect", str(path.with_name(name)))
        assert absent.exit_code == 2
        assert "no such shard folder" in absent.output


def test_inspect_of_an_alignment(tmp_path: Path) -> None:
    path = tmp_path / "own.a3m"
    path.write_text(">q\nMKVL\n>a\nM-VL\n>b\nM-VaL\n>c\nAKCL\n")
    result = run("inspect", str(path))
    assert result.exit_code == 0, result.output
    for fact in ("MKVL", "3 of 4", "2, 3, 3"):  # two rows are the same
        assert fact in result.output
    for content in ("", "MKVL\n", ">q\nMKVL\n>a\nMK\n"):
        path.write_text(content)
        assert run("inspect", str(path)).exit_code == 2


def test_a_dry_run_of_fetch_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    out = tmp_path / "raw"
    result = run("fetch", "-c", DEMO, "--out", str(out), "--dry-run")
    assert result.exit_code == 0, result.output
    assert "structures" in result.output
    assert not out.exists()
    nowhere = "data.mirrors.mmcif=[http://127.0.0.1:9]"
    assert run("fetch", "-c", DEMO, "-s", nowhere, "--out", str(out), "-n").exit_code == 2


def test_a_list_of_other_content_that_is_replaced_is_named_so(tmp_path: Path) -> None:
    out = tmp_path / "chains.tsv"
    command = ["chains", str(MIRROR / "wwpdb"), "--clusters", "none", "-o", str(out)]
    said = [run(*command, "--validation", number).output for number in ("1", "1", "2")]
    assert ["replaced" in text for text in said] == [False, False, True]
