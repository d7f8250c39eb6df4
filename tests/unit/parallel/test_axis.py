import torch

from scalefold.parallel import IdentityAxis


def test_identity_axis_moves_nothing() -> None:
    axis, x = IdentityAxis(), torch.randn(2, 3, 4)
    assert axis.size == 1
    assert axis.split(x, dim=1) is x
    assert axis.switch(x, sharded=1, to=2).wait() is x
    assert axis.gather_to_sharded(x, dim=1).wait() is x
    assert axis.gather_to_replicated(x, dim=1).wait() is x
    assert axis.reduce_to_sharded(x, dim=1).wait() is x
