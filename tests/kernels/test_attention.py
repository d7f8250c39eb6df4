"""Attention: values and gradients beside the reference's, in all layouts that the model uses.

One file, though a long one: all of it compares with the same references, from inputs made alike.
"""

from collections.abc import Callable
from importlib import import_module

import pytest
import torch
import triton.language as tl
from torch import Tensor

from scalefold.ops import attention as reference
from scalefold.ops.attention import LN2
from scalefold_kernels import gpu
from scalefold_kernels.ops.attention import attention, hopper
from scalefold_kernels.ops.attention.arguments import Kept, checked, new_rows, new_statistics
from scalefold_kernels.ops.attention.hopper.parts import LOG2E as HOPPER_LOG2E
from scalefold_kernels.ops.attention.rest import SHIFTS
from scalefold_kernels.ops.attention.triton.backward import backward_gate
from scalefold_kernels.ops.attention.triton.forward import LOG2E

EPS = torch.finfo(torch.float32).eps

# samples, rows, queries, keys, heads, channels
SHAPES = [
    (1, 3, 19, 19, 2, 8),
    (2, 2, 70, 70, 1, 16),
    (1, 2, 33, 33, 3, 20),
    (2, 3, 1, 4, 2, 16),
    (1, 1, 5, 66, 1, 32),
]


def _inputs(
    shape: tuple[int, ...], device: torch.device, gated: bool = True, biased: bool = True
) -> list[Tensor | None]:
    batch, rows, queries, keys, heads, channels = shape
    generator = torch.Generator(device).manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, device=device, generator=generator)

    q, gate = (normal(batch, rows, queries, heads, channels) for _ in range(2))
    k, v = (normal(batch, rows, keys, heads, channels) for _ in range(2))
    mask = (torch.rand(batch, rows, keys, device=device, generator=generator) > 0.3).float()
    mask[:, :, 0] = 1
    bias = normal(batch, heads, queries, keys)
    return [q, k, v, gate if gated else None, mask, bias if biased else None]


def _in_unit(q: Tensor, scale: float | None) -> Tensor:
    """Queries whose products are multiplied by ``scale`` instead of 1 / sqrt(C)."""
    return q if scale is None else q * (q.shape[-1] ** -0.5 / scale)


def _run(
    op: Callable[..., Tensor],
    inputs: list[Tensor | None],
    dtype: torch.dtype,
    bias_scale: float = LN2,
    scale: float | None = None,
) -> list[Tensor]:
    """Output and gradients, for the same random gradient of the output."""
    converted = [None if x is None else x.detach().to(dtype) for x in inputs]
    leaves = [x for i, x in enumerate(converted) if x is not None and i != 4]
    for leaf in leaves:
        leaf.requires_grad_()
    out = op(*converted, bias_scale, scale)
    generator = torch.Generator(out.device).manual_seed(1)
    gradient = torch.randn(out.shape, device=out.device, generator=generator).to(dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, gradient)]


def _assert_close(ours: list[Tensor], exact: list[Tensor], terms: int) -> None:
    """Within the error of sums of so many float32 products, relative to each tensor's size."""
    for a, b in zip(ours, exact, strict=True):
        assert a.shape == b.shape
        assert a.isfinite().all()
        limit = 4 * terms**0.5 * EPS * b.abs().max()
        assert (a - b).abs().max() <= limit


