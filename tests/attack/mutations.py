"""Damage to the bytes of a file: what disks, networks and other programs do, and worse."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Final

_VALUE: Final = re.compile(rb'"[^"\n]*"|-?\d[\d.eE+-]*')
"""Numbers, and texts in quotes: what JSON, YAML and tables hold."""

ODD_VALUES: Final = (
    *(b"", b"0", b"-1", b"-0", b"1_0", b"0x10", b"9" * 30, b"-" + b"9" * 30, b"4294967296", b"1.5"),
    *(b"1e999", b"-1e999", b"1e-999", b"nan", b"NaN", b"inf", b".inf", b".nan", b"Infinity"),
    *(b"null", b"true", b"~", b"[]", b"{}", b"[[]]", b'{"a": 1}', b'"x"', b'""', b"'", b'"'),
    *(b"\xc2\xb2", b"\xd9\xa1\xd9\xa2", b"2024-02-30", b"0001-01-01", b"12:30:45", b"?", b"."),
    *(b"!!int x", b"!!timestamp x", b"!!python/name:os.system x", b"&a [*a, *a]", b"*a", b"<<: 1"),
)
ODD_BYTES: Final = (
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3\xa9", b"\r", b"\r\n", b"\n\n", b"\t", b" "),
    *(b"[" * 2000, b"{" * 500, b"A" * 5000, b"-" * 300, b"1" * 5000, b"../../x", b"/", b"%00"),
    *(b">", b"#", b"loop_\n", b"data_x\n", b";\n", b"No 1\n", b": ", b"- "),
    *(b"$\\foo$", b"\x1b[31m"),
    *(b"bytes 5-2/1", b"bytes x-/y", b"bytes */*", b'W/"', b"http://[::1", b"//", b"HTTP/9.9 999 "),
)

Mutation = Callable[[bytes, bytes, random.Random], bytes]


def mutate(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Damage ``content`` in one to three ways; ``other`` is a file to take pieces of."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice(_MUTATIONS)(content, other, rng)
    return content


def _flip(content: bytes, other: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 3, 30)) if content else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(content: bytes, other: bytes, rng: random.Random) -> bytes:
    return content[: _place(content, rng)]


def _remove(content: bytes, other: bytes, rng: random.Random) -> bytes:
    start, end = _piece(content, rng)
    return content[:start] + content[end:]


def _repeat(content: bytes, other: bytes, rng: random.Random) -> bytes:
    start, end = _piece(content, rng)
    times = rng.choice((1, 2, 50)) if end - start < 2000 else 1
    return content[:end] + content[start:end] * times + content[end:]


def _splice(content: bytes, other: bytes, rng: random.Random) -> bytes:
    (start, end), (first, last) = _piece(content, rng), _piece(other, rng)
    return content[:start] + other[first:last] + content[end:]


def _join(content: bytes, other: bytes, rng: random.Random) -> bytes:
    return content[: _place(content, rng)] + other[_place(other, rng) :]


def _odd_value(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Replace a number or a quoted text, the first behind a random place."""
    match = _VALUE.search(content, _place(content, rng)) or _VALUE.search(content)
    if match is None:
        return rng.choice(ODD_VALUES)
    return content[: match.start()] + rng.choice(ODD_VALUES) + content[match.end() :]


def _odd_bytes(content: bytes, other: bytes, rng: random.Random) -> bytes:
    place = _place(content, rng)
    return content[:place] + rng.choice(ODD_BYTES) + content[place:]


def _lines(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Lose, repeat or swap lines."""
    lines = content.split(b"\n")
    here, there = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(3):
        case 0:
            del lines[min(here, there) : max(here, there)]
        case 1:
            lines.insert(here, lines[there])
        case 2:
            lines[here], lines[there] = lines[there], lines[here]
    return b"\n".join(lines)


_MUTATIONS: Final[tuple[Mutation, ...]] = (
    *(_flip, _flip, _cut, _remove, _repeat, _splice, _join),
    *(_odd_value, _odd_value, _odd_bytes, _lines),
)


def _place(content: bytes, rng: random.Random) -> int:
    """Anywhere, a third of the time near the start, where heads are."""
    limit = min(len(content), 300) if rng.random() < 1 / 3 else len(content)
    return rng.randint(0, limit)


def _piece(content: bytes, rng: random.Random) -> tuple[int, int]:
    start = _place(content, rng)
    return start, min(len(content), start + rng.choice((1, 4, 20, 200, 5000)))
