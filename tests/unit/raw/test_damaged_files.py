"""Damaged real files end in a result or in an InputError that names them, in nothing else."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from scalefold.errors import InputError
from scalefold.raw.a3m import parse_a3m
from scalefold.raw.hhr import parse_hhr
from scalefold.raw.mmcif import parse_entry


def damage(content: bytes, rng: random.Random) -> bytes:
    """Cut off, overwrite some bytes, or lose some lines."""
    kind = rng.randrange(3)
    if kind == 0:
        return content[: rng.randrange(len(content))]
    if kind == 1:
        changed = bytearray(content)
        for _ in range(rng.choice([1, 5, 50])):
            changed[rng.randrange(len(changed))] = rng.choice(b"\n ?.'\";_#aA1x\xff")
        return bytes(changed)
    lines = content.split(b"\n")
    for _ in range(rng.choice([1, 5, 20])):
        if lines:
            del lines[rng.randrange(len(lines))]
    return b"\n".join(lines)


def outcomes(content: bytes, parse: Callable[[bytes], object], count: int) -> Counter[str]:
    rng = random.Random(count)
    result: Counter[str] = Counter()
    for _ in range(count):
        try:
            parse(damage(content, rng))
            result["read"] += 1
        except InputError as error:
            result["error" if "the-file" in str(error) else f"unnamed: {error}"] += 1
    return result


@pytest.mark.parametrize("entry_id", ["3jqh", "3zee"])
def test_mmcif(demo_mmcif: list[Path], entry_id: str) -> None:
    path = next(p for p in demo_mmcif if p.name.startswith(entry_id))
    content = gzip.decompress(path.read_bytes())
    result = outcomes(content, lambda b: parse_entry(b, "the-file"), 60)
    assert set(result) <= {"read", "error"}
    assert result["error"] > 10


@pytest.mark.parametrize("entry_id", ["3jqh", "3zee", "5pti"])
def test_mmcif_cut_at_the_end_of_a_line(demo_mmcif: list[Path], entry_id: str) -> None:
    """Anywhere behind the first atoms, where what is left would be valid mmCIF."""
    path = next(p for p in demo_mmcif if p.name.startswith(entry_id))
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    atoms = next(n for n, line in enumerate(lines) if line.startswith(b"ATOM"))
    parse_entry(b"".join(lines), "the-file")
    for number in range(atoms + 50, len(lines), len(lines) // 25):
        if lines[number - 1].strip() != b"#":  # the end of a category
            with pytest.raises(InputError, match="the-file"):
                parse_entry(b"".join(lines[:number]), "the-file")


@pytest.mark.parametrize("chain_key", ["2nwd_X", "3jqh_A"])
def test_a3m_and_hhr(demo: Path, chain_key: str) -> None:
    folder = demo / "mirror/openproteinset/pdb" / chain_key
    a3m = (folder / "a3m/swissprot_hits.a3m").read_bytes()
    sequence = "".join(a3m.decode().split(">")[1].split("\n")[1:])
    result = outcomes(a3m, lambda b: parse_a3m(b, sequence, "the-file"), 200)
    assert set(result) <= {"read", "error"}
    assert result["error"] > 100
    hhr = (folder / "hhr/pdb70_hits.hhr").read_bytes()
    result = outcomes(
        hhr, lambda b: parse_hhr(b.decode("utf-8", "replace"), sequence, "the-file"), 200
    )
    assert set(result) <= {"read", "error"}
    assert result["error"] > 50
