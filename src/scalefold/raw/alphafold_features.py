"""The alignment in AlphaFold's ``features.pkl``, as a3m.

A pickle may run any code when it is read. This one is read by an unpickler that knows numpy's
arrays and nothing else.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scalefold.errors import InputError
from scalefold.raw.compressed import read_bytes

HHBLITS_LETTERS: Final = "ACDEFGHIKLMNPQRSTVWYX-"
"""Of the codes in AlphaFold's raw features (``residue_constants.ID_TO_HHBLITS_AA``)."""
MAX_BYTES: Final = 4_000_000_000
_LARGEST_DELETION: Final = 65_535
_NUMPY: Final = {
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}
"""What pickles of arrays name."""


class _Unpickler(pickle.Unpickler):
    """Knows the functions that make numpy's arrays, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of numpy's; refuse anything else."""
        module = module.replace("numpy.core.", "numpy._core.")  # before numpy 2
        if (module, name) not in _NUMPY:
            raise InputError(
                f"asks for {module}.{name}, and only numpy's arrays are read: this is no "
                "features.pkl of AlphaFold, or it would run code"
            )
        return super().find_class(module, name)


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
    letters = np.frombuffer(HHBLITS_LETTERS.encode(), np.uint8)
    out = io.BytesIO()
    for number, (codes, deleted) in enumerate(zip(msa, deletions, strict=True)):
        row = letters[codes]
        places = np.repeat(np.arange(len(row)), deleted)
        line = np.insert(row, places, ord("x")).tobytes()
        out.write(b">%s\n%s\n" % (b"query" if number == 0 else b"row%d" % number, line))
    return out.getvalue()


def _read(path: Path) -> dict[str, Any]:
    content = read_bytes(path, MAX_BYTES)
    try:
        features = _Unpickler(io.BytesIO(content)).load()
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except Exception as error:  # a damaged pickle raises whatever it meets
        raise InputError(
            f"{path}: not readable as a pickle of arrays ({type(error).__name__}: {error})"
        ) from error
    if not isinstance(features, dict):
        raise InputError(f"{path}: holds {type(features).__name__}, expected AlphaFold's features")
    return features


def _matrix(features: dict[str, Any], name: str) -> NDArray[np.integer] | None:
    array = features.get(name)
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.size == 0:
        return None
    return array if array.dtype.kind in "iu" else None