def _assert_as_exact_as_torch(
    inputs: list[Tensor | None],
    exactly: torch.dtype = torch.float64,
    bias_scale: float = LN2,
    scale: float | None = None,
    narrow: torch.dtype = torch.bfloat16,
) -> None:
    """Of narrow inputs: at most twice the distance of torch's own to the exact numbers."""
    ours = _run(attention, inputs, narrow, bias_scale, scale)
    torchs = _run(reference.attention, inputs, narrow, bias_scale, scale)
    exact = _run(reference.attention, inputs, exactly, bias_scale, scale)
    for a, b, c in zip(ours, torchs, exact, strict=True):
        assert a.isfinite().all()
        assert (a - c).norm() <= 2 * (b - c).norm()


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("deviation", [10, 40])
def test_peaked_weights(deviation: float, gated: bool, device: torch.device) -> None:
    """A bias of so many bits leaves most queries one key. The interpreter knows no bfloat16."""
    inputs = _inputs((1, 8, 70, 70, 2, 16), device, gated)
    inputs[5] *= deviation
    inputs = [x if x is None else x.half() for x in inputs]
    _assert_as_exact_as_torch(inputs, narrow=torch.float16)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("gated", "biased", "bias_scale", "scale"),
    [
        (True, True, LN2, None),
        (True, True, LN2, LN2),
        (True, True, 1.0, None),
        (False, True, LN2, 0.5),
        (True, False, LN2, None),
        (True, False, LN2, 0.5),
    ],
)
def test_value_and_gradients(
    shape: tuple[int, ...],
    gated: bool,
    biased: bool,
    bias_scale: float,
    scale: float | None,
    device: torch.device,
    poisoned_memory: None,
) -> None:
    inputs = _inputs(shape, device, gated, biased)
    ours = _run(attention, inputs, torch.float32, bias_scale, scale)
    exact = _run(reference.attention, inputs, torch.float64, bias_scale, scale)
    _assert_close(ours, exact, terms=shape[1] * shape[2] * shape[3])


def test_row_without_unmasked_keys_attends_to_all_alike(
    device: torch.device, poisoned_memory: None
) -> None:
    inputs = _inputs((1, 3, 19, 21, 2, 8), device)
    inputs[4][:, 1] = 0
    ours = _run(attention, inputs, torch.float32)
    # In float32 too: float64 still tells the logits apart beside the masking term.
    expected = _run(reference.attention, inputs, torch.float32)
    _assert_close(ours, expected, terms=3 * 19 * 21)
    mean = inputs[2][:, 1].mean(1, keepdim=True) * inputs[3][:, 1].sigmoid()
    torch.testing.assert_close(ours[0][:, 1], mean)


def test_one_mask_for_all_rows(device: torch.device) -> None:
    q, k, v, gate, mask, bias = _inputs((2, 3, 19, 19, 2, 8), device)
    one = mask[:, :1]
    expected = attention(q, k, v, gate, one.expand_as(mask).contiguous(), bias)
    assert torch.equal(attention(q, k, v, gate, one, bias), expected)


def test_masked_keys_have_no_influence(device: torch.device) -> None:
    inputs = _inputs((1, 2, 19, 19, 2, 8), device)
    before = _run(attention, inputs, torch.float32)
    away = inputs[4][..., None, None] == 0
    for i in (1, 2):
        inputs[i] = torch.where(away, 1e3 * torch.rand_like(inputs[i]), inputs[i])
    after = _run(attention, inputs, torch.float32)
    assert torch.equal(before[0], after[0])
    for gradient in after[2:4]:
        assert (gradient * away).abs().max() == 0


def _packed(shape: tuple[int, ...], device: torch.device, columns: bool) -> list[Tensor]:
    """q, k, v and gate as slices of one projection; a transposed view of it for columns."""
    batch, rows, length, _, heads, channels = shape
    size = (batch, length, rows) if columns else (batch, rows, length)
    generator = torch.Generator(device).manual_seed(2)
    x = torch.randn(*size, 4 * heads * channels, device=device, generator=generator)
    parts = [p.unflatten(-1, (heads, channels)) for p in x.split(heads * channels, -1)]
    return [p.transpose(1, 2) for p in parts] if columns else parts


