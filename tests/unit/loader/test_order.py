"""The order of serving, over random histories of what is ready when."""

import random

import pytest

from scalefold.loader.order import Position, ServingOrder, overtaken


def serve(order, steps, generator, ahead=6, speed=0.4):
    """Serve steps; each outstanding draw becomes ready at random, now and then."""
    served: dict[int, list[int]] = {}
    ready: set[int] = set()
    while len(served) < steps:
        while len(order.outstanding) < ahead:
            order.take_up()
        chosen = order.choose(ready)
        if chosen is None:
            ready |= {d for d in order.outstanding if generator.random() < speed / (1 + d % 7)}
            continue
        step = order.step
        lateness = order.serve(chosen)
        assert lateness == [step - order.place(d) for d in chosen]
        served[step] = chosen
    return served


def flat(served):
    return [draw for draws in served.values() for draw in draws]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("local", "size", "staleness"), [(1, 1, 3), (2, 3, 4), (3, 2, 100)])
def test_each_draw_once_and_never_too_late(seed, local, size, staleness):
    generator = random.Random(seed)
    everything = []
    for rank in range(size):
        order = ServingOrder(Position(0), local, local * size, rank, staleness)
        served = serve(order, 60, generator, ahead=local * 4)
        for step, draws in served.items():
            assert draws == sorted(draws)
            assert len(draws) == local
            for draw in draws:
                assert draw % (local * size) // local == rank
                assert step - order.place(draw) <= staleness
        position = order.position(60)
        first = {d for d in range(60 * local * size) if d % (local * size) // local == rank}
        assert {*flat(served)} == (first | {*position.early}) - {*position.late}
        assert len(position.early) == len(position.late)
        everything += flat(served)
    assert len({*everything}) == len(everything) == 60 * local * size


def test_in_order_is_in_order_whatever_is_ready_first():
    order = ServingOrder(Position(0), 2, 2, 0, 0)
    served = serve(order, 20, random.Random(0))
    assert served == {step: [2 * step, 2 * step + 1] for step in range(20)}
    assert order.position(20) == Position(20)
    assert order.in_place


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (2, 4), (4, 1)])
def test_resuming_loses_and_repeats_nothing(seed, before, after):
    """With any number of ranks, before and after, in any mode after."""
    generator = random.Random(seed)
    batch, stop = 4, 15
    seen, positions = [], []
    for rank in range(before):
        order = ServingOrder(Position(0), batch // before, batch, rank, 6)
        served = serve(order, stop + 2, generator)
        positions.append(order.position(stop))  # the last two steps came to nothing
        seen += flat({s: d for s, d in served.items() if s < stop})
    position = Position.union(positions)
    assert Position.of_state(position.state()) == position
    late: dict[int, int] = {}
    for rank in range(after):
        order = ServingOrder(position, batch // after, batch, rank, generator.choice([0, 6]))
        assert order.in_place == (not position.late and order._max_staleness == 0)
        served = serve(order, 40, generator)
        seen += flat(served)
        late |= {d: s for s, draws in served.items() for d in draws if order.place(d) < stop}
        final = order.position(stop + 40)
        assert final.step == stop + 40
    assert len({*seen}) == len(seen) == (stop + 40) * batch
    assert {*position.late} == {*late}
    # nothing is left behind: all but the last steps' draws were seen
    assert {*range((stop + 20) * batch)} <= {*seen}


def test_early_draws_of_an_earlier_resume_are_not_served_again():
    order = ServingOrder(Position(10, (5, 6, 7), (12, 13, 14)), 1, 1, 0, 0)
    for _ in range(3):
        order.serve([order.take_up()])
    assert order.position(13) == Position(13, (10, 11), (13, 14))


def test_a_position_is_kept_by_whoever_goes_on_from_it_and_serves_nothing():
    """Early draws, too, which lie behind all that was taken up since."""
    position = Position(3, late=(2,), early=(9, 11))
    assert ServingOrder(position, 2, 2, 0, max_staleness=8).position(3) == position


def test_position_of_a_step_long_gone():
    order = ServingOrder(Position(0), 1, 1, 0, 0)
    serve(order, 20, random.Random(0))
    with pytest.raises(ValueError, match=r"step 2 .*step 20"):
        order.position(2)


def test_overtaken():
    assert overtaken([1, 2, 3, 4], []) == 0
    assert overtaken([1, 2, 3, 4], [1]) == 0
    assert overtaken([1, 2, 3, 4], [1, 3]) == 1
    assert overtaken([1, 2, 3, 4], [4]) == 3
