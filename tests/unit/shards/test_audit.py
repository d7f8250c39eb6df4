from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from scalefold.raw.rejected import Rejected, read_rejected
from scalefold.shards.audit import audit_table, by_reason, chain_counts
from scalefold.shards.reader import ShardReader
from scalefold.shards.schema import REJECTED_FILE
from scalefold.split_table import SplitTable


def cells(table: Table) -> dict[str, tuple[str, ...]]:
    """First cell -> other cells."""
    columns = [list(column.cells) for column in table.columns]
    return {str(first): tuple(map(str, rest)) for first, *rest in zip(*columns, strict=True)}


def audited(folder: Path) -> dict[str, tuple[str, ...]]:
    return cells(audit_table(ShardReader(folder).index, read_rejected(folder / REJECTED_FILE)))


def test_every_section_counts_every_chain(demo):
    reader = ShardReader(demo.out)
    rows = cells(chain_counts(reader).table)
    splits = Counter(reader.index["split"].to_pylist())
    whole = tuple(splits[split] for split in ("train", "validation", "template"))
    assert rows["all"] == tuple(map(str, whole))
    for what in ("released", "residues", "resolution", "method", "training", "alignment rows",
                 "template hits", "% covered"):  # fmt: skip
        counts = [tuple(map(int, row)) for name, row in rows.items() if name.startswith(what)]
        assert tuple(map(sum, zip(*counts, strict=True))) == whole, what


def test_counts_are_those_of_the_rows(demo):
    reader = ShardReader(demo.out)
    rows = cells(chain_counts(reader).table)
    samples = [*reader.keys("train"), *reader.keys("validation")]
    deep = sum(100 <= reader.msa(key).msa.shape[0] < 1000 for key in samples)
    assert deep == sum(map(int, rows["alignment rows: 100 to 999"]))
    without = sum(not reader.templates(key) for key in samples)
    assert without == sum(map(int, rows["template hits kept: 0"]))
    assert without == sum(map(int, rows["% covered by the best template: 0"]))
    whole = sum(
        len(hits[0].q_idx) / len(reader.chain(key)) >= 0.95
        for key in samples
        if (hits := reader.templates(key))
    )
    assert whole == sum(map(int, rows.get("% covered by the best template: 95 or more", ["0"])))


def test_a_sound_data_set_has_no_leaks(demo):
    rows = audited(demo.out)
    assert rows["training chains in a validation chain's cluster"] == ("0", "")
    assert rows["listed, but without alignment"] == ("0", "")


def test_leaks_halves_and_sharing_are_found(demo_copy):
    """A validation chain gets a training chain's cluster, another its sequence, by other names."""
    lines = demo_copy.table.read_text().splitlines()
    rows = [tuple(line.split("\t")) for line in lines[1:]]
    rows = [(k, s, "5pti_A" if k == "3u8v_A" else c) for k, s, c in rows]
    demo_copy.structure("1a8o", renamed="9xyz")
    demo_copy.alignment("1a8o_A", renamed="9xyz_A")
    rows += [("9xyz_A", "validation", ""), ("7non_A", "train", "x"), ("1k6p_B", "validation", "y")]
    demo_copy.list_chains(*rows)
    (demo_copy.raw / "alignments/1mol_A/a3m/swissprot_hits.a3m").unlink()
    demo_copy.pack()
    found = audited(demo_copy.out)
    assert found["training chains in a validation chain's cluster"] == ("1", "5pti_A")
    assert found["training chains with a validation chain's sequence"] == ("1", "1a8o_A")
    assert found["samples without a cluster"] == ("1", "9xyz_A")
    assert found["samples that share an alignment"] == ("2", "1k6p_A")
    assert found["listed, but without structure"] == ("1", "7non_A")
    assert found["listed, but without alignment"] == ("1", "1mol_A")
    assert sum(name.startswith("set aside") for name in found) == 2


def test_reasons_differ_by_more_than_names_and_numbers():
    wide = [
        Rejected(f"{n}abc_A", "pack", f"{n}abc_A: {n} columns, expected {n + 1}") for n in (3, 8)
    ]
    rejected = [Rejected("1abc_A", "fetch", "no mirror has 1abc.cif.gz"), *wide]
    most, other = by_reason(rejected)
    assert (most.stage, most.chains, most.first) == ("pack", 2, wide[0])
    assert (other.stage, other.chains, other.first) == ("fetch", 1, rejected[0])
    assert by_reason(reversed(wide))[0].reason == most.reason


def test_a_table_of_splits():
    table = SplitTable("numbers", ["train", "train", "validation"])
    table.add_numbers("x", (1.5, 2.0), [1.5, None, 7.0])
    table.add_counts("n", (0, 1, 2, 5), [0, 4, 5])
    table.add_names("name", ["a", None, *[None]])
    assert cells(table.table) == {
        "all": ("2", "1", "0"),
        "x: 1.5 to < 2.0": ("1", "0", "0"),
        "x: >= 2.0": ("0", "1", "0"),
        "x: unknown": ("1", "0", "0"),
        "n: 0": ("1", "0", "0"),
        "n: 2 to 4": ("1", "0", "0"),
        "n: 5 or more": ("0", "1", "0"),
        "name: unknown": ("1", "1", "0"),
        "name: a": ("1", "0", "0"),
    }
    Console(quiet=True).print(table.table)
