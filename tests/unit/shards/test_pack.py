"""Packing: what the shards hold, and what it refuses."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import json
import os
import re
import shutil

import gemmi
import numpy as np
import pytest
from rich.console import Console
from tests.unit.shards.conftest import redate

from scalefold.config import make_config
from scalefold.errors import InputError
from scalefold.io.atomic import HashingFile
from scalefold.raw.a3m import read_folder
from scalefold.raw.alignment import ROW_SOURCES, profile
from scalefold.raw.chains import read_chains
from scalefold.raw.hhr import read_hhr
from scalefold.raw.mmcif import read_entry
from scalefold.raw.raw_folder import alignment_folder, mmcif_path
from scalefold.raw.rejected import read_rejected
from scalefold.shards.buckets import bucket_of
from scalefold.shards.inspect import describe_chain
from scalefold.shards.manifest import QUERY_ALONE
from scalefold.shards.pack import pack, pack_alignments, pack_index, pack_structures
from scalefold.shards.reader import ShardReader
from scalefold.shards.summary import read_msa_summary
from scalefold.shards.verify import verify

QUIET = Console(quiet=True)


def test_bundled_chains_are_packed_as_they_were_read(demo):
    reader = ShardReader(demo.out)
    rows = read_chains(demo.table)
    assert reader.keys() == sorted(row.chain_key for row in rows)
    for row in rows:
        chain = read_entry(mmcif_path(demo.raw, row.entry_id)).chain(row.chain_key)
        record = reader.chain(row.chain_key)
        np.testing.assert_array_equal(record.aatype, chain.aatype)
        np.testing.assert_array_equal(record.positions, chain.positions)
        np.testing.assert_array_equal(record.atom_mask, chain.atom_mask)
        assert (record.resolution, record.release_date) == (chain.resolution, chain.release_date)
        assert (record.method, record.cluster_id) == (chain.method, row.cluster_id)
        assert record.seq_id == hashlib.sha256(record.sequence.encode()).digest()
        if row.split == "template":
            continue
        folder = alignment_folder(demo.raw, row.chain_key)
        full = read_folder(folder, chain.sequence, ["swissprot_hits"])
        msa = reader.msa(row.chain_key)
        np.testing.assert_array_equal(msa.msa, full.msa)
        np.testing.assert_array_equal(msa.del_ptr, full.del_ptr)
        np.testing.assert_array_equal(msa.del_col, full.del_col)
        np.testing.assert_array_equal(msa.del_val, full.del_val)
        np.testing.assert_array_equal(msa.profile, profile(full.msa))
        np.testing.assert_array_equal(msa.msa[0], chain.aatype)
        assert msa.num_seq_full == len(full)
    assert read_rejected(demo.out / "rejected.tsv") == []


def test_index_states_clusters_and_composition(demo):
    reader = ShardReader(demo.out)
    rows = {row.chain_key: row for row in read_chains(demo.table)}
    training = [row.cluster_id for row in rows.values() if row.split == "train"]
    for facts in reader.index.to_pylist():
        row = rows[facts["chain_key"]]
        sequence = reader.chain(row.chain_key).sequence
        assert facts["split"] == row.split
        assert facts["length"] == len(sequence)
        assert facts["cluster_size"] == training.count(row.cluster_id)
        assert facts["max_single_residue_fraction"] == max(
            sequence.count(letter) / len(sequence) for letter in set(sequence)
        )
    # Only training chains count: 2crb_A is a template in the cluster of 4zey_A.
    sizes = dict(
        zip(reader.index["chain_key"].to_pylist(), reader.index["cluster_size"].to_pylist())
    )
    assert (sizes["4zey_A"], sizes["2crb_A"], sizes["1mol_A"]) == (1, 1, 0)


def test_template_hits_meet_their_structures(demo):
    """Aligned residues are those of the hhr file, so identities are the file's."""
    reader = ShardReader(demo.out)
    sample = reader.sample("2nwd_X")
    assert [hit.chain_key for hit, _ in sample.templates] == ["1aki_A", "1hml_A"]
    path = alignment_folder(demo.raw, "2nwd_X") / "hhr/pdb70_hits.hhr"
    raw = {hit.chain_key: hit for hit in read_hhr(path, sample.chain.sequence)}
    for hit, chain in sample.templates:
        assert chain.chain_key == hit.chain_key
        assert hit.sum_probs == np.float32(raw[hit.chain_key].sum_probs)
        same = sample.chain.aatype[hit.q_idx] == chain.aatype[hit.t_idx]
        assert same.mean() == pytest.approx(raw[hit.chain_key].identities, abs=0.006)


