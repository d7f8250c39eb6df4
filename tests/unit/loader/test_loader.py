import logging
import os
import re
import signal
import threading
from itertools import islice

import pytest
import torch
from tests.example import check_contract

from scalefold.errors import InputError
from scalefold.features.pipeline import training_features
from scalefold.loader import waiting, worker
from scalefold.loader.loader import TrainingLoader
from scalefold.loader.order import Position
from scalefold.loader.prepare import SampleError
from scalefold.loader.recycling import recycling_count
from scalefold.loader.waiting import StoppedWaitingError

SIZES = {"B": 1, "N": 16, "S": 4, "E": 6, "T": 2}


def take(loader, count):
    with loader:
        return list(islice(loader, count))


def same(first, second):
    assert (first.step, first.draws, first.chain_keys, first.recycling) == (
        second.step,
        second.draws,
        second.chain_keys,
        second.recycling,
    )
    same_samples(first.samples, second.samples)


def same_samples(first, second):
    for passes, others in zip(first, second, strict=True):
        for a, b in zip(passes, others, strict=True):
            assert a.keys() == b.keys()
            for name in a:
                assert torch.equal(a[name], b[name]), name


def test_batches(reader_type, loader_config):
    config = loader_config()
    reader = reader_type()
    loader = TrainingLoader(reader, config)
    sampler = loader.sampler
    for step, batch in enumerate(take(loader, 6)):
        assert batch.step == step
        assert batch.draws == [2 * step, 2 * step + 1]
        assert batch.chain_keys == [sampler.key(d) for d in batch.draws]
        assert batch.recycling == recycling_count(11, step, 3, "uniform")
        assert batch.wait_seconds > 0
        for draw, key, passes in zip(batch.draws, batch.chain_keys, batch.samples, strict=True):
            assert len(passes) == batch.recycling + 1
            for features in passes:
                check_contract(features, SIZES)
            numbers = range(len(passes))
            alone = training_features(reader.sample(key), config.features, 11, draw, numbers)
            same_samples([passes], [alone])


def test_the_step_is_the_whole_position_in_order(reader_type, loader_config):
    whole = take(TrainingLoader(reader_type(), loader_config()), 8)
    rest = take(TrainingLoader(reader_type(), loader_config(), start=Position(5)), 3)
    for first, second in zip(whole[5:], rest, strict=True):
        same(first, second)


def test_ranks_share_the_global_batch(reader_type, loader_config):
    config = loader_config(global_batch_size=4)
    whole = take(TrainingLoader(reader_type(), config), 4)
    ranks = [take(TrainingLoader(reader_type(), config, rank=r, world_size=2), 4) for r in (0, 1)]
    for batch, first, second in zip(whole, *ranks, strict=True):
        assert batch.recycling == first.recycling == second.recycling
        assert batch.draws == first.draws + second.draws
        assert batch.chain_keys == first.chain_keys + second.chain_keys
        same_samples(batch.samples, first.samples + second.samples)


def test_ends_with_the_run(reader_type, loader_config):
    batches = take(TrainingLoader(reader_type(), loader_config(steps=3)), 10)
    assert [b.step for b in batches] == [0, 1, 2]


def test_batch_must_divide(reader_type, loader_config):
    with pytest.raises(InputError, match=r"training\.global_batch_size 2"):
        TrainingLoader(reader_type(), loader_config(), rank=0, world_size=4)


@pytest.mark.parametrize("rank", [2, -1])
def test_rank_must_be_one_of_them(reader_type, loader_config, rank):
    with pytest.raises(ValueError, match=f"rank {rank} of 2"):
        TrainingLoader(reader_type(), loader_config(), rank=rank, world_size=2)


@pytest.mark.parametrize(
    ("behaviour", "error", "message"),
    [
        ("bad", InputError, r"1bbb_A .*row 7 is damaged"),
        ("broken", SampleError, r"1bbb_A .*KeyError: 'no such column'"),
    ],
)
def test_an_unusable_chain_is_named(reader_type, loader_config, behaviour, error, message):
    loader = TrainingLoader(reader_type(behaviour={"1bbb_A": behaviour}), loader_config())
    with pytest.raises(error, match=message):
        take(loader, 20)
    with pytest.raises(RuntimeError, match="closed"):
        next(loader)


