"""Stockholm and arrays to a3m."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.search.conftest import alignment

from scalefold.errors import InputError
from scalefold.raw.a3m import parse_a3m
from scalefold.search.a3m import (
    format_a3m,
    read_stockholm,
    rename_query,
    stockholm_hits_to_a3m,
    stockholm_to_a3m,
)

STOCKHOLM = b"""# STOCKHOLM 1.0
#=GF ID query
#=GS hit/1-4 DE a description

query    MK.V
hit/1-4  MRaV
#=GR hit/1-4 PP 8888
other    .-..
#=GC RF  xx.x

query    LL-
hit/1-4  L-w
other    LIv
#=GC RF  xx.
//
"""


def test_stockholm_to_a3m() -> None:
    rows = read_stockholm(STOCKHOLM.splitlines(), "my.sto")
    assert stockholm_to_a3m(rows) == b">query\nMKVLL\n>hit/1-4\nMRaVL-w\n>other\n---LIv\n"


def test_stockholm_rows_are_cut_while_they_are_read() -> None:
    rows = read_stockholm(iter(STOCKHOLM.splitlines(keepends=True)), "my.sto", max_rows=2)
    assert stockholm_to_a3m(rows) == b">query\nMKVLL\n>hit/1-4\nMRaVL-w\n"


def test_hits_of_a_profile_have_the_query_in_front() -> None:
    rows = read_stockholm(STOCKHOLM.splitlines(), "my.sto")
    assert stockholm_hits_to_a3m(rows, "MKVLL").startswith(b">query\nMKVLL\n>query\nMKVLL\n>hit")
    assert stockholm_hits_to_a3m({}, "MKVLL") == b">query\nMKVLL\n"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (STOCKHOLM.replace(b"//", b""), "cut off"),
        (b"", "cut off"),
        (b">a\nMKV\n", "STOCKHOLM"),
        (b"# STOCKHOLM 1.0\n//\n", "no sequence"),
        (STOCKHOLM.replace(b"LIv", b"LI"), "widths"),
    ],
)
def test_refuses_what_is_no_stockholm_file(content: bytes, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        read_stockholm(content.splitlines(), "my.sto")


def test_an_alignment_is_the_same_when_it_is_written_and_read_again() -> None:
    content = alignment("3o5r_A")
    sequence = content.split(b"\n")[1:3]
    letters = b"".join(sequence).decode()
    first = parse_a3m(content, letters[:128], "first")
    assert len(first.del_val)
    again = parse_a3m(format_a3m(first), letters[:128], "again")
    for name in ("msa", "del_ptr", "del_col", "del_val"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))


def test_renames_the_first_row_only() -> None:
    assert rename_query(b"#1\t1\n>a b\nMK\n>c\nMR\n", "x") == b">x\nMK\n>c\nMR\n"