def test_same_input_gives_the_same_bytes(demo, demo_copy):
    def hashes(work):
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in work.out.iterdir()}

    # In place over itself, two processes; the table's path is part of the configuration.
    before = hashes(demo_copy)
    for path in demo_copy.out.iterdir():
        path.unlink()
    demo_copy.pack(jobs=2)
    after = hashes(demo_copy)
    assert before.keys() == after.keys()
    shards = [name for name in before if name.endswith((".arrow", ".tsv"))]
    assert {name: after[name] for name in shards} == {name: before[name] for name in shards}
    demo_copy.pack()
    assert hashes(demo_copy) == after
    assert not [p for p in demo_copy.out.iterdir() if ".tmp." in p.name]


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_is_a_bar_a_stage_over_all_buckets(demo_copy, jobs):
    screen = io.StringIO()
    pack(demo_copy.config, demo_copy.raw, demo_copy.out, jobs, Console(file=screen, width=100))
    lines = screen.getvalue().splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["structures,", "buckets"],
        ["alignments,", "buckets"],
        ["templates,", "buckets"],
    ]
    assert all("100%" in line for line in lines)


def test_a_bucket_without_alignments_shows_no_bar(work):
    work.list_chains(("5pti_A", "template", ""))
    work.structure("5pti")
    work.buckets = 1
    screen = io.StringIO()
    for stage in (pack_structures, pack_alignments):
        stage(work.config, work.raw, work.out, 0, Console(file=screen, width=100))
    (line,) = screen.getvalue().splitlines()
    assert line.startswith("structures, bucket 0 ")


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compression_changes_the_files_but_not_the_data(demo, demo_copy, compression):
    demo_copy.settings["compression"] = compression
    manifest = demo_copy.pack()
    plain = ShardReader(demo.out)
    assert manifest.facts("msa-00000.arrow") != plain.manifest.facts("msa-00000.arrow")
    packed = ShardReader(demo_copy.out)
    for key in plain.keys("train"):
        np.testing.assert_array_equal(packed.msa(key).msa, plain.msa(key).msa)
        np.testing.assert_array_equal(packed.chain(key).positions, plain.chain(key).positions)
    assert verify(demo_copy.out) == []


def test_row_cap_keeps_the_first_rows_and_the_full_profile(work):
    work.list_chains(("5pti_A", "train", "c"))
    work.structure("5pti")
    work.alignment("5pti_A")
    work.settings["max_msa_rows"] = 10
    work.pack()
    msa = ShardReader(work.out).msa("5pti_A")
    sequence = ShardReader(work.out).chain("5pti_A").sequence
    full = read_folder(alignment_folder(work.raw, "5pti_A"), sequence, ["swissprot_hits"])
    np.testing.assert_array_equal(msa.msa, full.msa[:10])
    assert len(msa.del_ptr) == 11
    assert msa.del_ptr[-1] == len(msa.del_col) == full.del_ptr[10]
    assert msa.num_seq_full == len(full) > 10
    np.testing.assert_array_equal(msa.profile, profile(full.msa))


