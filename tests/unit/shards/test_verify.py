from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from scalefold.errors import ChecksumError, InputError
from scalefold.raw.aligned_hit import AlignedHit
from scalefold.raw.templates import Located
from scalefold.shards.codec import decode_msa
from scalefold.shards.hit_codec import encode_hits, encode_located
from scalefold.shards.manifest import Manifest
from scalefold.shards.pack_index import pack_index
from scalefold.shards.reader import ShardReader
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.summary import check_summary
from scalefold.shards.verify import leftovers, stale, verify
from scalefold.shards.writer import write_shard

AT_0, AT_999 = np.array([0], np.int32), np.array([999], np.int32)


def test_sound_folder_has_no_problems(demo):
    assert verify(demo.out) == []


def test_flipped_bit_is_found_twice_and_the_rest_is_checked(demo_copy):
    """By the file's hash and by the row's; the chain that needs the row is named too."""
    path = demo_copy.out / "msa-00000.arrow"
    payload = decode_msa(ShardFile(path, "msa").row(1)).msa.tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(payload) + 5] ^= 0x10
    path.write_bytes(content)
    users = [
        facts["chain_key"]
        for facts in ShardReader(demo_copy.out).index.to_pylist()
        if (facts["msa_shard"], facts["msa_row"]) == (0, 1)
    ]
    problems = verify(demo_copy.out)
    assert [problem.file for problem in problems] == [path.name, path.name, "index.arrow"]
    assert "sha256" in problems[0].message
    assert "row 1: damaged, xxh3" in problems[1].message
    assert problems[2].message == f"{users[0]}: no sound row 1 in msa-00000.arrow."


@pytest.mark.parametrize(
    "name", ["chain-00001.arrow", "msa-00002.arrow", "index.arrow", "rejected.tsv"]
)
def test_missing_file_is_found(demo_copy, name):
    (demo_copy.out / name).unlink()
    problems = verify(demo_copy.out)
    assert problems[0].file == name
    assert "not there" in problems[0].message


