import torch

from scalefold.parallel import Axis, IdentityAxis
from scalefold.parallel.one_share import OneShareAxis


def test_identity_axis_moves_nothing() -> None:
    axis, x = IdentityAxis(), torch.randn(2, 3, 4)
    assert axis.size == 1
    assert axis.split(x, dim=1) is x
    assert axis.switch(x, sharded=1, to=2).wait() is x
    assert axis.gather_to_sharded(x, dim=1).wait() is x
    assert axis.gather_to_replicated(x, dim=1).wait() is x
    assert axis.reduce_to_sharded(x, dim=1).wait() is x


def test_one_share_has_the_shapes_of_a_rank() -> None:
    axis: Axis = OneShareAxis(2)
    whole = torch.randn(1, 4, 6, 3)
    rows = axis.split(whole, dim=1)
    assert rows.shape == (1, 2, 6, 3)
    assert axis.switch(rows, sharded=1, to=2).wait().shape == (1, 4, 3, 3)
    assert axis.gather_to_sharded(rows, dim=1).wait().shape == whole.shape
    assert axis.gather_to_replicated(rows, dim=1).wait().shape == whole.shape
    assert axis.reduce_to_sharded(whole, dim=1).wait().shape == rows.shape
