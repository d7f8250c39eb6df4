"""Real programs and a small real database: the demo's families, of Swiss-Prot sequences."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scalefold.search.build_database import alignments_of_folder, build_database
from scalefold.search.process import Limits

ALIGNMENTS = Path(__file__).parents[3] / "demo/mirror/openproteinset/pdb"
LIMITS = Limits(minutes=2, memory_gigabytes=4)


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip a test where a program is not installed."""
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def alignment(key: str) -> bytes:
    """Return the alignment of one of the demo's chains."""
    return (ALIGNMENTS / key / "a3m/swissprot_hits.a3m").read_bytes()


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An HH-suite database of the demo's chains."""
    if shutil.which("hhmake") is None:
        pytest.skip("not installed: hhmake")
    prefix = tmp_path_factory.mktemp("database") / "demo"
    rejected = build_database(prefix, alignments_of_folder(ALIGNMENTS), LIMITS)
    assert rejected == []
    return prefix


@pytest.fixture(scope="session")
def sequences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows of the demo's alignments as a FASTA database."""
    path = tmp_path_factory.mktemp("sequences") / "demo.fasta"
    with path.open("w") as file:
        for folder in sorted(ALIGNMENTS.iterdir()):
            records = alignment(folder.name).decode().split(">")[1:]
            for number, record in enumerate(records):
                title, _, body = record.partition("\n")
                letters = "".join(body.split()).replace("-", "").upper()
                file.write(f">{folder.name}_{number} {title}\n{letters}\n")
    return path
