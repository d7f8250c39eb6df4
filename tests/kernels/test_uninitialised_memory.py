"""What memory held before a kernel has no influence on what the kernel computes.

A kernel that reads shared or global memory which nobody wrote, and masks or multiplies by zero too
late, is right as long as finite numbers lie there, and gives NaN where another process has been at
work on the GPU. So each launch of whole blocks is preceded by one that fills the shared memory of
every SM, and new tensors hold NaN.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from triton import knobs
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime import driver

from scalefold.config.load import preset_model
from scalefold.model import Assembly
from scalefold.model.evoformer import EvoformerBlock, ExtraMsaBlock
from scalefold.model.template import TemplatePairStack, TemplatePointwiseAttention
from scalefold.ops.kernels import kernel_ops
from scalefold_kernels.compiler import thread_barrier

CONFIG = preset_model("mlperf")
KIBIBYTES = 224
"""Of the 227 that a program may have on a Hopper GPU, 163 on an A100."""


@gluon.jit
def fill_kernel(different, value, KIBIBYTES: gl.constexpr):
    """Fill shared memory with a word; ``different``: how many words (program, 256) do not hold."""
    WORDS: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 1, [0])
    memory = gl.allocate_shared_memory(gl.int32, [KIBIBYTES, 256], FLAT)
    for n in gl.static_range(KIBIBYTES):
        memory.index(n).store(gl.zeros([256], gl.int32, WORDS) + value)
    thread_barrier()
    total = gl.zeros([256], gl.int32, WORDS)
    for n in gl.static_range(KIBIBYTES):
        total += (memory.index(n).load(WORDS) != value).to(gl.int32)
    gl.store(different + gl.program_id(0) * 256 + gl.arange(0, 256, layout=WORDS), total)


@contextmanager
def leftover(word: int) -> Iterator[list[str]]:
    """Fill all shared memory before each launch of a kernel; yields the kernels' names."""
    device = driver.active.utils.get_device_properties(torch.cuda.current_device())
    most = device["max_shared_mem"] // 1024
    programs = 2 * device["multiprocessor_count"]
    different = torch.zeros(programs, 256, dtype=torch.int32, device="cuda")
    names: list[str] = []

    def before(launch: Any) -> None:
        name = launch.get()["name"]
        if name != fill_kernel.__name__:
            names.append(name)
            fill_kernel[(programs,)](different, word, min(KIBIBYTES, most))

    knobs.runtime.launch_enter_hook.add(before)
    try:
        yield names
    finally:
        knobs.runtime.launch_enter_hook.remove(before)
    assert not different.any()


def signed(bits: int) -> int:
    """As a 32-bit integer."""
    return bits - (1 << 32) if bits >> 31 else bits


WORDS = {
    "zeros": 0,
    "NaN": signed(0x7FC07FC0),  # as float32, and as two bfloat16
    "ones": signed(0xFFFFFFFF),
    "huge": signed(0x7F7F7F7F),
}

Step = Callable[[], list[Tensor]]


def _prepared(module: nn.Module, training: bool) -> nn.Module:
    with torch.no_grad():  # "final" layers begin at 0 and would hide what is before them
        for parameter in module.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return module.to("cuda", torch.bfloat16).train(training)


def _masks(num_res: int, real: int) -> tuple[Tensor, Tensor]:
    residues = torch.zeros(1, num_res, device="cuda")
    residues[:, :real] = 1
    return residues, residues[:, :, None] * residues[:, None]


def _normal(*size: int) -> Tensor:
    return torch.randn(*size, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def _msa_block(part: str, rows: int, num_res: int, real: int, training: bool) -> Step:
    assembly = Assembly(ops=kernel_ops())
    block: nn.Module
    if part == "evoformer":
        channels = CONFIG.c_m
        block = EvoformerBlock(CONFIG.evoformer, channels, CONFIG.c_z, assembly)
    else:
        channels = CONFIG.c_e
        block = ExtraMsaBlock(CONFIG.extra_msa, channels, CONFIG.c_z, assembly)
    block = _prepared(block, training)
    residues, pair_mask = _masks(num_res, real)
    msa_mask = residues[:, None].repeat(1, rows, 1)
    msa_mask[:, rows - rows // 4 :] = 0
    counts = torch.einsum("bsi,bsj->bij", msa_mask, msa_mask)
    key = torch.tensor([77], device="cuda")
    msa, pair = _normal(1, rows, num_res, channels), _normal(1, num_res, num_res, CONFIG.c_z)
    gradients = [torch.randn_like(msa), torch.randn_like(pair)]

    def step() -> list[Tensor]:
        outs = block(msa, pair, msa_mask, msa_mask, pair_mask, counts, key)
        leaves = [msa, pair, *block.parameters()]
        return [*outs, *torch.autograd.grad(outs, leaves, gradients)]

    return step


def _templates(count: int, num_res: int, real: int, training: bool) -> Step:
    config, assembly = CONFIG.template, Assembly(ops=kernel_ops())
    stack = _prepared(TemplatePairStack(config, assembly), training)
    pointwise = _prepared(TemplatePointwiseAttention(config, CONFIG.c_z, assembly), training)
    _, pair_mask = _masks(num_res, real)
    present = (torch.arange(count, device="cuda") < 2).float()[None]
    key = torch.tensor([77], device="cuda")
    pairs = _normal(1, count, num_res, num_res, config.c_t)
    pair = _normal(1, num_res, num_res, CONFIG.c_z)
    gradient = torch.randn_like(pair)

    def step() -> list[Tensor]:
        out = pointwise(stack(pairs, pair_mask, key), pair, present)
        leaves = [pairs, pair, *stack.parameters(), *pointwise.parameters()]
        return [out, *torch.autograd.grad(out, leaves, gradient)]

    return step


@pytest.fixture
def free_memory_with_nan() -> None:
    """What torch keeps for later holds NaN, so that the padding behind a tensor does."""
    torch.cuda.empty_cache()
    torch.full((1 << 28,), torch.nan, device="cuda")
    small = [torch.full((120_000,), torch.nan, device="cuda") for _ in range(100)]
    del small


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("part", "rows", "num_res", "real", "training"),
    [
        ("evoformer", 3, 96, 84, False),
        ("evoformer", 7, 100, 84, True),
        ("evoformer", 5, 33, 20, False),
        ("evoformer", 130, 200, 150, False),
        ("evoformer", 128, 256, 256, True),
        ("evoformer", 5, 300, 270, True),
        ("extra", 60, 40, 31, True),
        ("extra", 256, 96, 84, False),
        ("templates", 4, 50, 50, False),
        ("templates", 4, 96, 84, True),
    ],
)
def test_a_block_gives_the_same_bits_whatever_lay_in_memory(
    part: str,
    rows: int,
    num_res: int,
    real: int,
    training: bool,
    free_memory_with_nan: None,
    poisoned_memory: None,
) -> None:
    torch.manual_seed(0)
    if part == "templates":
        step = _templates(rows, num_res, real, training)
    else:
        step = _msa_block(part, rows, num_res, real, training)
    results = {}
    for name, word in WORDS.items():
        with leftover(word) as launched:
            results[name] = step()
        assert len(set(launched)) > 10, "kernels are launched in another way: nothing was filled"
    for name, result in results.items():
        for i, (value, expected) in enumerate(zip(result, results["zeros"], strict=True)):
            assert value.isfinite().all(), (name, i)
            assert torch.equal(value, expected), (name, i)
