from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

import pytest

from scalefold.errors import ChecksumError, InputError
from scalefold.shards.manifest import Manifest
from scalefold.shards.schema import bucket_file
from scalefold.shards.source_files import RawSnapshot
from scalefold.shards.writer import ShardFacts


def manifest(**changes) -> Manifest:
    content = b"hello"
    facts = ShardFacts("a.arrow", 5, 1, hashlib.sha256(content).hexdigest())
    values = {
        "schema_version": 1,
        "config_hash": "abc",
        "source": RawSnapshot.of([]),
        "counts": {"chains, train": 1},
        "files": (facts,),
    }
    return Manifest(**{**values, **changes})


def test_round_trip(tmp_path):
    sha256 = manifest().write(tmp_path)
    assert sha256 == hashlib.sha256((tmp_path / "manifest.json").read_bytes()).hexdigest()
    assert Manifest.read(tmp_path) == manifest()


def test_missing_folder_manifest_and_nonsense_are_told_apart(tmp_path):
    with pytest.raises(InputError, match="no such shard folder"):
        Manifest.read(tmp_path / "no")
    with pytest.raises(InputError, match=r"no manifest.json in it. Give the folder that"):
        Manifest.read(tmp_path)
    (tmp_path / "pt").mkdir()
    (tmp_path / "pt/5pti.cif.gz").touch()
    with pytest.raises(InputError, match=r"structures: `scalefold inspect \S*pt/5pti.cif.gz`"):
        Manifest.read(tmp_path)
    (tmp_path / "mmcif").mkdir()
    with pytest.raises(InputError, match=rf"raw folder: .*--raw {tmp_path}"):
        Manifest.read(tmp_path)
    (tmp_path / "chain-00000.arrow").touch()
    with pytest.raises(InputError, match=r"not complete.*scalefold pack"):
        Manifest.read(tmp_path)
    (tmp_path / "shards").mkdir()
    manifest().write(tmp_path / "shards")
    with pytest.raises(InputError, match=f"{tmp_path}/shards"):
        Manifest.read(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        Manifest.read(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema_version": 1}')
    with pytest.raises(InputError, match="an entry is missing"):
        Manifest.read(tmp_path)
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(InputError, match="found list"):
        Manifest.read(tmp_path)


def test_other_version_is_refused(tmp_path):
    manifest(schema_version=7).write(tmp_path)
    with pytest.raises(InputError, match="schema version 7"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"files": [{"file": 7, "bytes": 1, "rows": 1, "sha256": ""}]},
        {"files": [{"file": "a", "bytes": 1, "rows": [], "sha256": ""}]},
        {"source": {"files": 1, "bytes": 1e999, "sha256": ""}},
        {"source": {"files": 1, "bytes": 1, "sha256": "", "more": 1}},
        {"counts": {"chains, train": 10**400}},
        {"schema_version": True},
    ],
)
def test_entries_of_another_kind_are_refused(tmp_path, change):
    """Manifests of earlier versions have no hash that would find them."""
    tree = json.loads(json.dumps(asdict(manifest()))) | change
    (tmp_path / "manifest.json").write_text(json.dumps(tree))
    with pytest.raises(InputError, match=r"manifest\.json"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("msa-00012.arrow", ("msa", 12)),
        ("chain-100000.json", ("chain", 100_000)),
        ("msa-²²²²².arrow", None),
        (f"msa-{'1' * 5000}.arrow", None),
        ("index.arrow", None),
    ],
)
def test_files_of_buckets(file, place):
    assert bucket_file(file) == place


def test_check_bytes(tmp_path):
    path = tmp_path / "a.arrow"
    with pytest.raises(InputError, match="not there"):
        manifest().check_bytes(tmp_path, "a.arrow")
    path.write_bytes(b"hello")
    manifest().check_bytes(tmp_path, "a.arrow")
    with pytest.raises(InputError, match="does not list"):
        manifest().check_bytes(tmp_path, "b.arrow")
    for damaged in (b"hellp", b"hell"):
        path.write_bytes(damaged)
        with pytest.raises(ChecksumError, match="5 bytes") as caught:
            manifest().check_bytes(tmp_path, "a.arrow")
        assert hashlib.sha256(damaged).hexdigest() in str(caught.value)
        assert hashlib.sha256(b"hello").hexdigest() in str(caught.value)