@pytest.mark.parametrize("columns", [False, True])
def test_views_of_a_packed_projection(columns: bool, device: torch.device) -> None:
    shape = (2, 3, 19, 19, 2, 8)
    parts = _packed(shape, device, columns)
    mask, bias = _inputs(shape, device)[4:]
    # Heads last, as a linear layer leaves them.
    strided = bias.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    dense = [p.contiguous() for p in parts]
    leaves = [p.detach().requires_grad_() for p in parts]
    transposed = mask.transpose(1, 2).contiguous().transpose(1, 2)
    out = attention(*leaves, mask_BRK=transposed, bias_BHQK=strided)
    assert torch.equal(out, attention(*dense, mask_BRK=mask, bias_BHQK=bias))
    assert (out.transpose(1, 2) if columns else out).is_contiguous()
    grads = torch.autograd.grad(out.sum(), leaves)
    # Side by side, in the order of the projection: its gradient needs no copy.
    width = shape[4] * shape[5]
    first = grads[0].storage_offset()
    assert [g.storage_offset() for g in grads] == [first + i * width for i in range(4)]
    assert all(g.stride() == parts[0].stride() for g in grads)


def test_queries_as_forward_multiplies_them(device: torch.device, poisoned_memory: None) -> None:
    """For the kernels that come after that of the gate; with heads apart in memory, too."""
    q, k, v, gate, mask, bias = _inputs((2, 3, 19, 21, 3, 8), device)
    inputs = checked(q.transpose(2, 3).contiguous().transpose(2, 3), k, v, gate, mask, bias, LN2)
    grad_gate, grad_o, scaled_q = (new_rows(q.shape, q) for _ in range(3))
    statistics = new_statistics(q)
    kept = Kept(q, statistics, None)
    backward_gate(inputs, kept, q, grad_gate, grad_o, statistics, scaled_q)
    torch.testing.assert_close(scaled_q, q * (inputs.scale / LN2))


def test_queries_in_the_unit_of_the_bias_stay_as_they_are(device: torch.device) -> None:
    """Forward multiplies them by 1, as float32 has it, and rounds them: backward need not."""
    q, *others = _inputs((2, 3, 19, 21, 3, 8), device)
    inputs = checked(q.bfloat16(), *(x.bfloat16() for x in others), bias_scale=LN2, scale=LN2)
    assert not inputs.scales_q
    grad_gate, grad_o, scaled_q = (new_rows(q.shape, inputs.q) for _ in range(3))
    statistics = new_statistics(q)
    kept = Kept(inputs.q, statistics, None)
    backward_gate(inputs, kept, inputs.q, grad_gate, grad_o, statistics, scaled_q)
    assert torch.equal(scaled_q, inputs.q)


@pytest.mark.parametrize("log2e", [LOG2E, HOPPER_LOG2E])
def test_logits_of_a_bias_in_bits_are_multiplied_by_exactly_1(log2e: tl.constexpr) -> None:
    assert log2e.value * LN2 == 1


def test_bias_with_queries_contiguous(device: torch.device, poisoned_memory: None) -> None:
    """The ending node's: no copy is made of it, and its gradient is laid out as it is."""
    inputs = _inputs((2, 3, 19, 21, 2, 8), device)
    expected = _run(attention, inputs, torch.float32)
    inputs[5] = inputs[5].mT.contiguous().mT
    ours = _run(attention, inputs, torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))
    assert ours[-1].stride() == inputs[5].stride()


def test_channels_need_not_be_contiguous(device: torch.device) -> None:
    q, k, v, gate, mask, bias = _inputs((1, 2, 19, 19, 2, 8), device)
    transposed = [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (q, k, v, gate)]
    expected = attention(q, k, v, gate, mask, bias)
    assert torch.equal(attention(*transposed, mask_BRK=mask, bias_BHQK=bias), expected)