@pytest.mark.parametrize(
    ("code", "message"),
    [(errno.EACCES, "may not be read: you have no permission"), (errno.EIO, "cannot be read (")],
    ids=["no permission", "broken disk"],
)
def test_all_unreadable_files_are_found(demo_copy, monkeypatch, code, message):
    unreadable, open_file = ["chain-00001.arrow", "msa-00002.arrow"], Path.open

    def opened(path, *arguments, **options):
        if path.name in unreadable:
            raise OSError(code, os.strerror(code), str(path))
        return open_file(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", opened)
    problems = [problem for problem in verify(demo_copy.out) if problem.file != "index.arrow"]
    assert [problem.file for problem in problems] == unreadable
    assert all(message in problem.message for problem in problems)


def test_truncated_file_is_found(demo_copy):
    path = demo_copy.out / "chain-00001.arrow"
    path.write_bytes(path.read_bytes()[:-100])
    messages = [problem.message for problem in verify(demo_copy.out) if problem.file == path.name]
    assert any("the manifest states" in message for message in messages)
    assert any("not a complete Arrow file" in message for message in messages)


def test_a_damaged_day_of_the_index_is_found(demo_copy):
    path = demo_copy.out / "index.arrow"
    days = ShardReader(demo_copy.out).index["release_date"].combine_chunks()
    known = days.is_valid().to_pylist().index(True)
    content = bytearray(path.read_bytes())
    start = content.index(days.buffers()[1].to_pybytes())
    content[start + 4 * known + 3] ^= 0x40  # three million years later
    path.write_bytes(content)
    assert [problem.file for problem in verify(demo_copy.out)] == [path.name]


def test_swapped_files_are_found(demo_copy, tmp_path):
    a, b = (demo_copy.out / f"chain-0000{i}.arrow" for i in (0, 2))
    shutil.move(a, tmp_path / "a")
    shutil.move(b, a)
    shutil.move(tmp_path / "a", b)
    problems = verify(demo_copy.out)
    files = {problem.file for problem in problems}
    assert files == {"chain-00000.arrow", "chain-00002.arrow", "index.arrow"}
    assert any("its row holds" in problem.message for problem in problems)


@pytest.mark.parametrize("structures", ["there", "lost"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chain_key": "9zzz_A"}, "template 9zzz_A is not in the index"),
        ({"realigned": (AT_999, AT_0)}, "reaches residues 999 and 0 (from 0), query and"),
        ({"realigned": (AT_0, AT_999)}, "reaches residues 0 and 999 (from 0), query and"),
        ({"shift": 999}, "reaches residues 0 and 999 (from 0), query and"),
    ],
)
def test_hits_that_lead_nowhere_are_found(demo_copy, change, message, structures):
    hit = AlignedHit(
        chain_key="5pti_A",
        probability=99.0,
        sum_probs=9.0,
        query_start=0,
        template_start=0,
        query_aligned="A",
        template_aligned="A",
    )
    located = dataclasses.replace(Located("5pti_A"), **change)
    for family, encode in (
        ("hits", lambda seq_id: encode_hits(seq_id, [hit])),
        ("templates", lambda seq_id: encode_located(seq_id, [hit], {0: located})),
    ):
        path = demo_copy.out / f"{family}-00000.arrow"
        file = ShardFile(path, family)
        rows = [file.row(number) for number in range(file.num_rows)]
        rows[1] = encode(rows[1]["seq_id"][0].as_py())
        with write_shard(path, family) as shard:
            for row in rows:
                shard.add_batch(row)
    if structures == "lost":
        for chains in demo_copy.out.glob("chain-*.arrow"):
            chains.unlink()
    found = any(
        "row 1" in problem.message and message in problem.message
        for problem in verify(demo_copy.out)
    )
    # How long a lost structure was nobody knows.
    assert found == (structures == "there" or "residues 0 and 999" not in message)


def test_what_a_killed_writer_left_is_no_damage(demo, demo_copy):
    temporary = demo_copy.out / "msa-00000.arrow.tmp.123"
    temporary.write_bytes(b"x")
    assert verify(demo_copy.out) == []
    assert leftovers(demo_copy.out) == [temporary]
    assert leftovers(demo.out) == []


def test_shards_of_another_number_of_buckets_are_stale_and_no_damage(demo, demo_copy):
    stray = demo_copy.out / "msa-00009.arrow"
    shutil.copy(demo_copy.out / "msa-00000.arrow", stray)
    assert verify(demo_copy.out) == []
    assert stale(demo_copy.out) == [stray]
    assert stale(demo.out) == []


@pytest.mark.parametrize("name", ["manifest.json", "chain-00001.json", "msa-00002.json"])
def test_every_flipped_bit_of_a_description_is_found(demo_copy, name):
    path = demo_copy.out / name
    content = path.read_bytes()
    facts = Manifest.read(demo_copy.out).facts(path.with_suffix(".arrow").name)

    def read() -> None:
        if facts is None:
            Manifest.read(demo_copy.out)
        else:
            check_summary(demo_copy.out, facts)

    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1 << (position % 8)
        path.write_bytes(changed)
        with pytest.raises(InputError, match=name):
            read()


def test_a_damaged_summary_is_found_by_verify_and_index(demo_copy):
    path = demo_copy.out / "chain-00000.json"
    text = path.read_text()
    assert '"resolution": 1.' in text
    path.write_text(text.replace('"resolution": 1.', '"resolution": 5.', 1))
    (problem,) = verify(demo_copy.out)
    assert problem.file == path.name
    with pytest.raises(ChecksumError, match=path.name):
        pack_index(demo_copy.config, demo_copy.raw, demo_copy.out)


def test_a_summary_of_another_shard_is_found(demo_copy):
    shutil.copy(demo_copy.out / "chain-00000.json", demo_copy.out / "chain-00001.json")
    (problem,) = verify(demo_copy.out)
    assert problem.file == "chain-00001.json"


def test_folder_without_manifest_is_refused(demo_copy):
    (demo_copy.out / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"no manifest.json in it. Its shards are not complete"):
        verify(demo_copy.out)
