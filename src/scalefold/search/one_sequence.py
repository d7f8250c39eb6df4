"""The search of one sequence: its steps, one after another, and the record of what is done."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, Final

from scalefold.config.schema import Config
from scalefold.config.search import SearchConfig, SearchStepConfig
from scalefold.errors import InputError
from scalefold.io.atomic import make_folder, write_bytes
from scalefold.raw.a3m import parse_a3m
from scalefold.raw.fasta import FastaRecord
from scalefold.raw.raw_folder import alignment_folder
from scalefold.search.databases import Databases
from scalefold.search.given_alignments import find_given, read_given
from scalefold.search.process import ToolError
from scalefold.search.steps import result_path, run_step

RECORD: Final = "searched.json"


class Searcher:
    """Searches single sequences, and knows which are done."""

    def __init__(self, config: Config, section: SearchConfig, out: Path) -> None:
        self._section, self._out = section, out
        self._fallback = config.data.alignments[0]
        self._alignment_steps = [step for step in section.steps if step.tool != "hhsearch"]
        self._template_steps = [step for step in section.steps if step.tool == "hhsearch"]
        self._databases = Databases(section.steps)

    def is_given(self, record: FastaRecord) -> bool:
        """Return whether the sequence needs no search, since its alignment is given."""
        return not self._template_steps and self._given(record) is not None

    def is_done(self, record: FastaRecord) -> bool:
        """Return whether an earlier search did all this for the sequence."""
        folder = alignment_folder(self._out, record.name)
        try:
            found = json.loads((folder / RECORD).read_text("utf-8"))
            files = found["files"]
            same_size = all((folder / f).stat().st_size == n for f, n in files.items())
            if not same_size or found["request"] != self._request(record):
                return False
            # Earlier versions did not note the databases.
            return not self._databases.are_renewed(found.get("databases", {}), record.name)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False

    def search(self, record: FastaRecord) -> str:
        """Search a sequence unless it is done, and return the outcome.

        Raises
        ------
        ToolError
            A step failed, or nothing was found and the query alone is not wanted.
        """
        if self.is_done(record):
            return "searched before"
        folder = self._staging(record)
        given = self._given(record)
        if given is None:
            outcome = self._search_alignments(record, folder)
        else:
            self._take(given, record, folder)
            outcome = "given"
        query = self._query(record, folder)
        for step in self._template_steps:
            self._run(step, record, query, folder)
        self._publish(record, folder)
        return outcome

    def copy(self, source: FastaRecord, target: FastaRecord) -> None:
        """Give a record the results of another of the same sequence."""
        if self.is_done(target):
            return
        folder = self._staging(target)
        shutil.copytree(alignment_folder(self._out, source.name), folder, dirs_exist_ok=True)
        (folder / RECORD).unlink()
        self._publish(target, folder)

    def _search_alignments(self, record: FastaRecord, folder: Path) -> str:
        for step in self._alignment_steps:
            self._run(step, record, self._query(record, folder), folder)
        paths = [result_path(folder, step) for step in self._alignment_steps]
        if any(_num_rows(path) > 1 for path in paths):
            return "searched"
        if not self._section.query_alone:
            raise ToolError(
                "nothing was found, and search.query_alone is false: set it to true to take the "
                "query alone as its alignment"
            )
        if not paths:
            self._write(self._alignment(folder), f">query\n{record.sequence}\n".encode())
        return "query alone"

    def _run(self, step: SearchStepConfig, record: FastaRecord, query: bytes, folder: Path) -> None:
        """Run a step unless its result is there from an interrupted search."""
        path = result_path(folder, step)
        if not path.is_file():
            try:
                content = run_step(step, record.sequence, query, self._section.threads)
            except ToolError as error:
                raise ToolError(f"step {step.name}: {error}") from error
            self._write(path, content)

    def _take(self, given: Path, record: FastaRecord, folder: Path) -> None:
        try:
            content = read_given(given)
            parse_a3m(content, record.sequence, str(given))
        except InputError as error:
            raise ToolError(str(error)) from error
        self._write(self._alignment(folder), content)

    def _given(self, record: FastaRecord) -> Path | None:
        folder = self._section.given
        return None if folder is None else find_given(folder, record.name)

    def _query(self, record: FastaRecord, folder: Path) -> bytes:
        """Return the alignment that programs search with: the first that has a hit."""
        paths = [*(result_path(folder, s) for s in self._alignment_steps), self._alignment(folder)]
        found = next((path for path in paths if _num_rows(path) > 1), None)
        return f">query\n{record.sequence}\n".encode() if found is None else found.read_bytes()

    def _alignment(self, folder: Path) -> Path:
        return folder / "a3m" / f"{self._fallback}.a3m"

    def _request(self, record: FastaRecord) -> dict[str, Any]:
        """Return all that a sequence's results depend on, to compare it with earlier results.

        Limits of time and memory are left out, since results do not depend on them.
        """
        limits = {"max_minutes", "max_memory_gigabytes"}
        steps = [step.model_dump(mode="json", exclude=limits) for step in self._section.steps]
        given = self._given(record)
        return {
            "sequence": hashlib.sha256(record.sequence.encode()).hexdigest(),
            "steps": steps if given is None else [s for s in steps if s["tool"] == "hhsearch"],
            "given": None if given is None else [str(given), given.stat().st_mtime_ns],
        }

    def _marks(self, record: FastaRecord) -> dict[str, str]:
        """Return the databases that a sequence is searched in."""
        steps = self._section.steps if self._given(record) is None else self._template_steps
        return self._databases.of(steps)

    def _staging(self, record: FastaRecord) -> Path:
        """Return the folder of incomplete results; those of another request are removed."""
        folder = self._out / "searching" / record.name
        note = folder / "request.json"
        request = json.dumps({**self._request(record), "databases": self._marks(record)})
        if not note.is_file() or note.read_text("utf-8") != request:
            shutil.rmtree(folder, ignore_errors=True)
            make_folder(folder)
            write_bytes(note, request.encode())
        return folder

    def _publish(self, record: FastaRecord, folder: Path) -> None:
        """Move a sequence's results to the folder that packing reads, and record them."""
        target = alignment_folder(self._out, record.name)
        former = _recorded_files(target)
        for path in _results(target):
            if former.get(path.relative_to(target).as_posix()) == path.stat().st_size:
                path.unlink()  # its step may be gone
        (target / RECORD).unlink(missing_ok=True)
        files: dict[str, int] = {}
        for path in _results(folder):
            relative = path.relative_to(folder)
            files[relative.as_posix()] = path.stat().st_size
            make_folder((target / relative).parent)
            path.replace(target / relative)
        content = {
            "request": self._request(record),
            "databases": self._marks(record),
            "files": files,
        }
        write_bytes(target / RECORD, json.dumps(content, indent=1).encode())
        shutil.rmtree(folder)

    def _write(self, path: Path, content: bytes) -> None:
        make_folder(path.parent)
        write_bytes(path, content)


def _results(folder: Path) -> list[Path]:
    """Return the results in a chain's folder.

    Template hits come first, since alignments mark a chain as complete.
    """
    return [path for kind in ("hhr", "a3m") for path in sorted((folder / kind).rglob(f"*.{kind}"))]


def _recorded_files(folder: Path) -> dict[str, int]:
    """Return the names and sizes of what an earlier search brought, not of other files."""
    try:
        return dict(json.loads((folder / RECORD).read_text("utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _num_rows(path: Path) -> int:
    return (b"\n" + path.read_bytes()).count(b"\n>") if path.is_file() else 0