def test_alignments_are_merged_in_the_order_of_the_configuration(work):
    work.list_chains(("5pti_A", "train", "c"))
    work.structure("5pti")
    first = work.alignment("5pti_A")
    query, other = first.read_text().split(">")[1:3]
    first.with_name("mgnify_hits.a3m").write_text(f">{query}>{other}")
    first.with_name("uniref90_hits.a3m").write_text(f">{query}>last\n{'-' * 57}A\n>{other}")
    config = work.config.model_dump(mode="json")
    config["data"]["alignments"] = ["mgnify_hits", "uniref90_hits", "bfd_uniclust_hits"]
    config = make_config(config)
    bucket = bucket_of("5pti", 3)
    for stage in (pack_structures, pack_alignments):
        stage(config, work.raw, work.out, bucket, QUIET)
    pack_index(config, work.raw, work.out)
    msa = ShardReader(work.out).msa("5pti_A")
    # Query, the row of both files (once), the row of the second file only.
    assert msa.msa.shape == (3, 58)
    assert msa.row_source.tolist() == [3, 3, 1]
    assert (msa.msa[2, :-1] == 21).all()


def test_nothing_left_is_an_error(work):
    work.list_chains(("5pti_A", "train", "b"), ("1aki_A", "template", "l"))
    work.structure("1aki")
    work.raw.mkdir(exist_ok=True)
    with pytest.raises(InputError, match="no chain"):
        work.pack()
    assert not (work.out / "manifest.json").exists()


def test_chain_listed_twice_is_refused(work):
    work.list_chains(("5pti_A", "train", "b"), ("5pti_A", "validation", "b"))
    work.structure("5pti")
    with pytest.raises(InputError, match=r"5pti_A .*2 and 3"):
        work.pack()


def test_missing_paths_are_refused(work):
    with pytest.raises(InputError, match=r"chains\.tsv"):
        work.pack()
    work.list_chains(("5pti_A", "train", "b"))
    with pytest.raises(InputError, match=f"{work.raw}"):
        work.pack()
    work.raw.mkdir()
    with pytest.raises(InputError, match=r"raw: .*scalefold fetch"):
        work.pack()
    with pytest.raises(InputError, match="raw: "):
        pack_index(work.config, work.raw, work.out)


def test_a_stage_before_its_turn_names_the_file_and_the_command(work):
    work.list_chains(("5pti_A", "train", "b"))
    work.structure("5pti")
    bucket = bucket_of("5pti", 3)
    command = f"--stage {{}} --bucket {bucket}"
    file = f"{{}}-{bucket:05d}.json"
    with pytest.raises(InputError, match=f"{file.format('chain')}.*{command.format('structures')}"):
        pack_alignments(work.config, work.raw, work.out, bucket, QUIET)
    pack_structures(work.config, work.raw, work.out, bucket, QUIET)
    with pytest.raises(InputError, match=f"{file.format('msa')}.*{command.format('alignments')}"):
        pack_index(work.config, work.raw, work.out)
    pack_alignments(work.config, work.raw, work.out, bucket, QUIET)
    with pytest.raises(InputError, match=r"manifest\.json"):
        ShardReader(work.out)


def test_output_folder_that_cannot_be_made_is_refused(work):
    work.list_chains(("5pti_A", "train", "b"))
    work.structure("5pti")
    work.out.write_text("a file")
    with pytest.raises(InputError, match="shards"):
        work.pack()


def test_full_disk_spares_what_is_there(demo_copy, monkeypatch):
    """An alignment shard finds no room: the shards are as they were, and sound."""
    demo_copy.pack()
    before = {path: path.read_bytes() for path in demo_copy.out.iterdir()}
    real = HashingFile.write

    def write(self: HashingFile, content: bytes) -> int:
        if "msa-00001" in str(self._file.name) and self.num_bytes > 20_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, content)

    monkeypatch.setattr(HashingFile, "write", write)
    with pytest.raises(InputError, match=r"msa-00001\.arrow: .*No space left"):
        demo_copy.pack()
    assert {path: path.read_bytes() for path in demo_copy.out.iterdir()} == before
    assert verify(demo_copy.out) == []


