from __future__ import annotations

import pytest
import torch
from torch import nn

from scalefold.parallel.buckets import FilledBuckets, bucket_slices


@pytest.mark.parametrize("elements", [1, 3, 64, 10_000])
def test_buckets_cover_the_buffer_once_the_last_first(elements: int) -> None:
    starts = [0, 64, 192, 256, 320]
    slices = bucket_slices(starts, 4096, elements)
    covered = [place for part in reversed(slices) for place in range(part.start, part.stop)]
    assert covered == list(range(4096))
    assert all(part.start in starts for part in slices)
    assert all(part.stop - part.start >= elements for part in slices[:-1])


class Chain(nn.Module):
    """Four layers in a row, the third without use."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ParameterList(nn.Parameter(torch.ones(4)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in (0, 1, 3):
            x = x * self.layers[number]
        return x.sum()


def _filled_buckets(model: Chain) -> tuple[FilledBuckets, list[slice]]:
    starts = [0, 4, 8, 12]
    slices = bucket_slices(starts, 16, 4)
    return FilledBuckets(list(zip(model.layers, starts, strict=True)), slices), slices


def test_buckets_are_reported_while_backward_runs_from_the_second_pass_on() -> None:
    model = Chain()
    filled, slices = _filled_buckets(model)
    events: list[str] = []
    model.layers[0].register_post_accumulate_grad_hook(lambda p: events.append("first layer"))
    for expected in (
        ["first layer", "12", "8", "4", "0"],  # it learns which gradients there are
        ["12", "8", "4", "0", "first layer"],  # 8 gets none, and holds nothing up
    ):
        events.clear()
        with filled.watch(lambda part: events.append(str(part.start))):
            model(torch.ones(4)).backward()
        assert events == expected
    assert [part.start for part in slices] == [12, 8, 4, 0]


def test_nothing_is_reported_outside() -> None:
    model = Chain()
    filled, slices = _filled_buckets(model)
    reported: list[slice] = []
    for _ in range(2):
        with filled.watch(reported.append):
            model(torch.ones(4)).backward()
    model(torch.ones(4)).backward()
    assert reported == 2 * slices


def test_a_gradient_after_its_bucket_was_sent_is_an_error() -> None:
    model = Chain()
    filled, _ = _filled_buckets(model)
    with filled.watch(lambda part: None):
        model(torch.ones(4)).backward()
    # It comes last: autograd works from the newest operation to the oldest.
    loss = (model.layers[2] * 2).sum() + model(torch.ones(4))
    with (
        pytest.raises(RuntimeError, match="must not depend on the data"),
        filled.watch(lambda part: None),
    ):
        loss.backward()


def test_an_error_in_backward_reports_nothing_more() -> None:
    filled, _ = _filled_buckets(Chain())
    reported: list[slice] = []
    with pytest.raises(KeyError), filled.watch(reported.append):
        raise KeyError
    assert reported == []
