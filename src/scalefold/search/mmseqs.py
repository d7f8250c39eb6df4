"""MMseqs2, on processors or a GPU.

A GPU needs a database in the padded form (``mmseqs makepaddedseqdb``), and memory for all of it.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scalefold.errors import InputError
from scalefold.raw.a3m import encode_sequence, parse_a3m
from scalefold.search.binaries import find_binary
from scalefold.search.process import Limits, checked_output, run

# ColabFold's sensitivity and iterations.
MMSEQS_OPTIONS: Final = ("--num-iterations", "3", "-s", "8", "-e", "0.1", "--max-seqs", "10000")
_A3M: Final = ("--msa-format-mode", "5")
# Besides the sequences: a score for each, and the kernels' buffers.
_GPU_BYTES_A_SEQUENCE: Final = 64
_GPU_SPARE_BYTES: Final = 1 << 30


def check_mmseqs_database(database: Path) -> None:
    """Refuse a missing or empty MMseqs2 database.

    Raises
    ------
    InputError
        Names the file.
    """
    for path in (database, _beside(database, ".dbtype"), _beside(database, ".index")):
        if not path.is_file():
            raise InputError(
                f"{path}: no such file. Correct the database's path, or make it: mmseqs createdb"
            )
        if path.stat().st_size == 0:
            raise InputError(f"{path}: is empty. Download the database again, or make it again")


def check_gpu(database: Path, free_bytes: int | None = None) -> None:
    """Refuse a GPU search that cannot work, before it is started.

    Parameters
    ----------
    database
        Prefix of a padded database.
    free_bytes
        Free memory of the GPU; default: by ``nvidia-smi``.

    Raises
    ------
    InputError
        The installed MMseqs2 has no GPU mode, there is no GPU, or the database does not fit.
    """
    check_mmseqs_database(database)
    usage = subprocess.run(
        [find_binary("mmseqs"), "search", "-h"], capture_output=True, text=True, check=False
    )
    if "--gpu" not in usage.stdout:
        raise InputError(
            "the installed mmseqs has no --gpu: Debian's is too old. Take a build with CUDA from "
            "https://mmseqs.com, version 16 or newer, or search without a GPU"
        )
    free = _free_gpu_bytes() if free_bytes is None else free_bytes
    needed = gpu_bytes(database)
    if needed > free:
        raise InputError(
            f"{database}: searching it needs {needed / 1e9:.1f} GB of GPU memory, "
            f"{free / 1e9:.1f} GB are free. Split the database, take another GPU, or search "
            "without one"
        )


def gpu_bytes(database: Path) -> int:
    """Return how much GPU memory a search of a padded database takes: about a byte a residue."""
    with _beside(database, ".index").open("rb") as index:
        num_sequences = sum(1 for _ in index)
    return database.stat().st_size + _GPU_BYTES_A_SEQUENCE * num_sequences + _GPU_SPARE_BYTES


def search_words(
    query: str, database: Path, limits: Limits, options: Sequence[str], use_gpu: bool
) -> list[str]:
    """Return the command line of a search from the database ``query`` to the results ``hits``."""
    words = ["search", query, str(database.absolute()), "hits", "tmp", "-a", *options]
    return [*words, "--threads", str(limits.threads), *(["--gpu", "1"] if use_gpu else [])]


def mmseqs(
    sequence: str,
    database: Path,
    limits: Limits,
    options: Sequence[str] = MMSEQS_OPTIONS,
    use_gpu: bool = False,
) -> bytes:
    """Return the a3m alignment that MMseqs2 finds; its first row is the query.

    Parameters
    ----------
    database
        Prefix of an MMseqs2 database, for a GPU a padded one (see `check_gpu`).
    limits
        Of each step.
    options
        Words of ``mmseqs search``, in place of ColabFold's.

    Raises
    ------
    InputError
        The sequence has other symbols than letters.
    ToolError
        See `scalefold.search.process.run`; or the result is not an alignment of the sequence.
    """
    encode_sequence(sequence)
    program = find_binary("mmseqs")
    target = str(database.absolute())
    quiet = ["-v", "1"]
    threads = ["--threads", str(limits.threads)]
    with tempfile.TemporaryDirectory(prefix="scalefold-search-") as name:
        folder = Path(name)
        (folder / "query.fasta").write_text(f">query\n{sequence}\n")
        search = search_words("query", database, limits, options, use_gpu)
        for words in (
            ["createdb", "query.fasta", "query"],
            search,
            ["result2msa", "query", target, "hits", "msa", *_A3M, *threads],
            ["unpackdb", "msa", "out", "--unpack-name-mode", "0", *threads],
        ):
            (folder / "out").mkdir(exist_ok=True)
            run([program, *words, *quiet], limits, folder)
        written = sorted((folder / "out").iterdir())
        content = written[0].read_bytes().rstrip(b"\0") if written else b""
    if not content:
        content = f">query\n{sequence}\n".encode()  # nothing was found
    with checked_output("mmseqs"):
        parse_a3m(content, sequence, "its alignment")
    return content


def _beside(database: Path, ending: str) -> Path:
    return database.with_name(database.name + ending)


def _free_gpu_bytes() -> int:
    query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=True).stdout
        return int(said.split()[0]) << 20
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError) as error:
        raise InputError(
            "no GPU answers nvidia-smi: search on a machine with one, or without a GPU"
        ) from error
