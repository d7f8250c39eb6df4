"""Weight files as archives: torch's and numpy's both are zip files, of other names inside."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from scalefold.errors import InputError

_ZIP_START: Final = b"PK\x03\x04"
_READ_HEADER: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_COPY: Final = "copy or download it again"


def archive_kind(path: Path) -> Literal["torch", "npz"] | None:
    """Who wrote an archive: `torch.save` or `numpy.savez`; None: another file, or none at all."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except Exception:  # zipfile raises errors of many types for damaged files
        return None
    if any(name.endswith("/data.pkl") for name in names):
        return "torch"
    return "npz" if names and all(name.endswith(".npy") for name in names) else None


def check_is_weights(path: Path) -> None:
    """Refuse a file that begins neither as an archive nor as torch's files before 1.6, a pickle.

    Raises
    ------
    InputError
        It is such a file.
    OSError
        The file cannot be read.
    """
    with path.open("rb") as file:
        if not file.read(2).startswith((b"PK", b"\x80")):
            raise InputError(
                f"{path}: is no file of weights, neither torch's nor an .npz file. Correct the path"
            )


def check_torch_archive(path: Path) -> bool:
    """Compare a torch file with the checksums in it, which torch's reader does not look at.

    Returns
    -------
    bool
        Whether it has any: files in torch's format before 1.6 are no archives.

    Raises
    ------
    InputError
        The file is cut, damaged, or compressed, as torch's never are.
    OSError
        The file cannot be read.
    """
    with path.open("rb") as file:
        if file.read(4) != _ZIP_START:
            return False
    if not zipfile.is_zipfile(path):
        raise InputError(
            f"{path}: the end of this torch file is missing ({path.stat().st_size} bytes are "
            "there): copy it again, or save it again where the disk was full"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            packed = [e.filename for e in entries if e.compress_type != zipfile.ZIP_STORED]
            damaged = packed[0] if packed else archive.testzip()
    except Exception as error:  # zipfile raises errors of many types for damaged files
        raise InputError(f"{path}: damaged ({error}): {_COPY}") from None
    if damaged is not None:
        problem = "is compressed" if packed else "does not have its checksum"
        raise InputError(
            f"{path}: damaged: {damaged!a} {problem}: {_COPY}. If it was saved with "
            "torch.serialization.set_crc32_options(False), save it without"
        )
    return True


def read_arrays(path: Path, max_bytes: int) -> dict[str, NDArray[Any]]:
    """Read an ``.npz`` file of floating-point arrays.

    Parameters
    ----------
    max_bytes : int
        What the arrays may come to; refused before they are unpacked.

    Raises
    ------
    InputError
        The file is missing, no ``.npz`` file of such arrays, damaged, or larger than that.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            stated = sum(entry.file_size for entry in entries)
            if stated > max_bytes:
                raise InputError(
                    f"{path}: its arrays come to {stated} bytes, those of the model to at most "
                    f"{max_bytes}: it is of another model, or damaged"
                )
            arrays: dict[str, NDArray[Any]] = {}
            for entry in entries:
                key = entry.filename.removesuffix(".npy")
                if key in arrays:
                    raise InputError(f"{path}: array {key!a} is there twice: {_COPY}")
                arrays[key] = _read_array(archive, entry)
            return arrays
    except FileNotFoundError:
        raise InputError(f"{path}: no such weight file") from None
    except InputError:
        raise
    except Exception as error:  # zipfile and numpy raise errors of many types for damaged files
        raise InputError(f"{path}: cannot be read as an .npz file of arrays: {error}") from None


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    """Read one array, after its header has been compared with the number of its bytes."""
    with archive.open(entry) as stream:
        content = stream.read(entry.file_size + 1)
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    read_header = _READ_HEADER.get(version)
    if read_header is None:
        raise ValueError(f"{entry.filename!a} has .npy version {version}")
    shape, in_fortran_order, dtype = read_header(file)
    num_bytes = math.prod(shape) * dtype.itemsize
    if dtype.kind != "f" or dtype.itemsize > 8 or min(shape, default=1) < 1:
        raise ValueError(f"{entry.filename!a} has shape {shape} and type {dtype}")
    if num_bytes != len(content) - file.tell():
        raise ValueError(
            f"{entry.filename!a} of shape {shape} and type {dtype} has {num_bytes} bytes, found "
            f"{len(content) - file.tell()}"
        )
    flat = np.frombuffer(content, dtype, offset=file.tell()).astype(dtype.newbyteorder("="))
    return flat.reshape(shape, order="F" if in_fortran_order else "C")
