from __future__ import annotations

import string
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalefold.chem.residues import GAP, MSA_SYMBOLS, RESTYPES
from scalefold.errors import InputError
from scalefold.raw.a3m import encode_sequence, parse_a3m, read_folder
from scalefold.raw.alignment import ROW_SOURCES, Alignment, merge, profile

LETTER_CODE = {symbol: i for i, symbol in enumerate(MSA_SYMBOLS)} | {
    rare: MSA_SYMBOLS.index(common) for rare, common in zip("BUZJO", "DCEXX", strict=True)
}


def dense_deletions(alignment: Alignment) -> np.ndarray:
    """Deletion counts of all places, [N, L]."""
    dense = np.zeros(alignment.msa.shape, np.uint16)
    rows = np.repeat(np.arange(len(alignment)), np.diff(alignment.del_ptr))
    dense[rows, alignment.del_col] = alignment.del_val
    return dense


def slow_a3m(text: str) -> tuple[list[list[int]], list[list[int]]]:
    """Codes and deletion counts, letter by letter, as the format's description goes."""
    rows, deletions = [], []
    for record in text.split(">")[1:]:
        body = "".join(record.split("\n")[1:])
        row, deleted, count = [], [], 0
        for symbol in body:
            if symbol in string.ascii_lowercase:
                count += 1
            elif symbol != ".":
                row.append(LETTER_CODE[symbol])
                deleted.append(count)
                count = 0
        rows.append(row)
        deletions.append(deleted)
    return rows, deletions


def parse(text: str, sequence: str) -> Alignment:
    return parse_a3m(text.encode(), sequence, "x.a3m")


@st.composite
def a3m_texts(draw: st.DrawFn) -> tuple[str, str]:
    sequence = draw(st.text(RESTYPES, min_size=1, max_size=12))
    text = f">query\n{sequence}\n"
    for i in range(draw(st.integers(0, 5))):
        row = draw(st.text("acdx.", max_size=3))
        for _ in sequence:
            row += draw(st.sampled_from(RESTYPES + "XBZUJO----"))
            row += draw(st.text("acdx.", max_size=3))
        text += f">row{i} a.b\n{row[:5]}\n{row[5:]}\n"
    return text, sequence


@settings(max_examples=150, deadline=None, derandomize=True)
@given(a3m_texts())
def test_agrees_with_the_letter_by_letter_reading(case: tuple[str, str]) -> None:
    text, sequence = case
    alignment = parse(text, sequence)
    rows, deletions = slow_a3m(text)
    np.testing.assert_array_equal(alignment.msa, rows)
    np.testing.assert_array_equal(dense_deletions(alignment), deletions)
    assert (alignment.del_val > 0).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(a3m_texts(), a3m_texts())
def test_merge_keeps_the_first_of_equal_rows(one: tuple[str, str], two: tuple[str, str]) -> None:
    text, sequence = one
    other = f">query\n{sequence}\n" + "".join(
        f">{i}\n{''.join((two[1] * 12)[: len(sequence)])}\n" for i in range(3)
    )
    merged = merge([parse(text, sequence), parse(other, sequence)])
    expected_rows, expected_deletions, seen = [], [], set()
    for source in (text, other):
        for row, deleted in zip(*slow_a3m(source), strict=True):
            if tuple(row) not in seen:
                seen.add(tuple(row))
                expected_rows.append(row)
                expected_deletions.append(deleted)
    np.testing.assert_array_equal(merged.msa, expected_rows)
    np.testing.assert_array_equal(dense_deletions(merged), expected_deletions)


def test_worked_example() -> None:
    alignment = parse("#A3M#\n>q\nAC\r\nDE\n>r\ngA-pqDEzz\n>s x\n--BZ\n", "ACDE")
    assert alignment.msa.tolist() == [
        encode_sequence("ACDE").tolist(),
        [0, GAP, 3, 6],
        [GAP, GAP, 3, 6],
    ]
    assert alignment.del_ptr.tolist() == [0, 0, 2, 2]
    assert alignment.del_col.tolist() == [0, 2]  # the two letters behind the end do not count
    assert alignment.del_val.tolist() == [1, 2]
    dtypes = (a.dtype for a in (alignment.del_ptr, alignment.del_col, alignment.del_val))
    assert list(dtypes) == [np.uint32, np.uint16, np.uint16]


