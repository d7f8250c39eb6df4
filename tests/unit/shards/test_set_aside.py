"""Packing: a bad chain is set aside with a reason, and the rest goes on."""

from __future__ import annotations

import gzip
import hashlib

import gemmi
import pytest
from tests.unit.shards.conftest import Workplace, redate

from scalefold.errors import InputError
from scalefold.fetch.fetched import update_fetched
from scalefold.fetch.mirrors import FetchedFile
from scalefold.raw.mmcif import read_entry
from scalefold.raw.raw_folder import alignment_folder, mmcif_path
from scalefold.raw.rejected import read_rejected
from scalefold.shards.buckets import bucket_of
from scalefold.shards.reader import ShardReader
from scalefold.shards.verify import verify


def break_truncated(work):
    path = mmcif_path(work.raw, "1aki")
    path.write_bytes(path.read_bytes()[:5000])


def break_not_gzip(work):
    path = mmcif_path(work.raw, "1aki")
    path.write_bytes(gzip.decompress(path.read_bytes()))


def break_missing_file(work):
    mmcif_path(work.raw, "1aki").unlink()


def break_no_protein(work):
    path = mmcif_path(work.raw, "1aki")
    text = gzip.decompress(path.read_bytes()).decode().replace("peptide", "saccharide")
    path.write_bytes(gzip.compress(text.replace("PEPTIDE", "SACCHARIDE").encode()))


def break_coordinates(work):
    path = mmcif_path(work.raw, "1aki")
    block = gemmi.cif.read_string(gzip.decompress(path.read_bytes())).sole_block()
    for row in block.find("_atom_site.", ["Cartn_x", "Cartn_y", "Cartn_z"]):
        row[0] = row[1] = row[2] = "0.000"
    path.write_bytes(gzip.compress((block.as_string() + "#\n").encode()))


def break_width(work):
    path = alignment_folder(work.raw, "1aki_A") / "a3m/swissprot_hits.a3m"
    path.write_text(path.read_text() + ">extra\nAAAA\n")


def break_empty_alignment(work):
    (alignment_folder(work.raw, "1aki_A") / "a3m/swissprot_hits.a3m").write_text("")


def break_other_query(work):
    path = alignment_folder(work.raw, "1aki_A") / "a3m/swissprot_hits.a3m"
    sequence = read_entry(mmcif_path(work.raw, "1aki")).chain("1aki_A").sequence
    path.write_text(f">query\nW{sequence[1:]}\n")


def break_no_alignment(work):
    (alignment_folder(work.raw, "1aki_A") / "a3m/swissprot_hits.a3m").unlink()


def break_hits(work):
    (alignment_folder(work.raw, "1aki_A") / "hhr/pdb70_hits.hhr").write_text("nonsense\n")


