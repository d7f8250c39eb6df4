import torch

from scalefold.ops.outer_product import outer_product_mean


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def masks(*operands: torch.Tensor) -> list[torch.Tensor]:
    return [torch.ones(operand.shape[:-1]) for operand in operands]


def test_written_out_with_the_bias_inside_the_division() -> None:
    a, b = draw(1, 5, 3, 2), draw(1, 5, 4, 2, seed=1)
    count = torch.full((1, 3, 4), 5.0)
    weight, bias = draw(6, 4, seed=2), draw(6, seed=3)
    z = draw(1, 3, 4, 6, seed=4)
    out = outer_product_mean(a, b, *masks(a, b), count, weight, bias, z)
    outer = sum(torch.outer(a[0, s, 1], b[0, s, 2]) for s in range(5)).flatten()
    torch.testing.assert_close(out[0, 1, 2], z[0, 1, 2] + (weight @ outer + bias) / (5 + 1e-3))


def test_no_shared_sequence_gives_the_bias_over_epsilon() -> None:
    zero = torch.zeros(1, 2, 3, 2)
    count, z = torch.zeros(1, 3, 3), torch.ones(1, 3, 3, 4)
    out = outer_product_mean(
        zero, zero, *masks(zero, zero), count, torch.ones(4, 4), torch.ones(4), z
    )
    torch.testing.assert_close(out, torch.full((1, 3, 3, 4), 1001.0))


def test_counts_above_256_are_exact_in_bfloat16() -> None:
    a = torch.ones(1, 2, 1, 1, dtype=torch.bfloat16)
    count = torch.full((1, 1, 1), 301.0)
    weight = torch.full((1, 1), 150.5, dtype=torch.bfloat16)
    bias, z = torch.zeros(1).bfloat16(), torch.zeros(1, 1, 1, 1).bfloat16()
    out = outer_product_mean(a, a, *masks(a, a), count, weight, bias, z)
    assert abs(out.item() - 1.0) < 2**-7


def test_what_is_masked_takes_no_part() -> None:
    a, b = draw(1, 4, 3, 2), draw(1, 4, 5, 2, seed=1)
    weight, bias, z = draw(6, 4, seed=2), draw(6, seed=3), draw(1, 3, 5, 6, seed=4)
    mask_a, mask_b = masks(a, b)
    mask_a[:, 3], mask_b[:, 3] = 0, 0
    count = torch.full((1, 3, 5), 3.0)
    out = outer_product_mean(a, b, mask_a, mask_b, count, weight, bias, z)
    a, b = a[:, :3], b[:, :3]
    expected = outer_product_mean(a, b, *masks(a, b), count, weight, bias, z)
    torch.testing.assert_close(out, expected)
