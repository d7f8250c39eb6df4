import torch

from scalefold.ops.norm import layer_norm, normed_projection
from scalefold.ops.precision import accumulation_dtype
from scalefold.ops.transition import transition


def test_statistics_of_bfloat16_are_taken_in_float32() -> None:
    x = (100 + torch.arange(64) % 2).bfloat16()  # variance 1/4 at mean 100.5: lost in bfloat16
    out = layer_norm(x, torch.ones(64).bfloat16(), torch.zeros(64).bfloat16())
    torch.testing.assert_close(out.abs().float(), torch.ones(64), atol=0.01, rtol=0)


def test_projections_share_one_normalisation() -> None:
    x, weights = torch.randn(3, 4), [torch.randn(5, 4), torch.randn(2, 4)]
    norm = torch.randn(4), torch.randn(4)
    first, second, through = normed_projection(x, *norm, weights, [torch.randn(5), None])
    assert first.shape == (3, 5)
    torch.testing.assert_close(second, layer_norm(x, *norm) @ weights[1].T)
    assert through is x
    half, thrice, _ = normed_projection(x, *norm, weights, [None, None], 0.5, 3.0)
    torch.testing.assert_close(half, 0.5 * layer_norm(x, *norm) @ weights[0].T)
    torch.testing.assert_close(thrice, 3.0 * second)


def test_transition_written_out() -> None:
    x, norm = torch.randn(3, 4), (torch.ones(4), torch.zeros(4))
    up, down = (torch.randn(8, 4), torch.randn(8)), (torch.randn(4, 8), torch.randn(4))
    expected = (layer_norm(x, *norm) @ up[0].T + up[1]).clamp(min=0) @ down[0].T + down[1] + x
    torch.testing.assert_close(transition(x, *norm, *up, *down), expected)


def test_accumulation_dtype() -> None:
    assert accumulation_dtype(torch.bfloat16) == torch.float32
    assert accumulation_dtype(torch.float64) == torch.float64
