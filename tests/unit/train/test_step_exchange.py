from __future__ import annotations

import pytest
import torch

from scalefold.train import step_exchange
from scalefold.train.step_exchange import Notice, pack


def test_the_vector_says_what_a_rank_has_to_say() -> None:
    rows = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    vector = pack(rows, torch.tensor(1), Notice(stop=True, wait_seconds=0.5))
    assert vector[: step_exchange.COLUMNS].tolist() == [0.0, 1.0, 1.0, 0.0, 0.5]
    assert vector[step_exchange.COLUMNS : step_exchange.COLUMNS + 3].tolist() == [11.0, 22.0, 33.0]
    assert vector.shape == (step_exchange.LENGTH,)


def test_a_rank_without_samples_is_absent_and_sends_as_much() -> None:
    vector = pack(torch.empty(0, 2), torch.tensor(0), Notice(ended_by_evaluation=True))
    assert vector.shape == (step_exchange.LENGTH,)
    assert vector.nonzero().flatten().tolist() == [
        step_exchange.ABSENT,
        step_exchange.ENDED_BY_EVALUATION,
    ]


def test_more_numbers_than_there_is_room_for() -> None:
    with pytest.raises(ValueError, match=r"\b60\b.*\b59\b"):
        pack(torch.zeros(1, 60), torch.tensor(0), Notice())


@pytest.mark.gpu
def test_the_host_does_not_wait() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    rows, none = torch.ones(2, 3, device="cuda"), torch.zeros((), device="cuda")
    pack(rows, none, Notice())
    torch.cuda.set_sync_debug_mode("error")
    try:
        vector = pack(rows, none, Notice(stop=True))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert vector[step_exchange.STOP] == 1
