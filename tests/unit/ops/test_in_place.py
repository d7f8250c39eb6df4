"""Updates in place give the numbers of the others, in less memory."""

from __future__ import annotations

import warnings

import pytest
import torch
from tests.example import example_features, set_example_weights
from torch._subclasses.fake_tensor import FakeTensorMode

from scalefold.config.load import preset_config, preset_model
from scalefold.engine.pass_memory import _Living
from scalefold.engine.precision import narrow_model
from scalefold.features.contract import INPUT_FEATURES
from scalefold.model import AlphaFold, Outputs, Previous
from scalefold.model.assembly import Assembly
from scalefold.ops import TORCH, Ops
from scalefold.ops.chunked import chunked
from scalefold.ops.in_place import in_place
from scalefold.ops.kernels import kernel_ops
from scalefold.predict.predictor import MAX_PART_ELEMENTS

N = 20
GPU_BYTES = 80e9


def outputs(ops: Ops) -> tuple[Outputs, Previous]:
    config = preset_model("tiny", {"model": {"evoformer": {"num_blocks": 2}, "pae_head": True}})
    model = AlphaFold(config, Assembly(ops)).double().eval()
    set_example_weights(model)
    features = example_features({"B": 1, "N": N, "S": 5, "E": 7, "T": 2}, padding=3)
    features = {k: v.double() if v.is_floating_point() else v for k, v in features.items()}
    with torch.inference_mode():
        templates = model.embed_templates(features)
        previous = Previous.zeros(1, N, config, next(model.parameters()))
        previous = model.recycle(features, previous, templates)
        return model(features, previous, templates)


def test_the_model_in_place_is_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, where other orders of summation stay far below what a lost row would do."""
    monkeypatch.setattr("scalefold.ops.in_place._ROW_STEP", 8)
    ours, expected = outputs(in_place(TORCH, 1)), outputs(TORCH)
    assert expected[1].positions.abs().max() > 1
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


def test_large_representations_are_updated_in_place_and_small_ones_not() -> None:
    x, h = torch.randn(1, 200, 3, 4), torch.randn(1, 200, 3, 5)
    weight, bias = torch.randn(4, 5), torch.randn(4)
    expected = TORCH.residual_linear(x, h, weight, bias, None)
    before = x.clone()
    new = in_place(TORCH, x.numel()).residual_linear(x, h, weight, bias, None)
    assert torch.equal(x, before)
    same = in_place(TORCH, x.numel() - 1).residual_linear(x, h, weight, bias, None)
    assert same is x
    for result in (new, same):
        torch.testing.assert_close(result, expected)


def test_5000_residues_need_less_memory_than_a_gpu_of_80_gb_has() -> None:
    """Counted on fake tensors, of the largest preset; all blocks need the same, so one counts."""
    one = {"num_blocks": 1}
    config = preset_config("model_1_ptm", {"model": {"evoformer": one, "extra_msa": one}})
    shapes = config.features
    sizes = {"B": 1, "N": 5056, "S": shapes.max_msa_clusters, "E": shapes.max_extra_msa, "T": 1}
    assembly = Assembly(in_place(chunked(kernel_ops(), MAX_PART_ELEMENTS), MAX_PART_ELEMENTS))
    with FakeTensorMode(), torch.inference_mode(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        model = AlphaFold(config.model, assembly).eval().requires_grad_(False)
        narrow_model(model, "bf16")
        with _Living() as living:
            features = {
                name: torch.empty(
                    [sizes[dim] if isinstance(dim, str) else dim for dim in spec.dims],
                    dtype=spec.dtype,
                )
                for name, spec in INPUT_FEATURES.items()
            }
            like = model.input_embedder.linear_msa_m.weight
            previous = Previous.zeros(1, sizes["N"], config.model, like)
            templates = model.embed_templates(features)
            previous = model.recycle(features, previous, templates)
            model(features, previous, templates)
    # the weights are 0.4 GB; a tenth is left for what kernels and libraries use
    assert living.most < 0.9 * GPU_BYTES
