"""Alignments of OpenFold's databases and of AlphaFold's features."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scalefold.errors import InputError
from scalefold.raw import alphafold_features
from scalefold.raw.a3m import parse_a3m
from scalefold.raw.alphafold_features import HHBLITS_LETTERS, features_to_a3m
from scalefold.raw.openfold_database import database_indices, unpack_database

SEQUENCE = "MKVLAGX"


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Two databases: two identical chains, one with template hits, and one alone."""
    folder = tmp_path / "alignment_db"
    folder.mkdir()
    (folder / "0.db").write_bytes(b">q\nMKV\nhits>q\nAA\n")
    (folder / "1.db").write_bytes(b">q\nMK\n")
    shared = {"db": "0.db", "files": [["uniref90_hits.a3m", 0, 7], ["pdb70_hits.hhr", 7, 4]]}
    index = {
        "1abc_A": shared,
        "1abc_B": shared,
        "2abc_A": {"db": "1.db", "files": [["mgnify_hits.a3m", 0, 6]]},
    }
    (folder / "super.index").write_text(json.dumps(index))
    return folder


def test_openfolds_database(database: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert list(unpack_database(database_indices(database), out)) == [None] * 3
    expected = {
        "pdb/1abc_A/a3m/uniref90_hits.a3m": b">q\nMKV\n",
        "pdb/1abc_A/hhr/pdb70_hits.hhr": b"hits",
        "pdb/2abc_A/a3m/mgnify_hits.a3m": b">q\nMK\n",
    }
    assert files(out) == expected
    kept = out / "pdb/2abc_A/a3m/mgnify_hits.a3m"
    time = kept.stat().st_mtime_ns
    (out / "pdb/1abc_A/hhr/pdb70_hits.hhr").write_bytes(b"h")  # as after a crash of the machine
    list(unpack_database(database_indices(database), out))
    assert files(out) == expected
    assert kept.stat().st_mtime_ns == time


@pytest.mark.parametrize(
    ("key", "item"),
    [
        ("../../1abc_A", {"db": "0.db", "files": [["a.a3m", 0, 7]]}),
        ("9abc_A", {"db": "../alignment_db/0.db", "files": [["a.a3m", 0, 7]]}),
        ("9abc_A", {"db": "0.db", "files": [["../../../a.a3m", 0, 7]]}),
        ("9abc_A", {"db": "0.db", "files": [["a.a3m", 0, 700]]}),
        ("9abc_A", {"db": "0.db", "files": [["a.a3m", -3, 7]]}),
        ("9abc_A", {"db": "0.db", "files": [["a.a3m", "0", 7]]}),
        ("9abc_A", {"db": "0.db", "files": [["a.sto", 0, 7]]}),
        ("9abc_A", {"db": "0.db", "files": 7}),
        ("9abc_A", {"db": "absent.db", "files": []}),
        ("9abc_A", {"db": 300 * "0", "files": []}),
        ("9abc_A", {"db": "0.db", "files": [[f"{300 * 'a'}.a3m", 0, 7]]}),
        ("9abc_" + 300 * "A", {"db": "0.db", "files": [["a.a3m", 0, 7]]}),
        ("9abc_A", {}),
    ],
)
def test_hostile_indices(key: str, item: Any, database: Path, tmp_path: Path) -> None:
    """The chain is passed over with its reason, the next one is taken, nothing lands elsewhere."""
    before = files(tmp_path)
    good = {"db": "1.db", "files": [["mgnify_hits.a3m", 0, 6]]}
    index = database / "bad.index"
    index.write_text(json.dumps({key: item, "2abc_A": good}))
    bad, taken = unpack_database([index], tmp_path / "out")
    assert bad is not None
    assert taken is None
    new = files(tmp_path).keys() - before.keys()
    assert new == {"alignment_db/bad.index", "out/pdb/2abc_A/a3m/mgnify_hits.a3m"}


def features(rng: np.random.Generator, rows: int = 9) -> dict[str, Any]:
    """Raw features as AlphaFold's data pipeline has them."""
    msa = rng.integers(0, 22, (rows, len(SEQUENCE))).astype(np.int32)
    msa[0] = [HHBLITS_LETTERS.index(letter) for letter in SEQUENCE]
    deletions = rng.choice([0, 0, 0, 1, 7], (rows, len(SEQUENCE))).astype(np.int32)
    deletions[0] = 0
    return {
        "msa": msa,
        "deletion_matrix_int": deletions,
        "sequence": np.array([SEQUENCE.encode()], dtype=np.object_),
        "template_domain_names": np.array([b"1abc_A"], dtype=np.object_),
        "num_alignments": np.array([rows] * len(SEQUENCE), dtype=np.int32),
    }


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("kind", ["<i4", ">i8", "u1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_alphafolds_features(protocol: int, kind: str, order: Any, tmp_path: Path) -> None:
    raw = features(np.random.default_rng(0))
    for name in ("msa", "deletion_matrix_int"):
        raw[name] = raw[name].astype(kind, order=order)
    path = tmp_path / "features.pkl"
    content = pickle.dumps(raw, protocol=protocol)
    if protocol == 3:  # names of modules are plain text in it: as numpy 1 wrote them
        content = content.replace(b"numpy._core.", b"numpy.core.")
    path.write_bytes(content)
    alignment = parse_a3m(features_to_a3m(path), SEQUENCE, "converted")
    order = "ARNDCQEGHILKMFPSTWYVX-"
    letters = np.array(list(order))[alignment.msa]
    assert ["".join(row) for row in letters] == [
        "".join(HHBLITS_LETTERS[code] for code in row) for row in raw["msa"]
    ]
    deletions = np.zeros_like(raw["deletion_matrix_int"])
    for row in range(len(deletions)):
        part = slice(alignment.del_ptr[row], alignment.del_ptr[row + 1])
        deletions[row, alignment.del_col[part]] = alignment.del_val[part]
    assert (deletions == raw["deletion_matrix_int"]).all()


class Code:
    """Runs a program when it is unpickled by whoever does not look."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def test_a_damaged_place_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "features.pkl"
    path.write_bytes(b"\x80\x04}r" + (20_000_000).to_bytes(4, "little") + b".")
    tracemalloc.start()
    with pytest.raises(InputError, match=r"features\.pkl"):
        features_to_a3m(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 24


def test_no_code_runs(tmp_path: Path) -> None:
    path, marker = tmp_path / "features.pkl", tmp_path / "marker"
    path.write_bytes(pickle.dumps({**features(np.random.default_rng(0)), "x": Code(marker)}))
    assert "system" in [argument for _, argument, _ in pickletools.genops(path.read_bytes())]
    with pytest.raises(InputError, match="only numpy's arrays"):
        features_to_a3m(path)
    for name in (b"cnumpy\nload\n.", b"cbuiltins\neval\n.", b"cnumpy.testing\nrun\n."):
        path.write_bytes(name)
        with pytest.raises(InputError, match="only numpy's arrays"):
            features_to_a3m(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        pickle.dumps([1]),
        pickle.dumps({"msa": np.zeros((2, 3), np.int32)}),
        pickle.dumps({"msa": np.zeros((0, 3), int), "deletion_matrix_int": np.zeros((0, 3), int)}),
        pickle.dumps({"msa": np.full((1, 3), 22), "deletion_matrix_int": np.zeros((1, 3), int)}),
        pickle.dumps({"msa": np.zeros((1, 3), int), "deletion_matrix_int": np.full((1, 3), -1)}),
        pickle.dumps({"msa": np.zeros((1, 3)), "deletion_matrix_int": np.zeros((1, 3))}),
        pickle.dumps({"msa": np.full((1, 3), 2, object), "deletion_matrix_int": np.zeros((1, 3))}),
        pickle.dumps({"msa": np.zeros((4, 99), int)})[:-300],
    ],
)
def test_other_pickles_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "features.pkl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"features\.pkl"):
        features_to_a3m(path)


def test_features_that_are_too_large_are_no_matter_of_a_limit_of_structures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alphafold_features, "MAX_BYTES", 10)
    (tmp_path / "features.pkl").write_bytes(bytes(11))
    with pytest.raises(InputError, match="unpacked") as refused:
        features_to_a3m(tmp_path / "features.pkl")
    assert "max_structure_megabytes" not in str(refused.value)
