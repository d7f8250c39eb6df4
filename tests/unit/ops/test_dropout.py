import math

import pytest
import torch

from scalefold.ops.dropout import dropout_mask, mix, random_bits, residual_dropout

KEY = torch.tensor([1234567890123, 7])


def reference_mix(state: int, coordinate: int) -> int:
    """SplitMix64's finaliser in Python integers."""
    full = (1 << 64) - 1
    x = (state + (coordinate + 1) * 0x9E3779B97F4A7C15) & full
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & full
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & full
    return x ^ (x >> 31)


def unsigned(x: torch.Tensor) -> int:
    return int(x) % (1 << 64)


@pytest.mark.parametrize("coordinate", [0, 1, 255, 2**31])
@pytest.mark.parametrize("state", [0, 1, 2**62 + 12345])
def test_mix_is_splitmix64(state: int, coordinate: int) -> None:
    expected = reference_mix(state, coordinate)
    assert unsigned(mix(torch.tensor(state), coordinate)) == expected
    assert unsigned(mix(torch.tensor(state), torch.tensor(coordinate))) == expected


def test_splitmix64_published_first_output() -> None:
    # First value of the SplitMix64 sequence with seed 0.
    assert unsigned(mix(torch.tensor(0), 0)) == 0xE220A8397B1DCDAF


def test_mask_of_a_slice_is_the_slice_of_the_mask() -> None:
    whole = dropout_mask(KEY, 5, 0.25, (12, 10, 8))
    part = dropout_mask(KEY, 5, 0.25, (4, 3, 8), start=(6, 2, 0))
    assert torch.equal(part, whole[:, 6:10, 2:5])


def test_mask_does_not_depend_on_shape_batch_or_generator() -> None:
    small = dropout_mask(KEY, 5, 0.25, (3, 4))
    torch.manual_seed(99)
    large = dropout_mask(KEY, 5, 0.25, (30, 40))
    assert torch.equal(small, large[:, :3, :4])
    assert torch.equal(small[1:], dropout_mask(KEY[1:], 5, 0.25, (3, 4)))


@pytest.mark.parametrize("rate", [0.1, 0.15, 0.25])
def test_rate(rate: float) -> None:
    count = 400_000
    kept = dropout_mask(torch.arange(4), 3, rate, (100, 10, 100)).double().mean().item()
    sigma = math.sqrt(rate * (1 - rate) / count)
    assert abs(kept - (1 - rate)) < 4 * sigma


def test_bits_are_uniform_and_neighbours_independent() -> None:
    bits = random_bits(torch.arange(2), 0, (64, 64, 16))
    values = ((bits >> 40) & 0xFFFFFF).double() / 2**24
    count = values.numel()
    histogram = torch.histc(values, 64, 0, 1)
    chi_square = ((histogram - count / 64) ** 2 / (count / 64)).sum().item()
    assert chi_square < 63 + 4 * math.sqrt(2 * 63)
    centred = values - 0.5
    for dim in range(4):
        a, b = centred.narrow(dim, 0, 1), centred.narrow(dim, 1, 1)
        if dim:  # neighbours along one coordinate
            size = centred.shape[dim]
            a, b = centred.narrow(dim, 0, size - 1), centred.narrow(dim, 1, size - 1)
        correlation = (a * b).mean().item() * 12
        assert abs(correlation) < 4 / math.sqrt(a.numel())
    ones = torch.stack([((bits >> bit) & 1).double().mean() for bit in range(64)])
    assert (ones - 0.5).abs().max().item() < 5 * 0.5 / math.sqrt(count)


def test_layers_keys_and_coordinates_differ() -> None:
    masks = [dropout_mask(KEY, layer, 0.5, (16, 16)) for layer in range(3)]
    masks.append(dropout_mask(KEY + 1, 0, 0.5, (16, 16)))
    masks.append(masks[0].transpose(1, 2))
    for i, first in enumerate(masks):
        for second in masks[i + 1 :]:
            agreement = (first == second).double().mean().item()
            assert abs(agreement - 0.5) < 5 * 0.5 / math.sqrt(512)


@pytest.mark.parametrize("shared", [-3, -2, None])
def test_residual_dropout(shared: int | None) -> None:
    x, update = torch.randn(2, 6, 7, 5), torch.ones(2, 6, 7, 5)
    delta = residual_dropout(x, update, KEY, 0, 0.25, shared) - x
    values = delta.round(decimals=3).unique().tolist()
    assert values == pytest.approx([0.0, 1 / 0.75], abs=1e-3)
    along_first, along_second = delta.std(dim=1).max(), delta.std(dim=2).max()
    assert (along_first < 1e-6) == (shared == -3)
    assert (along_second < 1e-6) == (shared == -2)


@pytest.mark.gpu
def test_device_does_not_matter() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    there = random_bits(KEY.cuda(), 3, (17, 5, 9)).cpu()
    assert torch.equal(there, random_bits(KEY, 3, (17, 5, 9)))
