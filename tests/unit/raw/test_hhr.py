from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from Bio import SearchIO

from scalefold.errors import InputError
from scalefold.raw.hhr import HhrHit, parse_hhr, read_hhr

HIT = """No 1
>pdb_00001ABC_B2 SOME PROTEIN; x
Probab=99.50  E-value=1.4e-05  Score=94.87  Aligned_cols=4  Identities=80%  Similarity=1.337  \
Sum_probs=4.5  Template_Neff=2.000

Q ss_pred           ccccc
Q query             2 CDE-FG    6 (7)
Q Consensus         2 cde~fg    6 (7)
                      || |
T Consensus        11 cDeHf~   16 (30)
T pdb_00001ABC_B   11 CDEHF-   15 (30)
T ss_dssp             HHHHHH
Confidence            99 99


"""
HEAD = "Query         query\nMatch_columns 7\nNo_of_seqs    1 out of 1\nCommand       hhsearch \n\n"
LIST = " No Hit                             Prob E-value\n"
FILE = f"{HEAD}{LIST}  1 pdb_00001ABC_B2                99.5 1.4E-05\n\n"
SEQUENCE = "ACDEFGH"


def alignment_query(chain_folder: Path) -> str:
    text = next((chain_folder / "a3m").glob("*.a3m")).read_text()
    return "".join(text.split(">")[1].split("\n")[1:])


def assert_same_as_biopython(path: Path, hits: list[HhrHit]) -> None:
    """Bio.SearchIO reads all but Sum_probs; its hits are grouped by name, ours are not."""
    by_name: dict[str, list[HhrHit]] = {}
    for hit in hits:
        by_name.setdefault(hit.name.split()[0], []).append(hit)
    result = SearchIO.read(path, "hhsuite3-text")
    assert {hit.id for hit in result} == set(by_name)
    for group in result:
        ours = by_name[group.id]
        assert len(group.hsps) == len(ours)
        for theirs, hit in zip(group.hsps, ours, strict=True):
            assert theirs.query_start == hit.q_idx[0]
            assert theirs.hit_start == hit.t_idx[0] == hit.template_start
            assert theirs.query_end == hit.q_idx[-1] + 1
            assert theirs.hit_end == hit.t_idx[-1] + 1
            assert str(theirs.query.seq) == hit.query_aligned
            assert str(theirs.hit.seq) == hit.template_aligned
            assert theirs.evalue == hit.e_value
            assert theirs.score == hit.score
            assert theirs.prob == hit.probability


def test_bundled_files_agree_with_biopython(demo: Path) -> None:
    folders = sorted((demo / "mirror/openproteinset/pdb").iterdir())
    assert len(folders) >= 12
    for folder in folders:
        path = folder / "hhr/pdb70_hits.hhr"
        hits = read_hhr(path, alignment_query(folder))
        assert_same_as_biopython(path, hits)
        # Every chain is in the searched database and finds itself.
        assert folder.name in [hit.chain_key for hit in hits]


def test_openproteinset_files_agree_with_biopython(shared_mirror: Path) -> None:
    for key, count in (("1a3p_A", 432), ("1a02_F", 500)):
        folder = shared_mirror / "openproteinset/pdb" / key
        hits = read_hhr(folder / "hhr/pdb70_hits.hhr", alignment_query(folder))
        assert len(hits) == count
        assert [hit.number for hit in hits] == list(range(1, count + 1))
        assert_same_as_biopython(folder / "hhr/pdb70_hits.hhr", hits)


def test_index_pairs_are_the_aligned_letters(demo: Path) -> None:
    folder = demo / "mirror/openproteinset/pdb/2nwd_X"
    query = alignment_query(folder)
    hits = read_hhr(folder / "hhr/pdb70_hits.hhr", query)
    gapped = next(hit for hit in hits if hit.chain_key == "1hml_A")
    columns = zip(gapped.query_aligned, gapped.template_aligned, strict=True)
    pairs = [(q, t) for q, t in columns if "-" not in (q, t)]
    assert [query[i] for i in gapped.q_idx] == [q for q, _ in pairs]
    fragment = gapped.template_fragment
    assert [fragment[i - gapped.template_start] for i in gapped.t_idx] == [t for _, t in pairs]
    assert len(pairs) == gapped.aligned_columns
    assert "-" in gapped.template_aligned


