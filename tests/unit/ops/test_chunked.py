"""Operations in parts give the numbers of the whole."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from tests.example import example_features, set_example_weights

from scalefold.config.load import preset_model
from scalefold.model import AlphaFold, Previous
from scalefold.model.assembly import Assembly
from scalefold.ops import TORCH
from scalefold.ops.attention import attention
from scalefold.ops.chunked import chunked

SIZES = {"B": 2, "N": 13, "S": 5, "E": 7, "T": 2}


def outputs(config, ops):
    model = AlphaFold(config, Assembly(ops=ops)).double().eval()
    set_example_weights(model)
    features = example_features(SIZES, padding=3)
    features = {k: v.double() if v.is_floating_point() else v for k, v in features.items()}
    with torch.inference_mode():
        templates = model.embed_templates(features)
        previous = Previous.zeros(2, 13, config, next(model.parameters()))
        previous = model.recycle(features, previous, templates)
        return model(features, previous, templates)[0]


@pytest.mark.parametrize("max_elements", [1, 700, 5000])
def test_the_model_in_parts_is_the_model(max_elements):
    """In float64, where other orders of summation stay far below what a lost row would do."""
    config = preset_model("tiny", {"model": {"pae_head": True}})
    calls: dict[str, int] = {}

    def counted(name):
        operation = getattr(TORCH, name)

        def call(*arguments):
            calls[name] = calls.get(name, 0) + 1
            return operation(*arguments)

        return call

    whole = outputs(config, replace(TORCH, **{f.name: counted(f.name) for f in fields(TORCH)}))
    ops = chunked(TORCH, max_elements)
    in_parts = {f.name for f in fields(ops) if getattr(ops, f.name) is not getattr(TORCH, f.name)}
    assert in_parts <= calls.keys()
    parts = outputs(config, ops)
    for name in ("positions", "plddt_logits", "pae_logits", "distogram_logits"):
        ours, expected = getattr(parts, name), getattr(whole, name)
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    assert whole.positions.abs().max() > 1


def test_float32_agrees_to_five_digits():
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    q, k, v, gate = (draw(1, 40, 50, 4, 8) for _ in range(4))
    mask, bias = (draw(1, 40, 50) > 0).float(), draw(1, 4, 50, 50)
    whole = attention(q, k, v, gate, mask, bias)
    parts = chunked(TORCH, 30_000).attention(q, k, v, gate, mask, bias)
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)


def test_other_implementations_stay():
    def kernel(*arguments):
        raise AssertionError

    mixed = chunked(replace(TORCH, attention=kernel), 1)
    assert mixed.attention is kernel
    assert mixed.transition is not TORCH.transition


def test_no_part_makes_more_than_it_may(monkeypatch):
    """The longest attention's logits are counted, as its reference would make them."""
    made = []

    def noted(q, k, *rest):
        made.append(q.shape[0] * q.shape[1] * q.shape[2] * q.shape[3] * k.shape[2])
        return attention(q, k, *rest)

    ops = chunked(TORCH, 10_000)
    monkeypatch.setattr("scalefold.ops.chunked.TORCH", replace(TORCH, attention=noted))
    q = torch.zeros(1, 30, 20, 2, 4)
    assert ops.attention(q, q, q, None, torch.ones(1, 1, 20), None).shape == q.shape
    assert len(made) == 3
    assert max(made) <= 10_000
