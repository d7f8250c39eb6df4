"""The alignment in AlphaFold's ``features.pkl``, as a3m.

A pickle can run any code when it is read, and a made-up data type can mislead even numpy's own
functions. So this pickle is read without numpy: calls that make arrays are only recorded. Arrays of
whole numbers are made from the records.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from scalefold.errors import InputError
from scalefold.raw.compressed import read_bytes

HHBLITS_LETTERS: Final = "ACDEFGHIKLMNPQRSTVWYX-"
"""Letters of the codes in AlphaFold's raw features (``residue_constants.ID_TO_HHBLITS_AA``)."""
MAX_BYTES: Final = 4_000_000_000
_LARGEST_DELETION: Final = 65_535
_MAKERS: Final = {
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}
"""What pickles of arrays call."""
_PLACES: Final = {"PUT", "BINPUT", "LONG_BINPUT"}
"""Opcodes that give a place to a part that is used again."""
_WHOLE_NUMBERS: Final = re.compile(r"[iu][1248]")


class _Maker:
    """Stands for one of numpy's functions: records its arguments."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: object) -> _Call:
        return _Call(self.name, arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("a function has no state")


class _Call:
    """Stands for an array or a data type: the call that makes it, and the state that it gets."""

    def __init__(self, maker: str, arguments: tuple[object, ...]) -> None:
        self.maker, self.arguments = maker, arguments
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _ArrayUnpickler(pickle.Unpickler):
    """Makes numbers, texts, lists and dictionaries, and records of arrays."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a stand-in for one of numpy's functions; refuse anything else."""
        module = module.replace("numpy.core.", "numpy._core.")  # before numpy 2
        if (module, name) not in _MAKERS:
            raise InputError(
                f"asks for {module}.{name}, and only numpy's arrays are read: this is no "
                "features.pkl of AlphaFold, or it would run code"
            )
        return _Maker(name)


def features_to_a3m(path: Path) -> bytes:
    """Return the alignment of a ``features.pkl`` as a3m; templates are left behind.

    Deleted residues are written as ``x``, since the features have only their number.

    Raises
    ------
    InputError
        The file cannot be read, asks for anything but numpy's arrays, or holds no alignment of one
        chain.
    """
    features = _read(path)
    msa, deletions = _matrix(features, "msa"), _matrix(features, "deletion_matrix_int")
    if msa is None or deletions is None or msa.shape != deletions.shape:
        raise InputError(
            f"{path}: holds no msa and deletion_matrix_int of one shape, as features.pkl of "
            "AlphaFold's monomer model has. Give the a3m files instead, where they are"
        )
    in_range = msa.min() >= 0 and msa.max() < len(HHBLITS_LETTERS)
    if not in_range or deletions.min() < 0 or deletions.max() > _LARGEST_DELETION:
        raise InputError(f"{path}: its msa or deletion_matrix_int has values that are no codes")
    if msa.size + deletions.sum(dtype=np.int64) > MAX_BYTES:
        raise InputError(f"{path}: its alignment has more than {MAX_BYTES:,} residues")
    letters = np.frombuffer(HHBLITS_LETTERS.encode(), np.uint8)
    out = io.BytesIO()
    for number, (codes, deleted) in enumerate(zip(msa, deletions, strict=True)):
        row = letters[codes]
        places = np.repeat(np.arange(len(row)), deleted)
        line = np.insert(row, places, ord("x")).tobytes()
        out.write(b">%s\n%s\n" % (b"query" if number == 0 else b"row%d" % number, line))
    return out.getvalue()


def _read(path: Path) -> dict[str, Any]:
    content = read_bytes(path, MAX_BYTES, "Give the a3m files instead, where they are")
    try:
        _check_places(content)
        features = _ArrayUnpickler(io.BytesIO(content)).load()
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:  # a damaged pickle raises whatever it meets
        raise InputError(
            f"{path}: not readable as a pickle of arrays ({type(error).__name__}: {error})"
        ) from error
    if not isinstance(features, dict):
        raise InputError(f"{path}: holds {type(features).__name__}, expected AlphaFold's features")
    return features


def _check_places(content: bytes) -> None:
    """Refuse a place with a larger number than a pickler gives: all up to it would take memory.

    This also compares stated lengths with the content.
    """
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if opcode.name in _PLACES and isinstance(argument, int) and argument > count:
            raise InputError(f"part {count} of this pickle gets place {argument}: it is damaged")


def _matrix(features: dict[str, Any], name: str) -> NDArray[np.integer] | None:
    """Return a matrix of whole numbers; ``None`` for anything else."""
    match features.get(name):
        case _Call(maker="_reconstruct", state=(_, shape, kind, is_fortran, content)):
            order: Literal["C", "F"] = "F" if is_fortran else "C"
        case _Call(maker="_frombuffer", arguments=(content, kind, shape, "C" | "F" as order)):
            pass
        case _:
            return None
    dtype = _dtype(kind)
    if dtype is None or not isinstance(content, bytes | bytearray):
        return None
    match shape:
        case (int(rows), int(columns)) if rows > 0 and columns > 0:
            is_whole = rows * columns * dtype.itemsize == len(content)
            return np.frombuffer(content, dtype).reshape(shape, order=order) if is_whole else None
        case _:
            return None


def _dtype(kind: object) -> np.dtype[np.integer] | None:
    match kind:
        case _Call(maker="dtype", arguments=(str(code), *_), state=(_, "<" | ">" | "|" as end, *_)):
            return np.dtype(end + code) if _WHOLE_NUMBERS.fullmatch(code) else None
        case _:
            return None
