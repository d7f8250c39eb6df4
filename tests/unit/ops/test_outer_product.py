import torch
from tests.unit.ops.draws import draw

from scalefold.ops.outer_product import outer_product_mean, outer_product_operands


def test_written_out_with_the_bias_inside_the_division() -> None:
    a, b = draw(1, 5, 3, 2), draw(1, 5, 4, 2, seed=1)
    count = torch.full((1, 3, 4), 5.0)
    weight, bias = draw(6, 4, seed=2), draw(6, seed=3)
    z = draw(1, 3, 4, 6, seed=4)
    out = outer_product_mean(a, b, count, weight, bias, z)
    outer = sum(torch.outer(a[0, s, 1], b[0, s, 2]) for s in range(5)).flatten()
    torch.testing.assert_close(out[0, 1, 2], z[0, 1, 2] + (weight @ outer + bias) / (5 + 1e-3))


def test_no_shared_sequence_gives_the_bias_over_epsilon() -> None:
    zero = torch.zeros(1, 2, 3, 2)
    count, z = torch.zeros(1, 3, 3), torch.ones(1, 3, 3, 4)
    out = outer_product_mean(zero, zero, count, torch.ones(4, 4), torch.ones(4), z)
    torch.testing.assert_close(out, torch.full((1, 3, 3, 4), 1001.0))


def test_counts_above_256_are_exact_in_bfloat16() -> None:
    a = torch.ones(1, 2, 1, 1, dtype=torch.bfloat16)
    count = torch.full((1, 1, 1), 257.0)  # 256 as bfloat16
    weight = torch.full((1, 1), 128.0, dtype=torch.bfloat16)
    bias, z = torch.zeros(1).bfloat16(), torch.zeros(1, 1, 1, 1).bfloat16()
    out = outer_product_mean(a, a, count, weight, bias, z)
    assert out.dtype == torch.bfloat16
    assert out.item() == torch.tensor(256 / 257.001).bfloat16().item() < 1.0


def test_what_is_masked_takes_no_part() -> None:
    m, mask = draw(1, 4, 3, 6), torch.ones(1, 4, 3)
    mask[0, 1, 2] = mask[0, 3] = 0
    parameters = [
        draw(6),
        draw(6, seed=1),
        draw(2, 6, seed=2),
        draw(2),
        draw(2, 6),
        draw(2, seed=3),
    ]
    *operands, through = outer_product_operands(m, mask, *parameters)
    assert through is m
    for operand in operands:
        assert not operand[0, 1, 2].any()
        assert not operand[0, 3].any()
        assert operand[0, 0].all()
    m[0, 3] = draw(3, 6, seed=4)
    for operand, expected in zip(
        outer_product_operands(m, mask, *parameters), operands, strict=False
    ):
        torch.testing.assert_close(operand, expected)


def test_operands_written_out() -> None:
    m, mask = draw(2, 3, 4, 6), torch.ones(2, 3, 4)
    scale, shift, weight, bias = draw(6), draw(6, seed=1), draw(2, 6, seed=2), draw(2, seed=3)
    a, b, _ = outer_product_operands(m, mask, scale, shift, weight, bias, 2 * weight, 2 * bias)
    row = m[1, 2, 3]
    normed = (row - row.mean()) / (row.var(correction=0) + 1e-5).sqrt() * scale + shift
    torch.testing.assert_close(a[1, 2, 3], weight @ normed + bias)
    torch.testing.assert_close(b, 2 * a)
