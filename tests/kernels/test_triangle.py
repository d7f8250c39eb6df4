"""Triangle multiplication, part by part and whole, against the float64 reference."""

from collections.abc import Callable, Sequence
from types import ModuleType

import pytest
import torch
from torch import Tensor

from scalefold.ops import triangle as reference
from scalefold.ops.dropout import Dropout
from scalefold_kernels import gpu
from scalefold_kernels.ops import triangle
from scalefold_kernels.ops.triangle import hopper, triton
from scalefold_kernels.ops.triangle.arguments import Product, Sizes
from scalefold_kernels.ops.triangle.hopper import product as hopper_product
from scalefold_kernels.ops.triangle.op import _BACKENDS

# float32 sums of some hundred terms, standardised twice: rounding errors of about 1e-6.
CLOSE = {"atol": 2e-5, "rtol": 2e-5}
DIRECTIONS = ["outgoing", "incoming"]


def draw(*shape: int, seed: int = 0, device: torch.device | str = "cpu") -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def arguments(pair: int, hidden: int, *size: int, device: torch.device) -> list[Tensor]:
    """z, mask, parameters of the projection (12) and of the output (4), all leaves."""
    z = 2 * draw(*size, pair, device=device) + 0.5
    mask = (draw(*size, seed=1, device=device) > -1).float()
    shapes = [(pair,), (pair,), *[(hidden, pair), (hidden,)] * 4, (pair, pair), (pair,)]
    shapes += [(hidden,), (hidden,), (pair, hidden), (pair,)]
    parameters = []
    for i, shape in enumerate(shapes):
        x = draw(*shape, seed=2 + i, device=device) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.3)
        parameters.append(x + 1 if i in (0, 12) else x)
    return [z.requires_grad_(), mask, *(p.requires_grad_() for p in parameters)]


def update(ops, direction: str, dropout: Dropout | None = None) -> Callable[..., Tensor]:
    """The whole update, as the model makes it of its parts."""

    def run(z: Tensor, mask: Tensor, *parameters: Tensor) -> Tensor:
        a, b, gate, z = ops.triangle_projection(z, mask, *parameters[:12])
        product = getattr(ops, f"triangle_product_{direction}")(a, b)
        return ops.triangle_output(z, product, gate, *parameters[12:], dropout)

    return run


