"""LayerNorm and LayerNorm with projections against the float64 reference."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from scalefold.model.assembly import Assembly
from scalefold.model.triangle_attention import TriangleAttentionStartingNode
from scalefold.ops import norm as reference
from scalefold.ops.attention import LN2
from scalefold.optim.parameters import FlatParameters
from scalefold_kernels.bench.agreement import FACTOR, error
from scalefold_kernels.ops.norm import layer_norm
from scalefold_kernels.ops.normed_projection import normed_projection
from scalefold_kernels.packing import join
from scalefold_kernels.rows import rows_of

# float32 statistics and sums of a few hundred terms: rounding errors of about 1e-6 of the result.
CLOSE = {"atol": 2e-5, "rtol": 2e-5}


def draw(*shape: int, seed: int = 0, device: torch.device | str = "cpu") -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def gradients(function, arguments: Sequence, grads: Sequence[Tensor]) -> tuple:
    """Outputs of a function and gradients of all its tensors, nested sequences flattened."""
    flat = [t for a in arguments for t in (a if isinstance(a, list) else [a]) if t is not None]
    flat = [t for t in flat if t.requires_grad]
    outputs = function(*arguments)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [*outputs, *torch.autograd.grad(outputs, flat, [g.to(outputs[0].dtype) for g in grads])]


def rounded(arguments: Sequence, dtype: torch.dtype) -> list:
    """New leaves of a type whose values are those in bfloat16."""

    def convert(a):
        if isinstance(a, list):
            return [convert(t) for t in a]
        return None if a is None else a.detach().bfloat16().to(dtype).requires_grad_()

    return [convert(a) for a in arguments]


def in_float64(arguments: Sequence) -> list:
    def convert(a):
        if isinstance(a, list):
            return [convert(t) for t in a]
        return None if a is None else a.detach().double().requires_grad_()

    return [convert(a) for a in arguments]


def strided(layout: str, *shape: int, device) -> Tensor:
    """A tensor of this shape in another memory layout."""
    if layout == "contiguous":
        return draw(*shape, device=device)
    if layout == "transposed":
        return draw(shape[1], shape[0], *shape[2:], device=device).transpose(0, 1)
    if layout == "sliced":
        return draw(*shape[:-1], shape[-1] + 5, device=device)[..., 2:-3]
    if layout == "three row dimensions":
        return draw(shape[1], shape[0] * 2, shape[2] + 1, shape[3], device=device)[
            :, ::2, 1:
        ].transpose(0, 1)
    if layout == "channels first":
        return draw(*shape[:-2], shape[-1], shape[-2], device=device).transpose(-1, -2)
    raise ValueError(layout)


LAYOUTS = ["contiguous", "transposed", "sliced", "three row dimensions", "channels first"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [8, 32, 48, 100])
def test_layer_norm_and_gradients(layout: str, channels: int, device: torch.device) -> None:
    x = strided(layout, 2, 3, 7, channels, device=device).requires_grad_()
    weight = draw(channels, seed=1, device=device).requires_grad_()
    bias = draw(channels, seed=2, device=device).requires_grad_()
    grad = strided(layout, 2, 3, 7, channels, device=device).flip(0)
    ours = gradients(layer_norm, [x, weight, bias], [grad])
    expected = gradients(reference.layer_norm, in_float64([x, weight, bias]), [grad])
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a.double(), b, **CLOSE)


def test_where_no_gradient_is_wanted_nothing_is_kept(device: torch.device) -> None:
    arguments = [draw(*shape, device=device) for shape in ((6, 40), (40,), (40,))]
    kept = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if func is torch.ops.scalefold.layer_norm.default:
                kept.append(out[1].numel())
            return out

    with Watch():
        plain = layer_norm(*arguments)
        leaves = [t.clone().requires_grad_() for t in arguments]
        with torch.no_grad():
            without = layer_norm(*leaves)
        out = layer_norm(*leaves)
    assert kept == [0, 0, 2 * 6]
    assert torch.equal(out, plain)
    assert torch.equal(out, without)


def test_rows_of_merges_what_one_stride_serves() -> None:
    x = draw(2, 3, 4, 5)
    assert rows_of(x).num_dims == 1
    assert rows_of(x.transpose(0, 1)).num_dims == 3
    assert rows_of(x.transpose(1, 2)).strides[:3] == (60, 5, 20)
    assert rows_of(x[0, 0, 0]).num_rows == 1
    many = draw(2, 2, 2, 2, 3).permute(3, 1, 0, 2, 4)
    assert rows_of(many).tensor.is_contiguous()


def test_channels_too_far_apart_for_32_bits_are_copied_together() -> None:
    last_but_one = torch.empty(129, 2**24, dtype=torch.bfloat16, device="meta").t()
    assert rows_of(last_but_one[:, :128]).strides[3] == 2**24
    assert rows_of(last_but_one).strides[3] == 1


def projection_case(channels: int, outputs: Sequence[int], biased: Sequence[bool], device) -> list:
    weights = [
        draw(p, channels, seed=3 + i, device=device).requires_grad_() for i, p in enumerate(outputs)
    ]
    biases = [
        draw(p, seed=30 + i, device=device).requires_grad_() if has else None
        for i, (p, has) in enumerate(zip(outputs, biased, strict=True))
    ]
    return [
        draw(channels, seed=1, device=device).requires_grad_(),
        draw(channels, seed=2, device=device).requires_grad_(),
        weights,
        biases,
    ]


@pytest.mark.parametrize("layout", ["contiguous", "three row dimensions", "channels first"])
@pytest.mark.parametrize(
    ("channels", "outputs", "biased"),
    [
        (20, [12, 12, 12, 12], [False, False, False, True]),
        (20, [20, 20, 20, 20], [False, False, False, True]),  # sums of biases beside the norm's
        (32, [4], [False]),
        (12, [40, 3, 5], [True, False, True]),
        (12, [40, 32, 5], [True, False, False]),  # the last has few outputs
        (12, [50, 30, 5], [False, True, False]),
        (20, [70], [True]),
        (272, [6, 5], [False, True]),  # wider than what is fused
    ],
)
@pytest.mark.parametrize(("first_scale", "last_scale"), [(1.0, 1.0), (0.3, 1.5)])
def test_projections_and_gradients(
    layout: str,
    channels: int,
    outputs: list,
    biased: list,
    first_scale: float,
    last_scale: float,
    device: torch.device,
) -> None:
    x = strided(layout, 2, 3, 7, channels, device=device).requires_grad_()
    arguments = [x, *projection_case(channels, outputs, biased, device)]
    # The last gradient is that of x itself, which is passed through.
    sizes = [*outputs, channels]
    grads = [draw(2, 3, 7, p, seed=50 + i, device=device) for i, p in enumerate(sizes)]
    scales = {"first_scale": first_scale, "last_scale": last_scale}
    ours = gradients(partial(normed_projection, **scales), arguments, grads)
    exact = partial(reference.normed_projection, **scales)
    expected = gradients(exact, in_float64(arguments), grads)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a.double(), b, **CLOSE)


def test_no_rows(device: torch.device) -> None:
    x = torch.zeros(0, 3, 8, device=device, requires_grad=True)
    arguments = projection_case(8, [4], [True], device)
    out, _ = normed_projection(x, *arguments)
    assert out.shape == (0, 3, 4)
    assert (torch.autograd.grad(out.sum(), arguments[0])[0] == 0).all()


def test_same_bits_every_time(device: torch.device) -> None:
    x, (weight, bias, *_) = draw(300, 40, device=device), projection_case(40, [4], [True], device)
    x.requires_grad_()
    grad = draw(300, 40, seed=9, device=device)
    first, second = (gradients(layer_norm, [x, weight, bias], [grad]) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_wrong_parameters_are_named() -> None:
    with pytest.raises(ValueError, match=r"weight.*\(7,\).*\(8,\)"):
        layer_norm(torch.zeros(2, 8), torch.zeros(7), torch.zeros(8))
    with pytest.raises(ValueError, match="float64"):
        layer_norm(torch.zeros(2, 8).double(), torch.zeros(8).double(), torch.zeros(8).double())
    x, row, weight = torch.zeros(2, 8), torch.zeros(8), torch.zeros(4, 8)
    for weights, biases in (([weight[:, 1:]], [None]), ([weight], [row]), ([weight], []), ([], [])):
        with pytest.raises(ValueError, match=r"weight|bias"):
            normed_projection(x, row, row, weights, biases)
    with pytest.raises(ValueError, match="float64"):
        normed_projection(x, row, row, [weight.double()], [None])


def test_registered_as_torch_expects(device: torch.device) -> None:
    x = draw(5, 8, device=device).requires_grad_()
    weight, bias, weights, biases = projection_case(8, [4, 4], [False, True], device)
    torch.library.opcheck(torch.ops.scalefold.layer_norm, (x, weight, bias, True))
    # Autograd is a function around these two.
    x, weight, bias, *others = (t.detach() for t in (x, weight, bias, *weights, biases[1]))
    weights, biases = others[:2], others[2:]
    arguments = (x, weight, bias, weights, biases, [False, True], 0.75, 1.5)
    torch.library.opcheck(torch.ops.scalefold.normed_projection, arguments)
    stats = torch.ones(2, 5, device=device)
    arguments = (draw(5, 8, device=device), None, *arguments[:4], [True, True], 0.75, 1.5, stats, x)
    torch.library.opcheck(torch.ops.scalefold.normed_projection_backward, arguments)


def test_join_copies_only_what_lies_apart() -> None:
    whole = draw(3, 10)
    parts = whole.split([4, 5, 1], -1)
    assert join(parts, -1).data_ptr() == whole.data_ptr()
    assert torch.equal(join(parts, -1), whole)
    apart = [parts[1], parts[0]]
    assert torch.equal(join(apart, -1), torch.cat(apart, -1))
    assert join(apart, -1).data_ptr() != whole.data_ptr()
    flat = draw(24)
    rows = [flat[:12].view(3, 4), flat[12:].view(3, 4)]
    assert join(rows, 0).data_ptr() == flat.data_ptr()
    assert join(rows, 0).shape == (6, 4)
    with_gap = [flat[:8].view(2, 4), flat[12:].view(3, 4)]
    assert torch.equal(join(with_gap, 0), torch.cat(with_gap, 0))


def test_projections_of_attention_are_one_matrix_in_a_training_run() -> None:
    attention = TriangleAttentionStartingNode(64, 16, 4, Assembly())
    FlatParameters(attention, narrow=lambda name: True)
    mha = attention.mha
    weights = [f.weight for f in (mha.linear_q, mha.linear_k, mha.linear_v, mha.linear_g)]
    whole = join([w.detach() for w in weights], 0)
    assert whole.shape == (256, 64)
    assert whole.data_ptr() == mha.linear_q.weight.data_ptr()


# (rows, channels, outputs): pair with its bias, pair bias (of few rows a program, of many), MSA,
# extra MSA, and what fits nothing.
IN_BFLOAT16 = [
    ((1, 97, 130), 128, [128, 128, 128, 128, 4]),
    ((2, 33, 65), 128, [8]),
    ((1, 150, 300), 128, [8]),
    ((3, 7, 11), 48, [16]),
    ((2, 5, 9), 24, [3]),
    ((1, 37, 256), 256, [256, 256, 256, 256]),
    # More tiles than programs; fewer biases, or none, and blocks of outputs that are not full.
    ((1, 140, 251), 256, [256, 256, 256, 256]),
    ((1, 13, 59), 256, [128, 128, 128, 128]),
    ((2, 5, 7), 256, [104]),
    ((1, 300, 64), 64, [64, 64, 64, 64]),
    ((2, 40, 33), 64, [64, 64, 64, 64, 4]),
    ((3, 7, 11), 48, [40, 40, 40, 40, 16]),
    ((1, 50, 9), 200, [96, 32]),
    ((1, 5, 7), 20, [12, 12, 12, 100]),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "channels", "outputs"), IN_BFLOAT16)
@pytest.mark.parametrize("first_scale", [1.0, 32**-0.5 / LN2])
@pytest.mark.parametrize("passed_through", [True, False])
def test_projections_in_bfloat16(
    rows: tuple[int, ...],
    channels: int,
    outputs: list,
    passed_through: bool,
    first_scale: float,
    device: torch.device,
    poisoned_memory: None,
) -> None:
    biased = [i == 3 for i in range(len(outputs))]
    x = 2 * draw(*rows, channels, device=device) + 1
    arguments = [x, *projection_case(channels, outputs, biased, device)]
    grads = [draw(*rows, p, seed=50 + i, device=device) for i, p in enumerate([*outputs, channels])]
    results = []
    for function, dtype in (
        (normed_projection, torch.bfloat16),
        (reference.normed_projection, torch.bfloat16),
        (reference.normed_projection, torch.float64),
    ):
        leaves = rounded(arguments, dtype)
        used = len(grads) if passed_through else len(grads) - 1
        given = [g.bfloat16().to(dtype) for g in grads[:used]]
        scaled = partial(function, first_scale=first_scale, last_scale=1 / LN2)
        results.append(gradients(lambda *a, f=scaled, n=used: f(*a)[:n], leaves, given))
    for ours, torch_s, exact in zip(*results, strict=True):
        assert error(ours, exact) <= FACTOR * max(error(torch_s, exact), 2.0**-9)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("channels", "outputs"), [(256, [256] * 4), (128, [128] * 4 + [4]), (64, [64] * 4)]
)
def test_same_bits_of_projections_every_time(
    channels: int, outputs: list, device: torch.device
) -> None:
    """Warp groups that wait for each other on barriers, with tiles that are not full."""
    biased = [i == 3 for i in range(len(outputs))]
    x = 2 * draw(1, 150, 251, channels, device=device) + 1
    arguments = rounded([x, *projection_case(channels, outputs, biased, device)], torch.bfloat16)
    sizes = enumerate([*outputs, channels])
    grads = [draw(1, 150, 251, p, seed=50 + i, device=device).bfloat16() for i, p in sizes]
    first, *others = (gradients(normed_projection, arguments, grads) for _ in range(5))
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [64, 128, 256])
def test_projections_of_a_part_of_wider_rows(channels: int, device: torch.device) -> None:
    """They are read in place, and give the same bits as a copy."""
    part = draw(1, 37, 50, channels + 16, device=device).bfloat16()[..., 8:-8]
    case = projection_case(channels, [channels] * 4, [False] * 3 + [True], device)
    grads = [draw(1, 37, 50, channels, seed=50 + i, device=device) for i in range(5)]
    in_place, copied = (
        gradients(
            normed_projection, [x.detach().requires_grad_(), *rounded(case, torch.bfloat16)], grads
        )
        for x in (part, part.contiguous())
    )
    assert all(map(torch.equal, in_place, copied))


@pytest.mark.gpu
def test_pair_bias_gradient_of_any_strides(device: torch.device) -> None:
    case = projection_case(128, [128, 128, 128, 128, 4], [False] * 3 + [True, False], device)
    arguments = rounded([draw(2, 33, 40, 128, device=device), *case], torch.bfloat16)
    bias = draw(2, 33, 40, 4, seed=5, device=device).bfloat16()
    found = []
    for order in ((0, 1, 2, 3), (0, 3, 1, 2), (0, 3, 2, 1)):
        back = [order.index(dim) for dim in range(4)]
        strided = bias.permute(order).contiguous().permute(back)
        found.append(gradients(lambda *a: normed_projection(*a)[4], arguments, [strided]))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other))


def test_a_pair_bias_lies_as_attention_reads_it(device: torch.device) -> None:
    # In float32 a GPU's library makes the projections, one beside the other.
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for outputs in ([4], [40, 40, 4]):
        case = projection_case(16, outputs, [False] * len(outputs), device)
        x, *parameters = rounded([draw(2, 5, 7, 16, device=device), *case], dtype)
        *_, bias, through = normed_projection(x, *parameters)
        assert through.data_ptr() == x.data_ptr()
        assert bias.permute(0, 3, 1, 2).is_contiguous()