def test_workers_change_nothing(reader_type, loader_config):
    expected = take(TrainingLoader(reader_type(), loader_config(), start=Position(2)), 6)
    slow_first = reader_type(behaviour={"1aaa_A": "slow"})
    found = take(TrainingLoader(slow_first, loader_config(loader_workers=2), start=Position(2)), 6)
    for first, second in zip(expected, found, strict=True):
        same(first, second)


def test_workers_share_sample_features_between_passes(reader_type, loader_config):
    for workers in (0, 1):
        loader = TrainingLoader(reader_type(), loader_config(loader_workers=workers))
        batch = next(b for b in take(loader, 8) if b.recycling)
        first, second = batch.samples[0][:2]
        assert first["all_atom_positions"] is second["all_atom_positions"]
        assert first["msa_feat"] is not second["msa_feat"]


@pytest.mark.parametrize(
    ("behaviour", "error", "message"),
    [
        ("bad", InputError, r"1bbb_A .*row 7 is damaged"),
        ("broken", SampleError, r"1bbb_A .*KeyError"),
        (
            "dies",
            SampleError,
            r"1bbb_A .*2 worker .*-9",
        ),
    ],
)
def test_failures_of_workers_surface_with_the_chain(
    reader_type, loader_config, behaviour, error, message
):
    reader = reader_type(behaviour={"1bbb_A": behaviour})
    with pytest.raises(error, match=message) as caught:
        take(TrainingLoader(reader, loader_config(loader_workers=1)), 20)
    if behaviour == "broken":
        # the worker's own traceback
        assert "in sample" in "".join(caught.value.__notes__)


def test_failures_ahead_do_not_wait_for_their_turn(reader_type, loader_config):
    """Draws 0, 1 hang; one further ahead fails: it must be raised, not waited for."""
    probe = TrainingLoader(reader_type(), loader_config())
    order = [probe.sampler.key(d) for d in range(6)]
    first, other = order[0], next(k for k in order if k != order[0])
    reader = reader_type(behaviour={first: "hangs", other: "bad"})
    loader = TrainingLoader(reader, loader_config(loader_workers=2, prefetch=6))
    with pytest.raises(InputError, match=f"chain {other} "):
        take(loader, 1)


def test_a_wait_for_hanging_workers_is_told_and_ended_by_a_request_to_stop(
    reader_type, loader_config, monkeypatch, caplog
):
    monkeypatch.setattr(waiting, "WARNING_SECONDS", 1.0)
    monkeypatch.setattr(waiting, "STOP_SECONDS", 1.0)
    monkeypatch.setattr(worker, "_CLOSE_SECONDS", 2.0)  # stopped processes ignore SIGTERM
    stop = threading.Event()
    loader = TrainingLoader(reader_type(), loader_config(loader_workers=2), stop=stop)
    next(loader)
    processes = [one.process for one in loader._pool._workers]
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
    threading.Timer(1.0, stop.set).start()
    with pytest.raises(StoppedWaitingError):
        take(loader, 19)
    assert re.search(r"waited \d+ s for samples: draw \d+, chain 1..._A", caplog.text)
    assert not any(process.is_alive() for process in processes)


def test_close_ends_hanging_workers(reader_type, loader_config):
    reader = reader_type(behaviour={k: "hangs" for k in ("1aaa_A", "1bbb_A", "1ccc_A")})
    loader = TrainingLoader(reader, loader_config(loader_workers=2))
    loader._fill()
    processes = [one.process for one in loader._pool._workers]
    assert len(processes) == 2
    loader.close()
    assert not any(process.is_alive() for process in processes)
    loader.close()


def test_a_death_loses_and_repeats_nothing(reader_type, loader_config, tmp_path):
    """The first time, the worker dies of a chain; what else it had in hand is not to blame."""
    expected = take(TrainingLoader(reader_type(), loader_config()), 6)
    dies = reader_type(behaviour={"1bbb_A": "dies once"}, marks=tmp_path)
    config = loader_config(loader_workers=2, prefetch=6)
    found = take(TrainingLoader(dies, config), 6)
    assert list(tmp_path.iterdir()), "no worker died"
    for first, second in zip(expected, found, strict=True):
        same(first, second)