def test_parts_of_different_runs_are_not_mixed(work):
    work.list_chains(("5pti_A", "train", "b"))
    work.structure("5pti")
    work.alignment("5pti_A")
    work.pack()
    work.settings["max_msa_rows"] = 5
    with pytest.raises(InputError, match=r"max_msa_rows: 10000 .*5"):
        pack_index(work.config, work.raw, work.out)
    work.settings.clear()
    work.list_chains(("5pti_A", "train", "other"))
    with pytest.raises(InputError, match=r"5pti_A .*'other'.*'b'"):
        pack_index(work.config, work.raw, work.out)
    work.list_chains(("5pti_A", "train", "b"), ("5pti_B", "train", "b"))
    with pytest.raises(InputError, match="5pti_B"):
        pack_index(work.config, work.raw, work.out)
    work.list_chains(("5pti_A", "train", "b"), ("1aki_A", "template", "l"))
    work.structure("1aki")
    work.buckets = 1
    work.pack()
    work.list_chains(("5pti_A", "train", "b"))
    with pytest.raises(InputError, match=r"1aki_A .*bucket 0"):
        pack_index(work.config, work.raw, work.out)
    work.buckets = 3
    work.pack()
    index = (work.out / "index.arrow").read_bytes()
    shard = work.out / f"msa-{bucket_of('5pti', 3):05d}.arrow"
    shard.write_bytes(shard.read_bytes()[:-1])
    work.list_chains(("5pti_A", "validation", "b"))  # another index
    with pytest.raises(InputError, match=r"msa-0000\d\.arrow: \d+ bytes"):
        pack_index(work.config, work.raw, work.out)
    assert (work.out / "index.arrow").read_bytes() == index


def test_a_template_that_becomes_a_sample_is_packed_again_first(work):
    work.list_chains(("5pti_A", "train", "b"), ("1aki_A", "template", "l"))
    for entry in ("5pti", "1aki"):
        work.structure(entry)
    work.alignment("5pti_A")
    work.pack()
    work.list_chains(("5pti_A", "train", "b"), ("1aki_A", "validation", "l"))
    with pytest.raises(InputError, match=r"1aki_A .*--forcerun"):
        pack_index(work.config, work.raw, work.out)


def test_shards_of_other_settings_are_refused_with_what_differs(demo_copy):
    demo_copy.buckets = 2
    message = r"chain-00000\.json: .*data\.buckets: 3 .*2"
    for stage in (pack_alignments, lambda *place: pack_index(*place[:3])):
        with pytest.raises(InputError, match=message):
            stage(demo_copy.config, demo_copy.raw, demo_copy.out, 0, QUIET)
    demo_copy.settings["compression"] = "zstd"
    with pytest.raises(InputError, match=r"3 .*2 .*shards\.compression: none .*zstd"):
        pack_index(demo_copy.config, demo_copy.raw, demo_copy.out)


def test_shards_of_an_earlier_version_which_stated_a_hash_alone(demo_copy):
    for path in demo_copy.out.glob("*-*.json"):
        tree = json.loads(path.read_text())
        del tree["head"]["settings"], tree["sha256"]
        path.write_text(json.dumps(tree))
    manifest = (demo_copy.out / "manifest.json").read_bytes()
    pack_index(demo_copy.config, demo_copy.raw, demo_copy.out)
    assert (demo_copy.out / "manifest.json").read_bytes() == manifest
    demo_copy.buckets = 2
    with pytest.raises(InputError, match=r"data\.buckets: .*2"):
        pack_index(demo_copy.config, demo_copy.raw, demo_copy.out)