def test_all_fields() -> None:
    (hit,) = parse_hhr(FILE + HIT, SEQUENCE, "x.hhr")
    assert (hit.number, hit.chain_key, hit.entry_id) == (1, "pdb_00001abc_B2", "pdb_00001abc")
    assert hit.name == "pdb_00001ABC_B2 SOME PROTEIN; x"
    assert (hit.probability, hit.e_value, hit.score) == (99.5, 1.4e-5, 94.87)
    assert (hit.aligned_columns, hit.identities, hit.similarity) == (4, 0.8, 1.337)
    assert (hit.sum_probs, hit.template_neff) == (4.5, 2.0)
    assert (hit.query_length, hit.template_length, hit.template_start) == (7, 30, 10)
    assert (hit.query_aligned, hit.template_aligned) == ("CDE-FG", "CDEHF-")
    assert hit.template_fragment == "CDEHF"
    assert hit.q_idx.tolist() == [1, 2, 3, 4]
    assert hit.t_idx.tolist() == [10, 11, 12, 14]
    assert hit.q_idx.dtype == hit.t_idx.dtype == np.int32


@pytest.mark.parametrize(
    ("title", "chain_key"),
    [
        ("4D10_F COP9 SIGNALOSOME COMPLEX SUBUNIT 1; 3.8A {HOMO SAPIENS}", "4d10_F"),
        ("5aj3_k", "5aj3_k"),  # 5AJ3 has a chain K too
        ("AF-P00750-F1-model_v4_A", "af-p00750-f1-model_v4_A"),
        ("PF00187.18 Chitin recognition protein", "_PF00187.18"),
    ],
)
def test_names_of_hits(title: str, chain_key: str) -> None:
    """Of any database whose names end in a chain; elsewhere one other name ends the whole run."""
    (hit,) = parse_hhr(FILE + HIT.replace("pdb_00001ABC_B2 SOME PROTEIN; x", title), SEQUENCE, "x")
    assert (hit.name, hit.chain_key) == (title, chain_key)


def test_no_hit_is_no_error() -> None:
    assert parse_hhr(f"{HEAD}{LIST}\n", SEQUENCE, "x.hhr") == []


def listing(num_listed: int, num_shown: int, options: str) -> str:
    """Return a file that hhsearch wrote with some options, all hits the same."""
    head = HEAD.replace("hhsearch ", f"hhsearch -i x.a3m {options} ")
    listed = "".join(f"{n:3} pdb_00001ABC_B2   99.5\n" for n in range(1, num_listed + 1))
    shown = [HIT.replace("No 1", f"No {n}", 1) for n in range(1, num_shown + 1)]
    return head + LIST + listed + "\n" + "".join(shown)


@pytest.mark.parametrize(
    ("num_listed", "num_shown", "options"),
    [
        (12, 12, ""),
        (3, 3, "-z 1 -b 1"),
        (502, 500, "-Z 600"),  # -B is 500
        (12, 4, "-B 4"),
        (10, 1, "-b 1"),  # 9 of the 10 that are listed at least are too weak
        (10, 12, "-b 12"),
        (2, 0, "-B 0"),
    ],
)
def test_hits_are_shown_as_far_as_hhsearch_was_asked_to(
    num_listed: int, num_shown: int, options: str
) -> None:
    """One hit less is a file that was cut between two hits; more may be there."""
    assert len(parse_hhr(listing(num_listed, num_shown, options), SEQUENCE, "x")) == num_shown
    if num_shown:
        less = num_shown - 1 if num_shown <= num_listed else num_listed - 1
        with pytest.raises(InputError, match=f"{less} .*{num_listed}"):
            parse_hhr(listing(num_listed, less, options), SEQUENCE, "x")


def test_a_file_cut_behind_any_line_is_refused(demo: Path) -> None:
    folder = demo / "mirror/openproteinset/pdb/2nwd_X"
    query = alignment_query(folder)
    lines = (folder / "hhr/pdb70_hits.hhr").read_text().rstrip("\n").splitlines(keepends=True)
    last_row = max(n for n, line in enumerate(lines) if line.startswith("T "))
    assert len(parse_hhr("".join(lines[: last_row + 1]), query, "x.hhr")) == 3
    for number in range(last_row + 1):
        with pytest.raises(InputError, match=r"x\.hhr"):
            parse_hhr("".join(lines[:number]), query, "x.hhr")


