"""`scalefold_kernels` as other models call it, beside plain torch."""

import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from scalefold_kernels import api

ROOT = Path(__file__).parents[2]
B, N, H, D, Z, M, S, C = 1, 5, 2, 16, 32, 32, 7, 16


@pytest.fixture
def draw(device: torch.device) -> Callable[..., Tensor]:
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int, scale: float = 1.0) -> Tensor:
        x = scale * torch.randn(shape, generator=generator, device=device)
        return x.requires_grad_()

    return drawn


def compare(
    ours: Callable[..., Tensor], plain: Callable[..., Tensor], inputs: Sequence[Tensor]
) -> None:
    """Results and all gradients."""
    leaves = [x for x in inputs if x.requires_grad]
    found, expected = ours(*inputs), plain(*inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    gradient = torch.randn_like(expected)
    pairs = (torch.autograd.grad(x, leaves, gradient) for x in (found, expected))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def boltz_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor, scale: float
) -> Tensor:
    """As Boltz describes its kernel: (B, N, H, Q, D), the mask is True for keys that take part."""
    logits = scale * q @ k.mT + bias
    return torch.softmax(logits.masked_fill(~mask, -1e9), -1) @ v


def openfold_attention(query: Tensor, key: Tensor, value: Tensor, biases: list[Tensor]) -> Tensor:
    """As OpenFold's: queries come scaled, biases are added one after the other."""
    logits = query @ key.mT
    for bias in biases:
        logits = logits + bias
    return torch.softmax(logits, -1) @ value


def heads(draw: Callable[..., Tensor]) -> list[Tensor]:
    """Queries, keys, values and the pair bias."""
    return [*(draw(B, N, H, N, D) for _ in range(3)), draw(B, 1, H, N, N)]


def some(device: torch.device, *shape: int) -> Tensor:
    """A mask: True but for the last."""
    mask = torch.ones(shape, device=device, dtype=torch.bool)
    mask[..., -1] = False
    return mask


@pytest.mark.parametrize("batched", [True, False])
def test_triangle_attention_in_boltz(
    batched: bool, draw: Callable[..., Tensor], device: torch.device
) -> None:
    inputs = [*heads(draw), some(device, B, N, 1, 1, N)]
    if not batched:
        inputs = [x[0].detach().requires_grad_(x.requires_grad) for x in inputs]
    compare(
        lambda *given: api.triangle_attention(*given, scale=0.2),
        lambda *given: boltz_attention(*given, scale=0.2),
        inputs,
    )


def test_triangle_attention_in_openfold(draw: Callable[..., Tensor], device: torch.device) -> None:
    def ours(query: Tensor, key: Tensor, value: Tensor, *biases: Tensor) -> Tensor:
        mask_bias, pair_bias = biases
        return api.triangle_attention(query, key, value, pair_bias, mask_bias == 0, scale=1.0)

    query, key, value, bias = heads(draw)
    mask_bias = 1e9 * (some(device, B, N, 1, 1, N).float() - 1)
    scaled = (query * D**-0.5).detach().requires_grad_()
    compare(
        ours,
        lambda q, k, v, *biases: openfold_attention(q, k, v, list(biases)),
        [scaled, key, value, mask_bias, bias],
    )


