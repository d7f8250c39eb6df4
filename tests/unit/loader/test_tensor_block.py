import multiprocessing
import threading
from typing import NamedTuple

import numpy as np
import torch

from scalefold.loader.tensor_block import Message, TensorBlock, receive, send

CPU = torch.device("cpu")


class Pair(NamedTuple):
    number: int
    tensor: torch.Tensor


def value():
    shared = torch.arange(12, dtype=torch.int64).view(3, 4)
    return {
        "pair": Pair(2**62, torch.randn(5, 7, generator=torch.Generator().manual_seed(0))),
        "shared": [shared, shared],
        "other layout": shared.T,
        "empty": torch.zeros(0, 3),
        "bits": torch.tensor([True, False, True]),
        # numpy gives such arrays any stride, and torch takes it over
        "empty array": torch.from_numpy(np.zeros(9, np.int32)[3:][6:]),
        "no elements": torch.from_numpy(np.arange(9)[np.zeros(9, bool)].astype(np.int32)),
        "one of many": torch.arange(12, dtype=torch.int64)[::5][1:2],
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "bytes": torch.arange(200_000, dtype=torch.int32).to(torch.uint8),
    }


def check(found):
    expected = value()
    assert found["pair"].number == 2**62
    assert torch.equal(found["pair"].tensor, expected["pair"].tensor)
    assert found["shared"][0] is found["shared"][1]
    for name in expected.keys() - {"pair", "shared"}:
        assert found[name].dtype == expected[name].dtype
        assert torch.equal(found[name], expected[name]), name
    assert torch.equal(found["shared"][0], expected["shared"][0])


def test_packed_and_opened():
    check(TensorBlock.pack(value()).open(CPU))


def test_through_a_pipe():
    ours, theirs = multiprocessing.Pipe()
    sender = threading.Thread(target=send, args=(theirs, "which", Message.of(value())))
    sender.start()
    which, header = ours.recv()
    received = receive(ours, header)
    sender.join()
    assert which == "which"
    check(received.open(CPU))
    theirs.close()
    ours.close()