def test_alignments_of_other_sequences_than_are_packed_now_are_refused(work):
    work.list_chains(("5pti_A", "train", "b"))
    path = work.structure("5pti")
    work.alignment("5pti_A")
    work.pack()
    text = gzip.decompress(path.read_bytes()).decode()
    bucket = bucket_of("5pti", 3)
    path.write_bytes(gzip.compress(text.replace("X-RAY DIFFRACTION", "SOLUTION NMR").encode()))
    pack_structures(work.config, work.raw, work.out, bucket, QUIET)
    pack_index(work.config, work.raw, work.out, QUIET)  # the sequence is as it was
    block = gemmi.cif.read_string(text).sole_block()
    for category, item in (("_entity_poly_seq", "mon_id"), ("_atom_site", "label_comp_id")):
        number = "num" if category == "_entity_poly_seq" else "label_seq_id"
        for row in block.find(f"{category}.", [number, item]):
            if row[0] == "1":
                row[1] = "GLY"
    path.write_bytes(gzip.compress((block.as_string() + "#\n").encode()))
    pack_structures(work.config, work.raw, work.out, bucket, QUIET)
    with pytest.raises(InputError, match=rf"msa-{bucket:05d}\.arrow: .*--bucket {bucket}`"):
        pack_index(work.config, work.raw, work.out, QUIET)


def test_damaged_summary_is_named(demo_copy):
    for family, stage in (("msa", "alignments"), ("chain", "structures")):
        path = demo_copy.out / f"{family}-00001.json"
        whole = path.read_bytes()
        for damaged in (whole[:-20], whole.replace(b'"row"', b'"rwo"', 1)):
            path.write_bytes(damaged)
            command = f"--stage {stage} --bucket 1"
            with pytest.raises(InputError, match=f"{path.name}: .*{command}"):
                pack_index(demo_copy.config, demo_copy.raw, demo_copy.out)
        path.write_bytes(whole)
    pack_index(demo_copy.config, demo_copy.raw, demo_copy.out)


# --- one alignment for many chains ---------------------------------------------------------------


@pytest.mark.parametrize("buckets", [1, 7])
def test_chains_of_one_sequence_share_an_alignment(work, buckets):
    """Within a bucket, and across: 9xyz has no alignment files of its own."""
    work.buckets = buckets
    work.list_chains(("5pti_A", "train", "b"), ("9xyz_A", "train", "b"))
    work.structure("5pti")
    work.structure("5pti", renamed="9xyz")
    work.alignment("5pti_A")
    assert buckets == 1 or bucket_of("5pti", buckets) != bucket_of("9xyz", buckets)
    manifest = work.pack()
    assert (manifest.counts["alignments"], manifest.num_sharing) == (1, 1)
    reader = ShardReader(work.out)
    assert reader.keys("train") == ["5pti_A", "9xyz_A"]
    first, second = reader.sample("5pti_A"), reader.sample("9xyz_A")
    np.testing.assert_array_equal(first.msa.msa, second.msa.msa)
    assert first.cluster_size == second.cluster_size == 2
    assert verify(work.out) == []


def test_chains_with_their_query_alone_are_counted(work):
    work.list_chains(*((key, "train", "") for key in ("5pti_A", "1mol_A", "1mol_B")))
    for entry in ("5pti", "1mol"):
        work.structure(entry)
    work.alignment("5pti_A")
    path = work.alignment("1mol_A")  # serves both chains of 1mol, and has no other row
    assert work.pack().counts[QUERY_ALONE] == 2
    _, sequence = path.read_text().split("\n", 1)
    path.write_text(f">query\n{sequence}>hit\nA{sequence[1:]}")
    assert QUERY_ALONE not in work.pack().counts


def test_alignments_of_later_chains_of_the_sequence_are_not_read(work):
    """The first by key gives the alignment of the bucket; a damaged one behind it is no fault."""
    work.buckets = 1
    work.list_chains(("5pti_A", "train", "b"), ("9xyz_A", "train", "b"))
    work.structure("5pti")
    work.structure("5pti", renamed="9xyz")
    work.alignment("5pti_A")
    work.alignment("5pti_A", renamed="9xyz_A").write_text("nonsense")
    manifest = work.pack()
    assert (manifest.num_sharing, manifest.counts["chains set aside"]) == (1, 0)
    summary = read_msa_summary(work.out, 0, work.config)
    assert [facts.chain_key for facts in summary.rows] == ["5pti_A"]
    assert not any("9xyz_A" in source.path for source in summary.head.sources)


