"""How late samples were, by the length of their chains."""

from __future__ import annotations

import pyarrow as pa
import pytest

from scalefold.loader.order_bias import OrderBias

LENGTHS = {"short": 127, "edge": 128, "long": 1024}


@pytest.fixture
def bias() -> OrderBias:
    return OrderBias(pa.table({"chain_key": list(LENGTHS), "length": list(LENGTHS.values())}))


def test_a_class_ends_before_its_edge(bias: OrderBias) -> None:
    bias.add(["short", "edge", "edge", "long"], [0, 2, -1, 0])
    report = bias.report()
    assert {name: c["samples"] for name, c in report["by_length"].items()} == {
        "< 128": 1,
        "< 256": 2,
        ">= 1024": 1,
    }
    of_edge = report["by_length"]["< 256"]
    assert (of_edge["reordered_share"], of_edge["mean_lateness"]) == (1.0, 0.5)
    assert report["samples"] == bias.samples == 4
    assert (report["reordered_share"], report["mean_distance"]) == (0.5, 0.75)
    assert (report["latest"], report["earliest"]) == (2, -1)


def test_what_the_log_says(bias: OrderBias) -> None:
    bias.add(["short"], [0])
    bias.add(["edge", "long", "long"], [3, -1, -2])
    assert str(bias) == (
        "3 of 4 came at another step than theirs, at most 3 later and 2 earlier; on "
        "average, by residues of the chain: 1 to 127: 0.0, 128 to 255: 3.0 later, "
        "1024 and more: 1.5 earlier"
    )


def test_the_log_says_no_more_where_all_came_in_time(bias: OrderBias) -> None:
    bias.add(["short", "edge"], [0, 0])
    assert str(bias) == "0 of 2 came at another step than theirs"


def test_no_sample_is_no_division_by_zero(bias: OrderBias) -> None:
    assert bias.report()["by_length"] == {}
    assert bias.samples == 0