@pytest.mark.parametrize(
    ("damage", "stage", "words"),
    [
        (break_truncated, "structure", "gzip stream is truncated"),
        (break_not_gzip, "structure", "named .gz, but is not gzipped"),
        (break_missing_file, "structure", "no such file"),
        (break_no_protein, "structure", "entry 1aki has no protein chain"),
        (break_coordinates, "structure", "chain 1aki_A has the Cα atoms of its 129 observed"),
        (break_width, "alignment", "row 2 (extra) has 4 aligned columns"),
        (break_empty_alignment, "alignment", "alignment is empty"),
        (break_other_query, "alignment", "the query differs from the chain's sequence in 1 of 129"),
        (break_no_alignment, "index", "no alignment: none of swissprot_hits"),
        (break_hits, "alignment", "has no 'Match_columns' line"),
    ],
)
def test_bad_chain_is_set_aside_and_the_rest_goes_on(work, damage, stage, words):
    work.list_chains(("1aki_A", "train", "l"), ("5pti_A", "train", "b"), ("2nwd_X", "train", "l"))
    for entry in ("1aki", "5pti", "2nwd"):
        work.structure(entry)
    for key in ("5pti_A", "2nwd_X"):
        work.alignment(key)
    sequence = read_entry(mmcif_path(work.raw, "1aki")).chain("1aki_A").sequence
    a3m = work.alignment("5pti_A", renamed="1aki_A")
    a3m.write_text(f">query\n{sequence}\n")
    (alignment_folder(work.raw, "1aki_A") / "hhr/pdb70_hits.hhr").unlink()

    damage(work)
    manifest = work.pack()
    rejected = read_rejected(work.out / "rejected.tsv")
    assert [(r.chain_key, r.stage) for r in rejected] == [("1aki_A", stage)]
    assert rejected[0].reason.startswith(words)
    assert (f"({work.raw}" in rejected[0].reason) == (stage != "index")
    assert manifest.counts["chains set aside"] == 1
    # The counts add up to the chains of the list.
    counts = manifest.counts
    kept = sum(counts[f"chains, {split}"] for split in ("train", "validation", "template"))
    as_templates = counts["chains set aside, kept as templates"]
    assert kept + counts["chains set aside"] - as_templates == 3
    says_so = rejected[0].reason.endswith("The structure stays as a template.")
    assert says_so == (as_templates == 1) == (stage != "structure")
    reader = ShardReader(work.out)
    assert reader.keys("train") == ["2nwd_X", "5pti_A"]
    assert reader.sample("2nwd_X").cluster_size == 1
    if stage == "structure":
        assert "1aki_A" not in reader
        assert manifest.counts["template hits, structure not packed"] > 0
    else:
        # Its structure is sound and can serve as a template.
        assert reader.keys("template") == ["1aki_A"]
        assert [hit.chain_key for hit, _ in reader.sample("2nwd_X").templates] == ["1aki_A"]
    assert verify(work.out) == []


def test_a_single_residue_with_coordinates_is_enough(work):
    """Nor do residues without Cα count: where there is none, nothing is known to be wrong."""
    for name, observed in (("one", {"1"}), ("none", set())):
        place = Workplace(work.folder / name)
        place.list_chains(("5pti_A", "train", "b"))
        path = place.structure("5pti")
        place.alignment("5pti_A")
        block = gemmi.cif.read_string(gzip.decompress(path.read_bytes())).sole_block()
        atoms = block.find("_atom_site.", ["label_atom_id", "label_seq_id"])
        for number in reversed(range(len(atoms))):
            atom, residue = atoms[number]
            if atom == "CA" and residue not in observed:
                atoms.remove_row(number)
        path.write_bytes(gzip.compress((block.as_string() + "#\n").encode()))
        assert place.pack().counts["chains set aside"] == 0


def test_chain_that_its_entry_lacks_is_set_aside(work):
    work.list_chains(("5pti_A", "train", "b"), ("5pti_Z", "train", "b"))
    work.structure("5pti")
    work.alignment("5pti_A")
    work.pack()
    (rejected,) = read_rejected(work.out / "rejected.tsv")
    assert rejected.chain_key == "5pti_Z"
    assert "it has 5pti_A" in rejected.reason


def test_reasons_of_fetch_are_added_to_those_of_missing_chains_only(work):
    work.list_chains(("5pti_A", "train", "b"), ("1aki_A", "train", "l"))
    work.structure("5pti")
    work.alignment("5pti_A")
    table = "chain_key\tstage\treason\n1aki_A\tfetch\tHTTP 404\n5pti_A\tfetch\tof long ago\n"
    (work.raw / "rejected-00001.tsv").write_text(table)
    work.pack()
    (rejected,) = read_rejected(work.out / "rejected.tsv")
    assert (rejected.chain_key, rejected.stage) == ("1aki_A", "structure")
    packing = "pack: no such file. Fetch it, or correct the path ("
    assert rejected.reason.startswith(f"fetch: HTTP 404. {packing}")