def test_bad_alignment_gives_way_to_that_of_the_next_chain(work):
    work.buckets = 1
    work.list_chains(("5pti_A", "train", ""), ("9xyz_A", "train", ""), ("9zzz_A", "train", ""))
    work.structure("5pti")
    work.structure("5pti", renamed="9xyz")
    work.structure("5pti", renamed="9zzz")
    work.alignment("5pti_A").write_text("")
    work.alignment("5pti_A", renamed="9xyz_A")
    work.pack()
    (rejected,) = read_rejected(work.out / "rejected.tsv")
    assert (rejected.chain_key, rejected.stage) == ("5pti_A", "alignment")
    reader = ShardReader(work.out)
    assert reader.keys("train") == ["9xyz_A", "9zzz_A"]
    # Without a cluster each is one of its own.
    assert {
        facts["cluster_size"] for facts in reader.index.to_pylist() if facts["msa_shard"] == 0
    } == {1}


@pytest.mark.parametrize("buckets", [1, 7])
def test_a_chain_never_gets_a_template_of_its_own_entry(work, buckets):
    """9xyz is 2nwd under another name; the search finds the first 100 residues of both.

    The shared row keeps both hits, whether the chains are in one bucket or not.
    """
    work.buckets = buckets
    work.list_chains(("2nwd_X", "train", "l"), ("9xyz_X", "train", "l"))
    work.structure("2nwd")
    work.structure("2nwd", renamed="9xyz")
    sequence = read_entry(mmcif_path(work.raw, "2nwd")).chain("2nwd_X").sequence
    hit = (
        "\nNo {number}\n>{name}\nProbab=90.00  E-value=1e-9  Score=100  Aligned_cols=100  "
        "Identities=100%  Similarity=1.0  Sum_probs={sum_probs}\n\n"
        f"Q query  1 {sequence[:100]}  100 (130)\nT {{name}}  1 {sequence[:100]}  100 (130)\n"
    )
    hhr = work.alignment("2nwd_X").parents[1] / "hhr/pdb70_hits.hhr"
    first = hit.format(number=1, name="2NWD_X", sum_probs=99.0)
    second = hit.format(number=2, name="9XYZ_X", sum_probs=98.0)
    listed = " No Hit\n  1 2NWD_X\n  2 9XYZ_X\n"
    hhr.write_text(f"Query query\nMatch_columns 130\n\n{listed}{first}{second}")
    work.pack()
    reader = ShardReader(work.out)
    stored = [hit.chain_key for hit in reader.templates("9xyz_X")]
    assert stored == ["2nwd_X", "9xyz_X"]
    templates = {
        key: [chain.chain_key for _, chain in reader.sample(key).templates]
        for key in reader.keys("train")
    }
    assert templates == {"2nwd_X": ["9xyz_X"], "9xyz_X": ["2nwd_X"]}
    assert verify(work.out) == []


@pytest.mark.parametrize("cap", [0, 1, 2])
def test_template_cap_keeps_the_best(work, cap):
    work.list_chains(
        ("2nwd_X", "train", "l"), ("1aki_A", "template", ""), ("1hml_A", "template", "")
    )
    for entry in ("2nwd", "1aki", "1hml"):
        work.structure(entry)
    work.alignment("2nwd_X")
    work.settings["max_template_hits"] = cap
    manifest = work.pack()
    hits = ShardReader(work.out).templates("2nwd_X")
    assert [hit.chain_key for hit in hits] == ["1aki_A", "1hml_A"][:cap]
    assert manifest.counts["template hits, kept"] == cap
    outcomes = {k: n for k, n in manifest.counts.items() if k.startswith("template hits")}
    path = alignment_folder(work.raw, "2nwd_X") / "hhr/pdb70_hits.hhr"
    sequence = ShardReader(work.out).chain("2nwd_X").sequence
    assert sum(outcomes.values()) == len(read_hhr(path, sequence))