@pytest.mark.parametrize("bare", [True, False])
def test_attention(bare: bool, draw: Callable[..., Tensor], device: torch.device) -> None:
    q, k, v, gate = (draw(B, N, 6, H, D) for _ in range(4))

    def plain(q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> Tensor:
        logits = torch.einsum("brqhd,brkhd->brhqk", q, k) * D**-0.5
        if others:
            gate, bias = others
            logits = (logits + bias[:, None]).masked_fill(~mask[:, :, None, None], -1e9)
        out = torch.einsum("brhqk,brkhd->brqhd", torch.softmax(logits, -1), v)
        return out * torch.sigmoid(gate) if others else out

    mask = some(device, B, N, 6)
    if bare:
        compare(api.attention, plain, [q, k, v])
    else:
        compare(
            lambda q, k, v, gate, bias: api.attention(q, k, v, gate=gate, bias=bias, mask=mask),
            plain,
            [q, k, v, gate, draw(B, H, 6, 6)],
        )


@pytest.mark.parametrize("direction", ["outgoing", "incoming"])
@pytest.mark.parametrize("biased", [True, False])
def test_triangle_multiplication_in_boltz(
    direction: str, biased: bool, draw: Callable[..., Tensor], device: torch.device
) -> None:
    names = ["norm_in_weight", "norm_in_bias", "norm_out_weight", "norm_out_bias"]
    names += [f"{kind}_{place}_weight" for place in ("in", "out") for kind in "pg"]
    sizes = [(Z,), (Z,), (Z,), (Z,), (2 * Z, Z), (2 * Z, Z), (Z, Z), (Z, Z)]
    if biased:
        names += [f"{kind}_{place}_bias" for place in ("in", "out") for kind in "pg"]
        sizes += [(2 * Z,), (2 * Z,), (Z,), (Z,)]
    weights = [draw(*size, scale=0.3) for size in sizes]
    mask = some(device, B, N, N)

    def ours(x: Tensor, *weights: Tensor) -> Tensor:
        given = dict(zip(names, weights, strict=True))
        return api.triangle_multiplication(x, direction, mask, **given)

    def plain(x: Tensor, *weights: Tensor) -> Tensor:
        given = dict(zip(names, weights, strict=True))

        def linear(x: Tensor, name: str) -> Tensor:
            return functional.linear(x, given[f"{name}_weight"], given.get(f"{name}_bias"))

        def norm(x: Tensor, name: str) -> Tensor:
            return functional.layer_norm(x, (Z,), given[f"{name}_weight"], given[f"{name}_bias"])

        normed = norm(x, "norm_in")
        both = linear(normed, "p_in") * torch.sigmoid(linear(normed, "g_in")) * mask[..., None]
        a, b = both.chunk(2, -1)
        places = "bikc,bjkc->bijc" if direction == "outgoing" else "bkic,bkjc->bijc"
        product = norm(torch.einsum(places, a, b), "norm_out")
        return linear(product, "p_out") * torch.sigmoid(linear(normed, "g_out"))

    x = draw(B, N, N, Z)
    compare(ours, plain, [x, *weights])
    with torch.no_grad():
        given = dict(zip(names, weights, strict=True))
        added = api.triangle_multiplication(x, direction, mask, **given, residual=x)
        torch.testing.assert_close(added, x + ours(x, *weights))


def test_layer_norm_and_projections(draw: Callable[..., Tensor]) -> None:
    x, weight, bias = draw(B, N, N, Z), draw(Z), draw(Z)
    maps = [draw(Z, Z, scale=0.2), draw(H, Z, scale=0.2)]

    def plain(x: Tensor, *norm: Tensor) -> Tensor:
        return functional.layer_norm(x, (Z,), *norm)

    compare(api.layer_norm, plain, [x, weight, bias])
    compare(
        lambda x, weight, bias, *maps: torch.cat(
            api.layer_norm_projection(x, weight, bias, maps), -1
        ),
        lambda x, weight, bias, *maps: plain(x, weight, bias) @ torch.cat(maps).T,
        [x, weight, bias, *maps],
    )


def test_outer_product_mean(draw: Callable[..., Tensor], device: torch.device) -> None:
    mask = some(device, B, S, N)

    def plain(m: Tensor, *given: Tensor) -> Tensor:
        weight, bias, *maps, out_weight, out_bias = given
        normed = functional.layer_norm(m, (M,), weight, bias)
        a, b = (functional.linear(normed, *maps[i : i + 2]) * mask[..., None] for i in (0, 2))
        outer = torch.einsum("bsic,bsjd->bijcd", a, b).flatten(-2)
        count = torch.einsum("bsi,bsj->bij", mask.float(), mask.float())[..., None]
        return functional.linear(outer, out_weight, out_bias) / (count + 1e-3)

    sizes = [(M,), (M,), (C, M), (C,), (C, M), (C,), (Z, C * C), (Z,)]
    inputs = [draw(B, S, N, M), *(draw(*size, scale=0.2) for size in sizes)]
    compare(lambda m, *given: api.outer_product_mean(m, mask, *given), plain, inputs)


def test_transition_and_residual_linear(draw: Callable[..., Tensor]) -> None:
    x, weight, bias = draw(B, N, N, Z), draw(Z), draw(Z)
    up, down = (draw(2 * Z, Z, scale=0.2), draw(2 * Z)), (draw(Z, 2 * Z, scale=0.2), draw(Z))

    def plain(x: Tensor, *given: Tensor) -> Tensor:
        normed = functional.layer_norm(x, (Z,), *given[:2])
        hidden = torch.relu(functional.linear(normed, *given[2:4]))
        return x + functional.linear(hidden, *given[4:])

    compare(api.transition, plain, [x, weight, bias, *up, *down])
    compare(
        api.residual_linear,
        lambda x, *given: x + functional.linear(*given),
        [x, draw(B, N, N, 2 * Z), *down],
    )


def test_wrong_shapes_are_named(draw: Callable[..., Tensor], device: torch.device) -> None:
    q, k, v, bias = heads(draw)
    with pytest.raises(ValueError, match=r"bias.*\(1, 2, 5, 5\).*\(1, 1, 2, 5, 5"):
        api.triangle_attention(q, k, v, bias[:, 0])
    with pytest.raises(ValueError, match=r"mask.*\("):
        api.triangle_attention(q, k, v, bias, some(device, B, N, N))
    with pytest.raises(ValueError, match=r"direction.*'in'"):
        api.triangle_multiplication(q, "in", **dict.fromkeys(WEIGHTS, q))


WEIGHTS = [
    *("norm_in_weight", "norm_in_bias", "p_in_weight", "g_in_weight"),
    *("norm_out_weight", "norm_out_bias", "p_out_weight", "g_out_weight"),
]


def alone(program: str, **environment: str) -> str:
    """What a program prints that finds the kernels' distribution and no `scalefold`."""
    head = """
        import sys
        sys.modules["scalefold"] = None
        import torch
        import scalefold_kernels
        x, w = torch.zeros(1, 2, 2, 16), torch.ones(16)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(program)],
        env={"PYTHONPATH": str(ROOT / "kernels"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_scalefold() -> None:
    program = """
        print(all(callable(getattr(scalefold_kernels, n)) for n in scalefold_kernels.__all__[1:]))
        from scalefold_kernels import layer_norm, triangle_attention
        print(layer_norm(x, w, w).sum().item())
        print(sorted(n for n in sys.modules if n.startswith(("tensorboard", "Bio"))))
    """
    assert alone(program, TRITON_INTERPRET="1").splitlines() == ["True", "64.0", "[]"]


def test_cpu_tensors_are_refused() -> None:
    program = """
        try:
            scalefold_kernels.layer_norm(x, w, w)
        except ValueError as error:
            print(error)
    """
    assert "layer_norm: the tensors are on cpu" in alone(program)


def test_without_triton_it_is_said_what_brings_it() -> None:
    program = """
        from importlib.machinery import PathFinder
        find = PathFinder.find_spec
        PathFinder.find_spec = lambda name, *rest: None if name == "triton" else find(name, *rest)
        try:
            scalefold_kernels.layer_norm(x, w, w)
        except ModuleNotFoundError as error:
            print(error)
    """
    assert "torch's CUDA build brings it" in alone(program)


def test_both_distributions_have_one_version() -> None:
    root, kernels = (
        tomllib.loads((ROOT / path).read_text("utf-8"))["project"]
        for path in ("pyproject.toml", "kernels/pyproject.toml")
    )
    assert kernels["version"] == root["version"]
    assert f"scalefold-kernels=={kernels['version']}" in root["dependencies"]