def test_same_bits_every_time(device: torch.device) -> None:
    inputs = _inputs((1, 3, 19, 19, 1, 16), device)
    first = _run(attention, inputs, torch.float32)
    second = _run(attention, inputs, torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_arguments_are_checked(device: torch.device) -> None:
    q, k, v, gate, mask, bias = _inputs((1, 2, 19, 19, 2, 8), device)
    with pytest.raises(ValueError, match=r"bias.*\(1, 1, 19, 19\).*\(1, 2, 19, 19\)"):
        attention(q, k, v, gate, mask, bias[:, :1])
    with pytest.raises(ValueError, match="float64"):
        attention(q, k.double(), v, gate, mask, bias)
    with pytest.raises(ValueError, match="float64"):
        attention(*(x.double() for x in (q, k, v, gate)), mask_BRK=mask, bias_BHQK=bias)
    with pytest.raises(ValueError, match=r"bias_scale.*0\.0"):
        attention(q, k, v, gate, mask, bias, 0.0)
    with pytest.raises(ValueError, match=r"\bscale.*-1\.0"):
        attention(q, k, v, gate, mask, bias, scale=-1.0)


@pytest.mark.parametrize("shape", [(0, 3, 40, 40, 2, 8), (2, 0, 40, 40, 2, 8)])
def test_no_samples_or_rows(shape: tuple[int, ...], device: torch.device) -> None:
    inputs = _inputs(shape, device)
    out, *gradients = _run(attention, inputs, torch.float32)
    assert out.shape == shape[:3] + shape[4:]
    assert not any(gradient.any() for gradient in gradients)
    given = checked(*(x.detach().bfloat16() for x in inputs))
    assert "empty" in str(hopper.why_not("forward", given))


@pytest.mark.parametrize("gated", [True, False])
def test_opcheck(gated: bool, device: torch.device) -> None:
    for dtype in (torch.float16, torch.float32):
        drawn = _inputs((1, 2, 5, 5, 1, 8), device, gated=gated)
        inputs = [x if x is None else x.to(dtype) for x in drawn]
        for x in (*inputs[:4], inputs[5]):
            if x is not None:
                x.requires_grad_()
        for keep_rest in (True, False):
            arguments = (*inputs, LN2, 8**-0.5, keep_rest)
            torch.library.opcheck(torch.ops.scalefold.attention, arguments)


@pytest.mark.parametrize(
    "dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
)
def test_rest_is_what_rounding_took(dtype: torch.dtype, device: torch.device) -> None:
    """Of the mean of two values, which often lies halfway between two rounded numbers."""
    q, k, v, _, mask, bias = _inputs((2, 3, 70, 2, 2, 24), device)
    inputs = [x.to(dtype) for x in (0 * q, k, v, torch.ones_like(mask), 0 * bias)]
    arguments = (*inputs[:3], None, *inputs[3:], LN2, 1.0, True)
    out, _, rest = torch.ops.scalefold.attention(*arguments)
    exact = inputs[2].float().mean(2, keepdim=True).expand(out.shape)
    half = torch.ldexp(torch.full_like(exact, torch.finfo(dtype).eps / 4), exact.frexp()[1])
    assert ((exact - out.float()).abs() == half).sum() > 100
    steps = 1 << SHIFTS[dtype]
    bits = out.float().view(torch.int32) + rest[..., :24].int() * steps + steps // 2
    assert ((bits.view(torch.float32) - exact).abs() <= steps * EPS * exact.abs()).all()


def test_passes_without_gradients_keep_no_rest(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [x.half() for x in _inputs((1, 2, 5, 5, 1, 8), device)]
    inputs[0].requires_grad_()
    monkeypatch.setattr(import_module("scalefold_kernels.ops.attention.op"), "new_rest", None)
    with torch.no_grad():
        attention(*inputs)
    with pytest.raises(TypeError):
        attention(*inputs)


# The model's own: triangle, extra MSA rows, MSA columns, template pair stack; and awkward ones.
LARGE = [
    (1, 24, 256, 256, 4, 32),
    (1, 20, 384, 384, 4, 32),
    (1, 40, 256, 256, 8, 8),
    (1, 30, 128, 128, 8, 32),
    (2, 40, 100, 100, 3, 16),
    (1, 9, 61, 61, 2, 24),
    (4, 9, 256, 256, 4, 16),
    (1, 7, 200, 200, 2, 32),
    (1, 5, 131, 131, 3, 32),
    (1, 5, 128, 128, 2, 64),
    (1, 9, 640, 640, 2, 32),
    (1, 300, 1, 4, 4, 16),
    (1, 6, 40, 128, 2, 16),
    (1, 6, 128, 60, 2, 32),
    (1, 5, 70, 200, 2, 32),
    (2, 13, 200, 200, 3, 8),
    (2, 9, 70, 200, 2, 8),
    (1, 9, 256, 60, 2, 8),
    (1, 5, 77, 77, 2, 8),
    (1, 5, 300, 300, 2, 8),
    (2, 5, 320, 320, 3, 32),
]


@pytest.fixture(params=["triton", "hopper"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "triton":
        monkeypatch.setattr(gpu, "is_hopper", lambda device: False)
    elif reason := gpu.why_not_hopper(torch.device("cuda")):
        pytest.skip(reason)


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("shape", "columns"),
    # A packed projection, which is read by columns, has as many queries as keys.
    [(s, columns) for s in LARGE for columns in (False, True) if s[2] == s[3] or not columns],
)
@pytest.mark.parametrize(
    ("gated", "biased", "scale"),
    [(True, True, None), (True, True, LN2), (False, False, None), (True, False, None)],
)
def test_bfloat16(
    shape: tuple[int, ...],
    gated: bool,
    biased: bool,
    scale: float | None,
    columns: bool,
    device: torch.device,
) -> None:
    inputs = _inputs(shape, device, gated, biased)
    if columns:
        inputs[:4] = _packed(shape, device, columns)
        inputs[3] = inputs[3] if gated else None
        inputs[5] = inputs[5].mT.contiguous().mT if biased else None
    inputs[0] = _in_unit(inputs[0], scale)
    inputs = [x if x is None else x.bfloat16() for x in inputs]
    _assert_as_exact_as_torch(inputs, scale=scale)


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("shape", [*LARGE[:3], *LARGE[-3:]])
def test_natural_bias_in_bfloat16(shape: tuple[int, ...], device: torch.device) -> None:
    inputs = [x.bfloat16() for x in _inputs(shape, device)]
    _assert_as_exact_as_torch(inputs, bias_scale=1.0)


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("shape", [*LARGE[:3], *LARGE[6:8], (1, 5, 512, 512, 4, 32)])
@pytest.mark.parametrize("deviation", [10, 20, 40])
@pytest.mark.parametrize("gated", [True, False])
def test_peaked_weights_of_all_sizes_in_bfloat16(
    shape: tuple[int, ...], deviation: float, gated: bool, device: torch.device
) -> None:
    inputs = _inputs(shape, device, gated)
    inputs[5] *= deviation
    inputs = [x if x is None else x.bfloat16() for x in inputs]
    _assert_as_exact_as_torch(inputs)


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("shape", LARGE[:8])
def test_without_masked_keys_in_bfloat16(shape: tuple[int, ...], device: torch.device) -> None:
    inputs = _inputs(shape, device)
    inputs[4] = torch.ones_like(inputs[4])
    inputs = [x.bfloat16() for x in inputs]
    _assert_as_exact_as_torch(inputs)


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("length", "channels", "biased"),
    [
        (256, 32, True),
        (256, 8, True),
        (300, 32, True),
        (384, 32, True),
        (128, 32, False),
        (90, 32, False),
    ],
)
def test_row_without_unmasked_keys_in_bfloat16(
    length: int, channels: int, biased: bool, device: torch.device
) -> None:
    inputs = _inputs((1, 3, length, length, 4, channels), device, biased=biased)
    inputs[4][:, 1] = 0
    inputs = [x if x is None else x.bfloat16() for x in inputs]
    _assert_as_exact_as_torch(inputs, torch.float32)


MANY_ROWS = [(1, 60, 256, 256, 4, 32), (1, 40, 256, 256, 8, 8)]
"""So many that a program has several."""


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("shape", MANY_ROWS)
@pytest.mark.parametrize("shift", [200, -200])
def test_logits_whose_exponentials_float32_cannot_hold(
    shape: tuple[int, ...], shift: float, device: torch.device
) -> None:
    inputs = _inputs(shape, device)
    inputs[5] += shift
    inputs = [x.bfloat16() for x in inputs]
    _assert_as_exact_as_torch(inputs)


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("shape", "biased"),
    [
        *((shape, True) for shape in MANY_ROWS),
        ((1, 40, 384, 384, 2, 32), True),
        ((1, 40, 384, 384, 2, 32), False),
        ((1, 90, 128, 128, 8, 32), False),
    ],
)
@pytest.mark.parametrize("scale", [None, LN2])
def test_some_rows_with_logits_far_apart(
    shape: tuple[int, ...], biased: bool, scale: float | None, device: torch.device
) -> None:
    """Weights near 1 must be those of forward to the rounding, in all kernels of backward."""
    inputs = _inputs(shape, device, biased=biased)
    # A program has rows of both kinds.
    inputs[0][:, ::2] *= 40
    inputs[0] = _in_unit(inputs[0], scale)
    inputs = [None if x is None else x.bfloat16() for x in inputs]
    _assert_as_exact_as_torch(inputs, scale=scale)


# Blocks and tiles whole and cut off, fewer rows than programs and more.
TWO_LAUNCHES = [(1, 1, 257, 257, 2, 32), (2, 5, 320, 300, 3, 24), (1, 77, 300, 384, 4, 32)]


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("shape", TWO_LAUNCHES)
@pytest.mark.parametrize(
    ("masked", "transposed", "gated"),
    [(True, True, True), (True, False, False), (False, False, True), (False, True, False)],
)
@pytest.mark.parametrize(("bias_scale", "scale"), [(LN2, LN2), (LN2, None), (1.0, None)])
def test_bias_gradient_of_257_to_384_keys(
    shape: tuple[int, ...],
    masked: bool,
    transposed: bool,
    gated: bool,
    bias_scale: float,
    scale: float | None,
    device: torch.device,
) -> None:
    inputs = _inputs(shape, device, gated)
    if not masked:
        inputs[4] = torch.ones_like(inputs[4])
    if transposed:
        inputs[5] = inputs[5].mT.contiguous().mT
    inputs = [x if x is None else x.bfloat16() for x in inputs]
    _assert_as_exact_as_torch(inputs, bias_scale=bias_scale, scale=scale)


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("shape", TWO_LAUNCHES)
def test_same_bits_of_257_to_384_keys_also_in_two_streams(
    shape: tuple[int, ...], device: torch.device
) -> None:
    inputs = [x.bfloat16() for x in _inputs(shape, device)]
    first = _run(attention, inputs, torch.bfloat16)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    found = []
    for n in range(20):
        with torch.cuda.stream(streams[n % 2]):
            found.append(_run(attention, inputs, torch.bfloat16))
    torch.cuda.synchronize()
    for again in found:
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True))


@pytest.mark.gpu
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("length", [136, 384])
def test_graph_capture(length: int, device: torch.device) -> None:
    inputs = [x.bfloat16() for x in _inputs((1, 6, length, length, 4, 32), device)]
    leaves = [x.requires_grad_() for i, x in enumerate(inputs) if i != 4]
    gradient = torch.randn_like(inputs[0])

    def run() -> list[Tensor]:
        out = attention(*inputs)
        return [out.detach(), *torch.autograd.grad(out, leaves, gradient)]

    # Autograd runs a leaf's backward on the stream of its first use: that of the capture.
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        expected = run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        static = run()
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(static, expected, strict=True))