def test_hits_of_other_databases_are_no_templates_and_harm_nothing(work):
    """Named as in Pfam or SCOP. A file with no hit of the PDB is of a wrong search."""
    work.list_chains(("2nwd_X", "train", "l"), ("1aki_A", "template", ""))
    for entry in ("2nwd", "1aki"):
        work.structure(entry)
    work.alignment("2nwd_X")
    path = alignment_folder(work.raw, "2nwd_X") / "hhr/pdb70_hits.hhr"
    text = re.sub(r"^>1HML_A", ">PF00062.24", path.read_text(), flags=re.MULTILINE | re.IGNORECASE)
    assert ">PF00062.24" in text
    path.write_text(text)
    work.pack()
    assert [hit.chain_key for hit in ShardReader(work.out).templates("2nwd_X")] == ["1aki_A"]
    path.write_text(re.sub(r"^>\S+", ">d1abca", text, flags=re.MULTILINE))
    with pytest.raises(InputError, match=r"d1abca|no chain"):
        work.pack()


@pytest.mark.parametrize("shared", [False, True])
def test_hits_newer_than_the_query_do_not_count_for_the_cap(work, shared):
    """2nwd is of 2006; its best hit becomes one of 2007, and so does another chain like it."""
    rows = [("2nwd_X", "train", "l"), ("1aki_A", "template", ""), ("1hml_A", "template", "")]
    for entry in ("2nwd", "1aki", "1hml"):
        work.structure(entry)
    redate(mmcif_path(work.raw, "1aki"), "2007-01-01")
    if shared:
        rows.append(("9xyz_X", "train", "l"))
        redate(work.structure("2nwd", renamed="9xyz"), "2007-01-01")
    work.list_chains(*rows)
    work.alignment("2nwd_X")
    work.settings["max_template_hits"] = 1
    manifest = work.pack()
    (hit,) = ShardReader(work.out).templates("2nwd_X")
    assert hit.chain_key == ("1aki_A" if shared else "1hml_A")
    assert manifest.counts["template hits, too new, or of unknown date"] == (0 if shared else 1)


def test_manifest_states_the_raw_files(demo):
    manifest = json.loads((demo.out / "manifest.json").read_text())
    files = [p for p in demo.raw.rglob("*") if p.is_file()]
    lines = [
        f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(demo.raw).as_posix()}\n"
        for p in sorted(files, key=lambda p: p.relative_to(demo.raw).as_posix())
    ]
    assert manifest["source"] == {
        "files": len(files),
        "bytes": sum(p.stat().st_size for p in files),
        "sha256": hashlib.sha256("".join(lines).encode()).hexdigest(),
    }