def results(function: Callable, inputs: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Outputs and the gradients of all inputs that take one."""
    inputs = [x.detach().to(dtype).requires_grad_(x.requires_grad) for x in inputs]
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    grads = [draw(*o.shape, seed=40 + i).to(o) for i, o in enumerate(outputs)]
    leaves = [x for x in inputs if x.requires_grad]
    return [*outputs, *torch.autograd.grad(outputs, leaves, grads)]


def assert_as_exact_as_torch(ours: Callable, theirs: Callable, inputs: Sequence[Tensor]) -> None:
    """bfloat16: error against float64 at most twice that of torch in bfloat16."""
    inputs = [x.detach().bfloat16().requires_grad_(x.requires_grad) for x in inputs]
    exact = results(theirs, inputs, torch.float64)
    torchs = results(theirs, inputs, torch.bfloat16)
    found = results(ours, inputs, torch.bfloat16)
    for i, (x, y, right) in enumerate(zip(found, torchs, exact, strict=True)):
        error, limit = ((v.double() - right).norm() / right.norm() for v in (x, y))
        assert error <= 2 * limit, (i, error, limit)


SIZES = [
    (32, 32, 1, 4, 4),
    (20, 40, 2, 5, 5),  # channels that are no power of two; two samples
    (64, 64, 1, 3, 3),  # template block
    (136, 36, 1, 3, 3),  # wider than a tile
    (36, 136, 1, 3, 3),
    (16, 24, 1, 1, 1),  # Triton makes a constant of a size that is 1
]


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("pair", "hidden", "batch", "rows", "columns"), SIZES)
def test_update_and_gradients(
    direction: str,
    pair: int,
    hidden: int,
    batch: int,
    rows: int,
    columns: int,
    device: torch.device,
) -> None:
    inputs = arguments(pair, hidden, batch, rows, columns, device=device)
    ours = results(update(triangle, direction), inputs, torch.float32)
    exact = results(update(reference, direction), inputs, torch.float64)
    for x, y in zip(ours, exact, strict=True):
        scale = y.abs().max()
        torch.testing.assert_close(x.double() / scale, y / scale, **CLOSE)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_shards_with_other_strides(direction: str, device: torch.device) -> None:
    """With DAP one operand has more rows than the other, and comes channels last from a gather."""
    a, b = draw(1, 3, 6, 5, device=device), draw(1, 6, 6, 5, seed=1, device=device)
    if direction == "incoming":
        a, b = a[:, :, :4], b[:, :3]
    a, b = a.requires_grad_(), b.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    b = b.detach().requires_grad_()
    name = f"triangle_product_{direction}"
    ours = results(getattr(triangle, name), [a, b], torch.float32)
    exact = results(getattr(reference, name), [a, b], torch.float64)
    for x, y in zip(ours, exact, strict=True):
        torch.testing.assert_close(x.double(), y, **CLOSE)


def test_strided_inputs(device: torch.device) -> None:
    inputs = arguments(24, 16, 1, 5, 3, device=device)
    plain = results(triangle.triangle_projection, inputs[:14], torch.float32)
    turned = [x.detach().clone() for x in inputs[:14]]
    turned[0] = turned[0].transpose(1, 2).contiguous().transpose(1, 2)
    turned[1] = turned[1].mT.contiguous().mT
    turned = [x.requires_grad_(y.requires_grad) for x, y in zip(turned, inputs, strict=False)]
    for x, y in zip(
        results(triangle.triangle_projection, turned, torch.float32), plain, strict=True
    ):
        assert torch.equal(x, y)


def test_nothing_comes_from_masked_pairs(device: torch.device) -> None:
    z, _, *parameters = arguments(32, 32, 1, 4, 4, device=device)
    mask = torch.zeros(1, 4, 4, device=device)
    values = results(update(triangle, "outgoing"), [z, mask, *parameters], torch.float32)
    assert all(v.isfinite().all() for v in values)
    a, b, _, _ = triangle.triangle_projection(z, mask, *parameters[:12])
    assert (a == 0).all()
    assert (b == 0).all()


@pytest.mark.usefixtures("poisoned_memory")
@pytest.mark.parametrize("shared_dim", [-3, -2, -1, None])
def test_dropout_of_the_update(shared_dim: int | None, device: torch.device) -> None:
    inputs = arguments(20, 24, 2, 3, 5, device=device)
    inputs[0] = inputs[0].detach().requires_grad_()
    key = torch.tensor([11, -(1 << 60)], device=device)
    product, gate = draw(2, 3, 5, 24, seed=31), draw(2, 3, 5, 20, seed=32)
    inputs = [inputs[0], *(x.to(device).requires_grad_() for x in (product, gate)), *inputs[14:]]
    dropout = Dropout(key, 1, 0.4, shared_dim)
    ours = results(lambda *x: triangle.triangle_output(*x, dropout=dropout), inputs, torch.float32)
    exact = results(
        lambda *x: reference.triangle_output(*x, dropout=dropout), inputs, torch.float64
    )
    for x, y in zip(ours, exact, strict=True):
        torch.testing.assert_close(x.double(), y, **CLOSE)
    dropped = exact[0] == inputs[0]
    assert 0 < dropped.sum() < dropped.numel()
    assert (ours[0][dropped] == inputs[0][dropped]).all()


@pytest.mark.parametrize("unused", [0, 1, 2, 3])
def test_an_output_without_a_gradient(unused: int, device: torch.device) -> None:
    inputs = arguments(16, 24, 1, 3, 3, device=device)[:14]
    inputs = [inputs[0], *(x.detach() for x in inputs[1:])]

    def some(ops) -> Callable:
        return lambda *x: tuple(o for i, o in enumerate(ops.triangle_projection(*x)) if i != unused)

    ours = results(some(triangle), inputs, torch.float32)
    exact = results(some(reference), inputs, torch.float64)
    for x, y in zip(ours, exact, strict=True):
        torch.testing.assert_close(x.double(), y, **CLOSE)


def test_same_bits_every_time(device: torch.device) -> None:
    inputs = arguments(32, 32, 1, 7, 7, device=device)
    first, second = (results(update(triangle, "incoming"), inputs, torch.float32) for _ in "12")
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_wrong_types_are_named() -> None:
    inputs = arguments(16, 16, 1, 2, 2, device=torch.device("cpu"))
    with pytest.raises(ValueError, match="float64"):
        triangle.triangle_projection(*(x.double() for x in inputs[:14]))
    wrong = [x.detach().double() for x in inputs[14:]]
    with pytest.raises(ValueError, match=r"float32.*float64"):
        triangle.triangle_output(inputs[0], inputs[0], inputs[0], *wrong, dropout=None)


def test_wrong_shapes_are_named(device: torch.device) -> None:
    inputs = [x.detach() for x in arguments(16, 24, 2, 3, 5, device=device)]
    z, mask, *parameters = inputs
    with pytest.raises(ValueError, match=r"mask.*\(1, 3, 5\).*\(2, 3, 5\)"):
        triangle.triangle_projection(z, mask[:1], *parameters[:12])
    with pytest.raises(ValueError, match=r"b_gate.*\(23, 16\).*\(24, 16\)"):
        triangle.triangle_projection(z, mask, *parameters[:8], parameters[8][1:], *parameters[9:12])
    product = draw(2, 3, 5, 24, device=device)
    with pytest.raises(ValueError, match=r"gate.*\(2, 3, 5, 15\).* 16\)"):
        triangle.triangle_output(z, product, z[..., 1:], *parameters[12:], dropout=None)
    with pytest.raises(ValueError, match=r"product.*\(24, 2, 2, 5\)"):
        triangle.triangle_output(z, product[:, 1:], z, *parameters[12:], dropout=None)
    dropout = Dropout(torch.zeros(2, dtype=torch.int64, device=device), 0, 0.5, -4)
    with pytest.raises(ValueError, match=r"-3\.\.\.-1"):
        triangle.triangle_output(z, product, z, *parameters[12:], dropout=dropout)
    dropout = Dropout(torch.zeros(1, dtype=torch.int64, device=device), 0, 0.5, -1)
    with pytest.raises(ValueError, match=r"\b2\b.*keys"):
        triangle.triangle_output(z, product, z, *parameters[12:], dropout=dropout)
    for op in (triangle.triangle_product_outgoing, triangle.triangle_product_incoming):
        with pytest.raises(ValueError, match="no products of matrices"):
            op(product, product[:, 1:, 1:])


@pytest.mark.parametrize(("gluon", "expected"), [(True, hopper), (False, triton)])
def test_hopper_s_kernels_run_with_their_triton_alone(
    gluon: bool, expected: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "is_hopper", lambda device: True)
    monkeypatch.setattr(gpu, "has_gluon", lambda: gluon)
    sizes = Sizes(64, 128, 128, torch.bfloat16, "sm_90")
    chosen = _BACKENDS.choose("output_forward", torch.device("cpu"), sizes)
    assert chosen is expected


def test_no_samples(device: torch.device) -> None:
    inputs = arguments(16, 24, 0, 3, 3, device=device)
    out, grad_z, *gradients = results(update(triangle, "outgoing"), inputs, torch.float32)
    assert out.shape == grad_z.shape == (0, 3, 3, 16)
    assert not any(grad.any() for grad in gradients)
    assert hopper.why_not("output_forward", Sizes(0, 128, 128, torch.bfloat16, "sm_90"))


def test_registered_as_torch_expects(device: torch.device) -> None:
    z, mask, *parameters = arguments(16, 16, 1, 3, 3, device=device)
    ops = torch.ops.scalefold
    plain = [x.detach() for x in parameters]
    torch.library.opcheck(ops.triangle_projection, (z.detach(), mask, plain[:12]))
    a = draw(4, 1, 3, 3, device=device).requires_grad_()
    torch.library.opcheck(ops.triangle_product, (a, a.detach(), True))
    torch.library.opcheck(ops.triangle_product_backward, (a.detach(), a.detach(), a.detach(), True))
    product = draw(16, 1, 3, 3, device=device).requires_grad_()
    for key in (torch.tensor([5], device=device), None):
        torch.library.opcheck(
            ops.triangle_output, (z, product, z, parameters[12:], key, 2, 0.5, -3)
        )


@pytest.mark.gpu
@pytest.mark.parametrize("gluon", [True, False])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("pair", "hidden", "batch", "length"),
    [
        (128, 128, 1, 256),
        (128, 128, 1, 384),
        (128, 128, 2, 77),
        (64, 64, 4, 128),
        (32, 32, 1, 50),
        (256, 256, 1, 48),
        (128, 32, 1, 65),
    ],
)
def test_bfloat16(
    direction: str,
    pair: int,
    hidden: int,
    batch: int,
    length: int,
    gluon: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not gluon:
        monkeypatch.setattr(gpu, "has_gluon", lambda: False)
    inputs = arguments(pair, hidden, batch, length, length, device=torch.device("cuda"))
    assert_as_exact_as_torch(update(triangle, direction), update(reference, direction), inputs)


@pytest.mark.gpu
@pytest.mark.parametrize("gluon", [True, False])
@pytest.mark.parametrize(
    ("batch", "rows", "columns", "channels"),
    [(1, 64, 64, 128), (2, 9, 24, 128), (4, 40, 40, 64), (1, 3, 8, 64), (1, 264, 128, 64)],
)
def test_dropout_in_bfloat16(
    gluon: bool, batch: int, rows: int, columns: int, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not gluon:
        monkeypatch.setattr(gpu, "has_gluon", lambda: False)
    device = torch.device("cuda")
    z, _, *parameters = arguments(channels, channels, batch, rows, columns, device=device)
    product, gate = (
        draw(batch, rows, columns, channels, seed=i, device=device).requires_grad_()
        for i in (31, 32)
    )
    key = torch.arange(batch, device=device)
    for shared_dim in (-3, -2, -1, None):
        dropout = Dropout(key, 7, 0.25, shared_dim)
        assert_as_exact_as_torch(
            lambda *x: triangle.triangle_output(*x, dropout=dropout),  # noqa: B023
            lambda *x: reference.triangle_output(*x, dropout=dropout),  # noqa: B023
            [z, product, gate, *parameters[12:]],
        )


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns", "inner"), [(256, 256, 256), (72, 136, 40), (8, 8, 8)])
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False)])
def test_products_in_bfloat16(
    rows: int, columns: int, inner: int, transposed: tuple[bool, bool]
) -> None:
    """Sums in float32 of exact products: what is left is the result's rounding, 2^-8."""
    first, second = (
        (
            draw(3, 2, rows, inner, seed=2 * i, device="cuda").bfloat16(),
            draw(3, 2, inner, columns, seed=2 * i + 1, device="cuda").bfloat16(),
        )
        for i in range(2)
    )
    first = tuple(x.mT.contiguous().mT if t else x for x, t in zip(first, transposed, strict=True))
    todo = [Product(*pair) for pair in (first, second)]
    for found in (hopper_product.products(todo), hopper_product.products(todo[:1])):
        for (x, y), out in zip(todo, found, strict=False):
            exact = x.double() @ y.double()
            # Of a sum of so many terms, each partial sum rounded (by truncation, in tensor cores).
            noise = 2.0**-23 * inner * (x.double().abs() @ y.double().abs())
            assert ((out.double() - exact).abs() <= 2.0**-8 * exact.abs() + 2 * noise).all()


@pytest.mark.gpu
def test_float32_at_the_models_width() -> None:
    inputs = arguments(128, 128, 1, 64, 64, device=torch.device("cuda"))
    ours = results(update(triangle, "outgoing"), inputs, torch.float32)
    torchs = results(update(reference, "outgoing"), inputs, torch.float32)
    exact = results(update(reference, "outgoing"), inputs, torch.float64)
    for x, y, right in zip(ours, torchs, exact, strict=True):
        assert (x - right).norm() <= 4 * (y - right).norm()


@pytest.mark.gpu
def test_captured_in_a_graph() -> None:
    inputs = arguments(128, 128, 1, 64, 64, device=torch.device("cuda"))
    inputs = [x.detach().bfloat16().requires_grad_(x.requires_grad) for x in inputs]
    run = update(triangle, "outgoing")
    leaves = [x for x in inputs if x.requires_grad]
    grad = torch.ones_like(inputs[0])

    def step() -> list[Tensor]:
        out = run(*inputs)
        return [out, *torch.autograd.grad(out, leaves, grad)]

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        expected = [x.clone() for x in step()]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            found = step()
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