def record_fetch(table, *paths):
    """List files in a table of what fetch got, as they are now."""
    files = {}
    for path in paths:
        content = path.read_bytes()
        files[path] = FetchedFile(len(content), hashlib.sha256(content).hexdigest(), "mirror")
    update_fetched(table, files)


@pytest.mark.parametrize("kind", ["structures", "alignments", "template hits"])
def test_chain_whose_file_changed_since_it_was_fetched_is_set_aside(work, kind):
    """All files are sound to their readers: another structure, a row less, a space more."""
    work.list_chains(("2nwd_X", "train", "l"), ("5pti_A", "train", "b"))
    for key in ("2nwd_X", "5pti_A"):
        work.structure(key.partition("_")[0])
        work.alignment(key)
    folder = alignment_folder(work.raw, "2nwd_X")
    structure = mmcif_path(work.raw, "2nwd")
    alignment, hits = folder / "a3m/swissprot_hits.a3m", folder / "hhr/pdb70_hits.hhr"
    table = work.raw / "fetched.tsv"
    record_fetch(table, structure, alignment, hits)
    assert work.pack().counts["chains set aside"] == 0
    whole = {path: path.read_bytes() for path in (structure, alignment, hits)}
    changed = {"structures": structure, "alignments": alignment, "template hits": hits}[kind]
    if kind == "structures":
        redate(structure, "2007-01-01")
    elif kind == "alignments":
        alignment.write_bytes(whole[alignment].rpartition(b">")[0])
    else:
        hits.write_bytes(whole[hits] + b"\n")
    now = changed.read_bytes()
    manifest = work.pack()
    (rejected,) = read_rejected(work.out / "rejected.tsv")
    assert rejected.chain_key == "2nwd_X"
    before = f"{table.name} states {len(whole[changed])} bytes"
    assert rejected.reason.startswith(f"not what fetch got: {len(now)} bytes, sha256")
    assert f"({changed})" in rejected.reason
    assert before in rejected.reason
    command = "structures" if kind == "structures" else "alignments"
    assert "`scalefold fetch`" in rejected.reason
    assert f"-R fetch_{command}`" in rejected.reason
    assert manifest.counts["chains, train"] == 1
    assert verify(work.out) == []
    # A later fetch of its bucket got it so: the older table is out of date.
    tag = f"-{command}-{bucket_of('2nwd', 3):05d}"
    record_fetch(work.raw / f"fetched{tag}.tsv", changed)
    assert work.pack().counts["chains set aside"] == 0


@pytest.mark.parametrize("tag", ["", "-{kind}", "-{kind}-{bucket:05d}"])
@pytest.mark.parametrize("kind", ["structures", "alignments", "template hits"])
def test_file_that_fetch_had_got_and_is_gone_is_an_error(work, kind, tag):
    work.list_chains(("5pti_A", "train", "c"), ("2nwd_X", "train", "c"))
    for key in ("5pti_A", "2nwd_X"):
        work.structure(key.partition("_")[0])
        work.alignment(key)
    lost = {
        "structures": mmcif_path(work.raw, "5pti"),
        "alignments": alignment_folder(work.raw, "5pti_A") / "a3m/swissprot_hits.a3m",
        "template hits": alignment_folder(work.raw, "5pti_A") / "hhr/pdb70_hits.hhr",
    }[kind]
    kind = "structures" if kind == "structures" else "alignments"
    table = work.raw / f"fetched{tag.format(kind=kind, bucket=bucket_of('5pti', 3))}.tsv"
    record_fetch(table, lost)
    work.pack()  # all is there
    lost.unlink()
    with pytest.raises(InputError) as raised:
        work.pack()
    message = str(raised.value)
    assert message.startswith(f"{lost}: fetch had got it, as {table.name} says")
    assert "`scalefold fetch`" in message
    assert f"-R fetch_{kind}" in message
    # Once fetch was asked again and no mirror has it any more, the table does not list it.
    update_fetched(table, {})
    work.pack()
    assert "2nwd_X" in ShardReader(work.out).keys("train")