def test_alignments_with_the_earlier_letter_of_a_modified_residue_are_taken(work):
    """The first residue of 5pti is Arg; pyroglutamate was E where alignments are old, and is Q."""
    work.list_chains(("5pti_A", "train", "b"))
    path = work.structure("5pti")
    block = gemmi.cif.read_string(gzip.decompress(path.read_bytes())).sole_block()
    for category, item in (("_entity_poly_seq", "mon_id"), ("_atom_site", "label_comp_id")):
        number = "num" if category == "_entity_poly_seq" else "label_seq_id"
        for row in block.find(f"{category}.", [number, item]):
            if row[0] == "1":
                row[1] = "PCA"
    path.write_bytes(gzip.compress((block.as_string() + "#\n").encode()))
    a3m = work.alignment("5pti_A")
    shutil.rmtree(a3m.parents[1] / "hhr")
    name, query, *rest = a3m.read_text().split("\n")
    a3m.write_text("\n".join([name, "E" + query[1:], *rest]))
    manifest = work.pack()
    assert ShardReader(work.out).sample("5pti_A").chain.sequence.startswith("QPDFC")
    assert manifest.counts["chains set aside"] == 0
    assert manifest.counts["alignments with an earlier letter of a modified residue"] == 1
    summary = next(path for path in work.out.glob("chain-*.json") if "5pti_A" in path.read_text())
    before = json.loads(summary.read_text())
    del before["rows"][0]["other_parents"], before["sha256"]
    summary.write_text(json.dumps(before))  # as earlier versions wrote it
    pack_alignments(work.config, work.raw, work.out, bucket_of("5pti", 3), Console(quiet=True))
    with pytest.raises(InputError, match="no chain"):
        pack_index(work.config, work.raw, work.out)


@pytest.mark.parametrize("suffix", [".pdb", ".pdb.gz", ".cif"])
def test_own_structures_are_packed_in_the_format_of_their_path(work, suffix):
    """The same chain as of the archive's file, but for what a format does not state."""
    source = work.structure("5pti")
    structure = gemmi.read_structure(str(source))
    structure.setup_entities()
    own = mmcif_path(work.raw, "mine", suffix)
    own.parent.mkdir(parents=True)
    text = structure.make_mmcif_document().as_string() + "#\n"
    content = (text if suffix == ".cif" else structure.make_pdb_string()).encode()
    own.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    work.list_chains(("mine_A", "train", ""))
    work.alignment("5pti_A", renamed="mine_A")
    work.mirrors = {"mmcif_path": f"{{entry}}{suffix}"}
    assert work.pack().counts["chains set aside"] == 0
    chain, expected = ShardReader(work.out).chain("mine_A"), read_entry(source).chain("5pti_A")
    assert chain.sequence == expected.sequence
    np.testing.assert_array_equal(chain.atom_mask, expected.atom_mask)
    np.testing.assert_allclose(chain.positions, expected.positions, atol=1e-3)


def test_limits_by_source_are_counted_and_shown(work):
    work.list_chains(("5pti_A", "train", "b"))
    work.structure("5pti")
    a3m = work.alignment("5pti_A")
    sequence = read_entry(mmcif_path(work.raw, "5pti")).chain("5pti_A").sequence
    number = len(read_folder(a3m.parents[1], sequence, ["swissprot_hits"]))
    rows = "".join(f">{i}\n{'A' * i}{sequence[i:]}\n" for i in range(2, 9))
    (a3m.parent / "mgnify_hits.a3m").write_text(f">q\n{sequence}\n{rows}")
    work.alignments = ["swissprot_hits", "mgnify_hits"]
    work.settings = {"max_rows": {"mgnify_hits": 5}}
    manifest = work.pack()
    msa = ShardReader(work.out).msa("5pti_A")
    assert len(msa.msa) == msa.num_seq_full == number + 4
    assert (msa.row_source == ROW_SOURCES.index("mgnify_hits")).sum() == 4
    np.testing.assert_array_equal(msa.profile, profile(msa.msa))
    assert manifest.counts["alignment rows left out, mgnify_hits"] == 3
    work.settings["max_rows"]["together"] = 11
    manifest = work.pack()
    msa = ShardReader(work.out).msa("5pti_A")
    assert (len(msa.msa), msa.num_seq_full) == (11, number + 4)
    kept = round(10 * 4 / (number + 3))
    assert manifest.counts["alignment rows left out, mgnify_hits"] == 3 + 4 - kept
    assert manifest.counts["alignment rows left out, swissprot_hits"] == number - 1 - (10 - kept)
    shown = Console(file=io.StringIO(), record=True, width=200)
    describe_chain(work.out, "5pti_A", shown)
    assert f"mgnify_hits {7 - kept}" in shown.export_text()