KEYS = tuple(f"{number}key_A" for number in range(1000, 1060))


@pytest.fixture
def held(reader_type, loader_config, tmp_path):
    """A reader that holds back the very first sample, until it is let go."""
    sampler = TrainingLoader(reader_type(KEYS), loader_config()).sampler
    first, *others = [sampler.key(draw) for draw in range(12)]
    assert first not in others
    return reader_type(KEYS, behaviour={first: "held once"}, marks=tmp_path), tmp_path / "let go"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_slow_sample_holds_up_no_step(held, loader_config, workers, caplog):
    caplog.set_level(logging.INFO)
    reader, let_go = held
    config = loader_config(
        steps=500, global_batch_size=1, loader_workers=workers, max_staleness=400
    )
    with TrainingLoader(reader, config) as loader:
        batches = [next(loader) for _ in range(40)]  # all while one is held back
        assert 0 in loader.position(40).late
        let_go.touch()
        while batches[-1].draws != [0]:
            batches.append(next(loader))
        report, position = loader.bias.report(), loader.position(len(batches))
    draws = [b.draws[0] for b in batches]
    assert len({*draws}) == len(draws)
    assert {*draws} == {*range(len(draws)), *position.early} - {*position.late}
    assert batches[-1].lateness == [len(batches) - 1]
    assert report["latest"] == len(batches) - 1
    assert report["reordered_share"] > 0.5
    assert report["by_length"]["< 128"]["samples"] == len(batches)
    later = f"at most {len(batches) - 1} later"
    assert f" of {len(batches)} came at another step than theirs, {later} " in caplog.text


def test_staleness_is_bounded(held, loader_config):
    """A step waits for a sample that is due."""
    reader, let_go = held
    config = loader_config(
        steps=100, global_batch_size=1, loader_workers=2, prefetch=4, max_staleness=5
    )
    with TrainingLoader(reader, config) as loader:
        batches = [next(loader) for _ in range(5)]
        threading.Timer(0.5, let_go.touch).start()
        batches += [next(loader) for _ in range(6)]
    assert (batches[5].draws, batches[5].lateness) == ([0], [5])
    assert max(b.lateness[0] for b in batches) == 5


def test_ready_first_resumes_exactly(held, reader_type, loader_config):
    """Also with another number of ranks: together they serve each draw once."""
    config = loader_config(
        steps=100, global_batch_size=2, loader_workers=2, prefetch=4, max_staleness=50
    )
    with TrainingLoader(held[0], config) as loader:
        before = list(islice(loader, 4))
        position, earlier = loader.position(4), loader.position(2)
    served = [d for b in before for d in b.draws]
    assert 0 in position.late
    assert len(position.late) == len(position.early)
    assert {*range(8), *position.early} - {*position.late} == {*served}
    assert {*range(4), *earlier.early} - {*earlier.late} == {*served[:4]}

    in_order = loader_config(steps=100, global_batch_size=2)
    after = [
        d
        for rank in (0, 1)
        for b in take(TrainingLoader(reader_type(KEYS), in_order, "cpu", position, rank, 2), 6)
        for d in b.draws
    ]
    # the second rank's share of late and early draws may be another than the first's
    assert len({*served, *after}) == len(served) + len(after) == 20
    assert {*range(14)} <= {*served, *after}


def test_a_batch_does_not_depend_on_when_it_is_served(reader_type, loader_config, tmp_path):
    config = loader_config(
        steps=30, global_batch_size=1, loader_workers=2, prefetch=4, max_staleness=20
    )
    reader = reader_type()
    for batch in take(TrainingLoader(reader, config), 10):
        (draw,), (key,), (passes,) = batch.draws, batch.chain_keys, batch.samples
        assert len(passes) == batch.recycling + 1
        for index, features in enumerate(passes):
            alone = training_features(reader.sample(key), config.features, 11, draw, [index])[0]
            for name, tensor in alone.items():
                assert torch.equal(features[name], tensor), name