def test_select_reorders_rows_with_their_deletions() -> None:
    alignment = parse(">q\nACD\n>1\naAaaCD\n>2\nACcccD\n>3\nA-D\n", "ACD")
    order = np.array([3, 2, 0, 1])
    selected = alignment.select(order)
    np.testing.assert_array_equal(selected.msa, alignment.msa[order])
    dense = dense_deletions(alignment)
    np.testing.assert_array_equal(dense_deletions(selected), dense[order])


def test_annotation_rows_are_no_sequences() -> None:
    text = ">ss_pred PSIPRED\nHHE\n>ss_conf\n999\n>q\nACD\n>ss_predicted_protein\nACC\n"
    assert len(parse(text, "ACD")) == 2


@pytest.mark.parametrize(
    ("query", "sequence", "row"),
    [("AXD", "ACD", "ACD"), ("ACD", "AXD", "AXD"), ("AUD", "AUD", "ACD"), ("ACD", "AUD", "ACD")],
)
def test_query_may_differ_by_unknown_residues(query: str, sequence: str, row: str) -> None:
    alignment = parse(f">q\n{query}\n", sequence)
    assert alignment.msa[0].tolist() == encode_sequence(row).tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        (">ss_pred\nHHH\n", "empty"),
        ("ACD\n", "'>'"),
        (">q\nACD\n>r\nACDE\n", r"row 2 \(r\) .*4 .*3 .*1 of 2"),
        (">q\nACDE\n>r\nACDE\n", r"row 1 \(q\) .*4 .*3 .*2 of 2"),
        (">q\nACD\n>r\n", r"row 2 \(r\) .*0 "),
        (">q\nACD\n>r\nA*D\n", r"row 2 \(r\), column 2 .*'\*'"),
        (">q\nACD\n>r\nA1D\n", "'1'"),
        (">q\nAcCD\n", "first row"),
        (">q\nAED\n", "1 of 3 .*column 2: 'E' .*'C'"),
        (">q\nA-D\n", "column 2: '-'"),
    ],
)
def test_bad_alignments(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse(text, "ACD")
    assert "x.a3m" in str(caught.value)


def test_bad_sequence_and_bad_merge() -> None:
    with pytest.raises(InputError, match=r"holds \['-', 'a'\]"):
        encode_sequence("Aa-C")
    with pytest.raises(InputError, match="no alignment"):
        merge([])
    with pytest.raises(InputError, match=r"\[2, 3\] columns"):
        merge([parse(">q\nAC\n", "AC"), parse(">q\nACD\n", "ACD")])


def test_profile_is_the_frequency_of_symbols() -> None:
    msa = np.array([[0, 21], [0, 20], [4, 21], [4, 21]], np.uint8)
    result = profile(msa)
    assert result.dtype == np.float32
    assert result.shape == (2, 22)
    one_hot = np.eye(22)[msa].mean(axis=0)
    np.testing.assert_allclose(result, one_hot, rtol=0, atol=0)  # quarters are exact


def test_folder(tmp_path: Path) -> None:
    folder = tmp_path / "1abc_A"
    (folder / "a3m").mkdir(parents=True)
    (folder / "a3m/mgnify_hits.a3m").write_text(">q\nACD\n>m\nACC\n>shared\nAAA\n")
    (folder / "a3m/own.a3m").write_text(">q\nACD\n>shared too\nAAA\n>o\nDDD\n")
    alignment = read_folder(folder, "ACD", ["uniref90_hits", "own", "mgnify_hits"])
    assert ["".join(MSA_SYMBOLS[c] for c in row) for row in alignment.msa] == [
        "ACD",
        "AAA",
        "DDD",
        "ACC",
    ]
    names = [ROW_SOURCES[code] for code in alignment.row_source]
    assert names == ["other", "other", "other", "mgnify_hits"]
    with pytest.raises(InputError, match=r"uniref90_hits\.a3m"):
        read_folder(folder, "ACD", ["uniref90_hits"])


def test_real_alignments_agree_with_the_letter_by_letter_reading(
    demo: Path, shared_mirror: Path
) -> None:
    paths = [demo / "mirror/openproteinset/pdb/102m_A/a3m/swissprot_hits.a3m"]
    paths += sorted((shared_mirror / "openproteinset/pdb").glob("1*_?/a3m/mgnify_hits.a3m"))
    paths += [shared_mirror / "openproteinset/pdb/102m_A/a3m/uniref100_hits.a3m"]
    for path in paths:
        text = path.read_text()
        sequence = "".join(text.split(">")[1].split("\n")[1:])
        rows, deletions = slow_a3m(text)
        alignment = parse_a3m(text.encode(), sequence, str(path))
        np.testing.assert_array_equal(alignment.msa, rows)
        np.testing.assert_array_equal(dense_deletions(alignment), deletions)


def test_query_may_have_another_parent_of_a_modified_residue_only() -> None:
    content = b">q\nECE\n>h\nEC-\n"
    alignment = parse_a3m(content, "QCE", "x.a3m", other_parents={0: "E"})
    assert [alignment.num_other_parents, *alignment.msa[0]] == [1, *encode_sequence("QCE")]
    assert alignment.msa[1, 0] == LETTER_CODE["E"]
    assert merge([parse(">q\nQCE\n", "QCE"), alignment]).num_other_parents == 1
    for others in ({}, {0: "D"}, {1: "E"}):
        with pytest.raises(InputError, match=r"x\.a3m.*column 1"):
            parse_a3m(content, "QCE", "x.a3m", other_parents=others)


def rows_of(folder: Path, **numbers: int) -> list[str]:
    """Write alignments of a query and so many other rows, none of them alike; return the names."""
    letters = iter(f"{a}{b}{c}" for a in RESTYPES for b in RESTYPES for c in RESTYPES[1:])
    (folder / "a3m").mkdir()
    for name, number in numbers.items():
        rows = "".join(f">{i}\n{next(letters)}\n" for i in range(number))
        (folder / "a3m" / f"{name}.a3m").write_text(f">q\nAAA\n{rows}")
    return list(numbers)


def test_limits_take_the_first_rows_of_each_file(tmp_path: Path) -> None:
    names = rows_of(tmp_path, uniref90_hits=30, own=8, mgnify_hits=5)
    limits = {"uniref90_hits": 11, "mgnify_hits": 3}
    alignment = read_folder(tmp_path, "AAA", names, limits=limits.get)
    assert Counter(alignment.part[1:].tolist()) == {0: 10, 1: 8, 2: 2}
    assert alignment.cut == {"uniref90_hits": 20, "mgnify_hits": 3}
    whole = read_folder(tmp_path, "AAA", names)
    assert (len(whole), whole.cut) == (44, {})
    of_each = [whole.msa[1:][whole.part[1:] == i][:n] for i, n in enumerate((10, 8, 2))]
    np.testing.assert_array_equal(alignment.msa[1:], np.concatenate(of_each))


def test_share_keeps_the_query_and_the_same_share_of_each_file(tmp_path: Path) -> None:
    names = rows_of(tmp_path, uniref90_hits=600, absent=0, own=300, mgnify_hits=100)
    alignment = read_folder(tmp_path, "AAA", names)
    kept = alignment.share(501, names)
    assert Counter(kept.part[1:].tolist()) == {0: 300, 2: 150, 3: 50}
    assert kept.cut == {"uniref90_hits": 300, "own": 150, "mgnify_hits": 50}
    assert "".join(MSA_SYMBOLS[code] for code in kept.msa[0]) == "AAA"
    for part in range(4):
        rows = alignment.msa[1:][alignment.part[1:] == part]
        own = kept.msa[1:][kept.part[1:] == part]
        np.testing.assert_array_equal(own, rows[: len(own)])
    assert alignment.share(len(alignment), names) is alignment
    np.testing.assert_array_equal(alignment.share(1, names).msa, alignment.msa[:1])


@given(numbers=st.lists(st.integers(0, 40), min_size=1, max_size=4), number=st.integers(1, 170))
def test_share_is_as_large_as_asked_and_fair_to_a_row(numbers: list[int], number: int) -> None:
    part = np.repeat(np.arange(len(numbers)), numbers)
    length = 1 + len(part)
    empty = np.zeros(0, np.uint16)
    alignment = Alignment(
        msa=np.zeros((length, 1), np.uint8),
        del_ptr=np.zeros(length + 1, np.uint32),
        del_col=empty,
        del_val=empty,
        row_source=np.zeros(length, np.uint8),
        part=np.r_[0, part].astype(np.int64),
    )
    kept = alignment.share(number, [str(i) for i in range(len(numbers))])
    assert len(kept) == min(number, length)
    counts = np.bincount(kept.part[1:], minlength=len(numbers))
    fair = np.array(numbers) * (len(kept) - 1) / max(len(part), 1)
    assert (np.abs(counts - fair) < 1).all()
    assert kept.cut == {str(i): n - c for i, (n, c) in enumerate(zip(numbers, counts)) if n > c}