def test_unknown_query_letters_agree() -> None:
    assert len(parse_hhr(FILE + HIT, "AXDEFGH", "x.hhr")) == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (FILE, "", "'Match_columns'"),
        ("Match_columns 7", "Match_columns 8", "8 columns, .* 7 residues"),
        ("CDE-FG", "CDW-FG", "2-6 .*CDWFG.*CDEFG"),
        ("Sum_probs=4.5", "", "Sum_probs"),
        ("Sum_probs=4.5", "Sum_probs=4;5", "Sum_probs .*'4;5'"),
        ("Aligned_cols=4", "Aligned_cols=40", "4 .*Aligned_cols .*40"),
        ("CDEHF-   15", "CDEHF-   16", "row T .*11-16.*11-15"),
        ("T pdb_00001ABC_B   11 CDEHF-   15 (30)", "", "6 query .*0 template"),
        (">pdb_00001ABC_B2 SOME PROTEIN; x", ">", "no name"),
        (HIT[5:], "", "title"),
        (HIT, "", "0 hits .*1"),
        (FILE[len(HEAD) :] + HIT, "", "list of hits"),
    ],
)
def test_bad_files(old: str, new: str, message: str) -> None:
    text = FILE + HIT
    assert old in text
    with pytest.raises(InputError, match=message) as caught:
        parse_hhr(text.replace(old, new, 1), SEQUENCE, "x.hhr")
    assert "x.hhr" in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_hhr(tmp_path / "none.hhr", SEQUENCE)


def test_query_may_have_another_parent_of_a_modified_residue_only() -> None:
    sequence = SEQUENCE.replace("F", "Y")
    assert len(parse_hhr(FILE + HIT, sequence, "x.hhr", {4: "F"})) == 1
    for others in ({}, {4: "W"}, {3: "F"}):
        with pytest.raises(InputError, match=r"x\.hhr"):
            parse_hhr(FILE + HIT, sequence, "x.hhr", others)


HUGE = "9" * 5000
"""More digits than Python takes for a number."""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        *((f"{name}=", f"{name}={value} ") for value in ("nan", "inf", "-inf", "1e999", HUGE)
          for name in ("Probab", "E-value", "Score", "Aligned_cols", "Similarity", "Sum_probs")),
        ("Identities=80%", "Identities=nan%"),
        ("Probab=99.50", "Probab=100.5"),
        ("Probab=99.50", "Probab=-1"),
        ("Sum_probs=4.5", "Sum_probs=-4.5"),
        ("Sum_probs=4.5", "Sum_probs=1e300"),
        ("Template_Neff=2.000", "Template_Neff=nan"),
        ("No 1\n", f"No {HUGE}\n"),
        ("Match_columns 7", f"Match_columns {HUGE}"),
        ("Command       hhsearch", f"Command       hhsearch -z {HUGE}"),
        ("6 (7)", f"{HUGE} (7)"),
        ("15 (30)", f"15 ({HUGE})"),
        ("15 (30)", "15 (14)"),
        ("T pdb_00001ABC_B   11 CDEHF-   15 (30)", "T x 4294967297 CDEHF- 4294967301 (4294967400)"),
        ("T pdb_00001ABC_B   11 CDEHF-   15 (30)", f"T x {2**64} CDEHF- {2**64 + 4} ({2**65})"),
        ("T pdb_00001ABC_B   11 CDEHF-   15 (30)", "T x 0 CDEHF- 4 (30)"),
        ("Q query             2 CDE-FG    6 (7)", "Q query 0 CDE-FG 4 (7)"),
    ],
)  # fmt: skip
def test_numbers_out_of_range(old: str, new: str) -> None:
    text = FILE + HIT
    assert old in text
    with pytest.raises(InputError, match=r"x\.hhr"):
        parse_hhr(text.replace(old, new, 1), SEQUENCE, "x.hhr")
