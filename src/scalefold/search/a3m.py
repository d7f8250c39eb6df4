"""Write a3m, and turn Stockholm alignments into a3m.

Reading a3m is :mod:`scalefold.raw.a3m`'s work. Shapes: ``N`` rows, ``W`` columns of a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from scalefold.chem.residues import MSA_SYMBOLS
from scalefold.errors import InputError

if TYPE_CHECKING:
    from scalefold.raw.alignment import Alignment
    from scalefold.shards.records import MsaRecord

_GAPS: Final = np.frombuffer(b"-.~_", np.uint8)
_UPPER: Final = np.frombuffer(bytes(range(256)).upper(), np.uint8)
_LOWER: Final = np.frombuffer(bytes(range(256)).lower(), np.uint8)
_SYMBOLS: Final = np.frombuffer(MSA_SYMBOLS.encode(), np.uint8)
_REFERENCE: Final = b"#=GC RF"


def format_a3m(alignment: Alignment | MsaRecord) -> bytes:
    """Return an alignment as a3m: the first row is ``query``, the others are numbered.

    An alignment has only the number of residues between two columns of a row: they become ``x``.
    HH-suite uses only their number.
    """
    rows = [b">query"]
    for number, codes in enumerate(alignment.msa):
        symbols = _SYMBOLS[codes].tobytes()
        start, end = int(alignment.del_ptr[number]), int(alignment.del_ptr[number + 1])
        for column, count in zip(
            alignment.del_col[start:end][::-1], alignment.del_val[start:end][::-1], strict=True
        ):
            symbols = symbols[: int(column)] + b"x" * int(count) + symbols[int(column) :]
        rows += [b">%d" % number] * (number > 0) + [symbols]
    return b"\n".join(rows) + b"\n"


def rename_query(content: bytes, name: str) -> bytes:
    """Return an a3m alignment whose first title is ``name``; comments before it are left out."""
    _, _, rest = (b"\n" + content).partition(b"\n>")
    return f">{name}\n".encode() + rest.partition(b"\n")[2]


def query_of(content: bytes, source: str) -> str:
    """Return the first sequence of an a3m alignment, without its check.

    Raises
    ------
    InputError
        There is none.
    """
    first = (b"\n" + content).split(b"\n>", 2)[1:2]
    sequence = b"" if not first else b"".join(first[0].partition(b"\n")[2].split())
    if not sequence:
        raise InputError(f"{source}: has no sequence. Search again, or remove the file")
    return sequence.decode("latin-1").upper()


def read_stockholm(
    lines: IO[bytes] | Iterable[bytes], source: str, max_rows: int | None = None
) -> dict[bytes, bytes]:
    """Return name -> aligned row of the first alignment, the first ``max_rows`` of them.

    All lines are read, since a program may still write them, but only returned rows are kept. The
    reference annotation is kept under its tag ``#=GC RF``.

    Raises
    ------
    InputError
        Not Stockholm, cut off before its ``//``, without rows, or with rows of several widths.
    """
    parts: dict[bytes, list[bytes]] = {}
    num_rows, is_stockholm, is_complete = 0, False, False
    for line in lines:
        if is_complete or not line.strip():
            continue
        if not is_stockholm:
            if not line.startswith(b"# STOCKHOLM"):
                raise InputError(
                    f"{source}: begins with {line[:40]!r}, expected '# STOCKHOLM 1.0': name an "
                    "unpacked Stockholm file"
                )
            is_stockholm = True
        elif line.startswith(b"//"):
            is_complete = True
        elif line.startswith(_REFERENCE):
            parts.setdefault(_REFERENCE, []).append(line.split()[-1])
        elif not line.startswith(b"#"):
            name, _, row = line.strip().rpartition(b" ")
            name = name.strip()
            if name not in parts:
                if max_rows is not None and num_rows >= max_rows:
                    continue
                num_rows += 1
            parts.setdefault(name, []).append(row)
    rows = {name: b"".join(blocks) for name, blocks in parts.items()}
    if not is_complete or not num_rows:
        fault = "has no sequence" if is_complete else "does not end with '//': it is cut off"
        raise InputError(f"{source}: {fault}. Search again")
    if len({len(row) for row in rows.values()}) > 1:
        raise InputError(f"{source}: its rows have different widths. Search again")
    return rows


def stockholm_to_a3m(rows: dict[bytes, bytes]) -> bytes:
    """Return the a3m of an alignment whose first row is the query, with its residues as columns."""
    names = [name for name in rows if name != _REFERENCE]
    symbols = _symbols([rows[name] for name in names])
    return _a3m(names, symbols, ~np.isin(symbols[0], _GAPS))


def stockholm_hits_to_a3m(rows: dict[bytes, bytes], sequence: str) -> bytes:
    """Return the a3m of hits of a profile that has a column for each residue of ``sequence``.

    The query, which is no row, comes first. The columns are those of the reference annotation.

    Raises
    ------
    InputError
        There is no such annotation.
    """
    names = [name for name in rows if name != _REFERENCE]
    if names and _REFERENCE not in rows:
        raise InputError("the hits have no line '#=GC RF', which says the columns. Search again")
    is_column = ~np.isin(np.frombuffer(rows.get(_REFERENCE, b""), np.uint8), _GAPS)
    query = f">query\n{sequence}\n".encode()
    return query + _a3m(names, _symbols([rows[name] for name in names]), is_column)


def _symbols(rows: Sequence[bytes]) -> NDArray[np.uint8]:
    width = len(rows[0]) if rows else 0
    return np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), width)


def _a3m(names: Sequence[bytes], symbols: NDArray[np.uint8], is_column: NDArray[np.bool_]) -> bytes:
    """Return a3m of letters and gaps ``[N, W]``; outside of ``is_column``, letters are inserted."""
    is_gap = np.isin(symbols, _GAPS)
    upper = np.where(is_gap, ord("-"), _UPPER[symbols])
    lower = np.where(is_gap, 0, _LOWER[symbols])
    written = np.where(is_column, upper, lower).astype(np.uint8)
    records = (
        b">" + name + b"\n" + row.tobytes().translate(None, b"\0") + b"\n"
        for name, row in zip(names, written, strict=True)
    )
    return b"".join(records)
