"""Compare `parse_hhr` with Biopython's reader on all hhr files of Biopython's tests.

pip download --no-binary biopython --no-deps biopython, unpack Tests/HHsuite of it, and
python -m tools.parity.compare_hhr Tests/HHsuite
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from Bio import SearchIO

from scalefold.errors import InputError
from scalefold.raw.hhr import HhrHit, parse_hhr

CUT_OFF: Final = frozenset(
    {"2uvo_hhblits_emptytable", "2uvo_hhblits_onlyheader", "7rbx_A_hhsearch_trunc"}
)
"""Files that are refused. Biopython reads what is left of the last."""


def main() -> None:
    """Print one line for each file; exit code 1 if any is not as expected."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="Tests/HHsuite of Biopython's source")
    paths = sorted(parser.parse_args().folder.glob("*.hhr"))
    lacking = CUT_OFF - {path.stem for path in paths}
    if lacking or len(paths) == len(CUT_OFF):
        parser.error(f"no {', '.join(sorted(lacking)) or 'sound file'} there")
    all_good = True
    for path in paths:
        is_good, words = check_refused(path) if path.stem in CUT_OFF else check_equal(path)
        all_good &= is_good
        print(f"{'ok' if is_good else 'WRONG'}  {path.name}: {words}")
    raise SystemExit(0 if all_good else 1)


def check_refused(path: Path) -> tuple[bool, str]:
    """Whether a file is refused with one line, and the line."""
    text = path.read_text("utf-8")
    columns = next(line.split()[1] for line in text.splitlines() if line.startswith("Match_col"))
    try:
        hits = parse_hhr(text, "X" * int(columns), path.name)
    except InputError as error:
        return "\n" not in str(error), f"refused: {error}"
    return False, f"{len(hits)} hits are read, expected a refusal"


def check_equal(path: Path) -> tuple[bool, str]:
    """Whether both readers give the same hits, and how many, or what differs first."""
    result = SearchIO.read(path, "hhsuite2-text")
    theirs = sorted(result.hsps, key=lambda hsp: hsp.output_index)  # it groups hits by name
    ours = parse_hhr(path.read_text("utf-8"), _query(result, theirs), path.name)
    if len(ours) != len(theirs):
        return False, f"{len(ours)} hits, Biopython has {len(theirs)}"
    for number, (hit, hsp) in enumerate(zip(ours, theirs, strict=True), start=1):
        found, expected = _of_ours(hit), _of_theirs(hsp, number, result.seq_len)
        if found != expected:
            differing = [key for key in expected if found[key] != expected[key]]
            words = [f"{key} {found[key]!r} and {expected[key]!r}" for key in differing]
            return False, f"hit {number}, ours and Biopython's: {', '.join(words)}"
    return True, f"{len(ours)} hits agree in {len(found)} fields"


def _query(result: Any, hsps: list[Any]) -> str:
    """The query's residues that Biopython finds in some hit, the others X."""
    query = ["X"] * result.seq_len
    for hsp in hsps:
        query[hsp.query_start : hsp.query_end] = str(hsp.query.seq).replace("-", "")
    return "".join(query)


def _of_ours(hit: HhrHit) -> dict[str, Any]:
    identity, _, description = hit.name.partition(" ")
    return {
        "number": hit.number,
        "id": identity,
        "description": description.lstrip(" ;"),
        "probability": hit.probability,
        "E-value": hit.e_value,
        "score": hit.score,
        "query's length": hit.query_length,
        "query's start": hit.query_start,
        "query's end": hit.query_start + len(hit.query_aligned.replace("-", "")),
        "template's start": hit.template_start,
        "template's end": hit.template_start + len(hit.template_fragment),
        "query's row": hit.query_aligned,
        "template's row": hit.template_aligned,
        "pairs": list(zip(hit.q_idx.tolist(), hit.t_idx.tolist(), strict=True)),
        "aligned columns": hit.aligned_columns,
    }


def _of_theirs(hsp: Any, number: int, query_length: int) -> dict[str, Any]:
    query, template = str(hsp.query.seq), str(hsp.hit.seq)
    pairs, i, j = [], hsp.query_start, hsp.hit_start
    for a, b in zip(query, template, strict=True):
        if a != "-" and b != "-":
            pairs.append((i, j))
        i, j = i + (a != "-"), j + (b != "-")
    return {
        "number": number,
        "id": hsp.hit_id,
        "description": hsp.hit_description.rstrip(),
        "probability": hsp.prob,
        "E-value": hsp.evalue,
        "score": hsp.score,
        "query's length": query_length,
        "query's start": hsp.query_start,
        "query's end": hsp.query_end,
        "template's start": hsp.hit_start,
        "template's end": hsp.hit_end,
        "query's row": query,
        "template's row": template,
        "pairs": pairs,
        "aligned columns": len(pairs),
    }


if __name__ == "__main__":
    main()
