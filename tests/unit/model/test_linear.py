import math

import pytest
import torch

from scalefold.model import AlphaFold
from scalefold.model.linear import Linear


@pytest.mark.parametrize(
    ("init", "variance", "bound"),
    [
        ("lecun", 1 / 400, 2 / 0.8796 / 20),
        ("relu", 2 / 400, 2 / 0.8796 * math.sqrt(2) / 20),
        ("normal", 1 / 400, math.inf),
        ("glorot", 2 / (400 + 500), math.sqrt(6 / 900)),
    ],
)
def test_variance_and_bounds(init, variance: float, bound: float) -> None:
    torch.manual_seed(0)
    layer = Linear(400, 500, init=init)
    weight = layer.weight.detach()
    # relative error of a sample variance: sqrt(2 / n) for a normal, less for bounded ones
    assert weight.var().item() == pytest.approx(variance, rel=4 * math.sqrt(2 / weight.numel()))
    assert weight.abs().max().item() <= bound * 1.0001
    assert (layer.bias == 0).all()


def test_gating_and_final() -> None:
    gate, final = Linear(4, 3, init="gating"), Linear(4, 3, init="final")
    assert (gate.weight == 0).all()
    assert (gate.bias == 1).all()
    assert (final.weight == 0).all()
    assert (final.bias == 0).all()


ZERO = (
    "mha.linear_o",
    "global_attention.linear_o",
    "linear_2" + "@transition",
    "outer_product_mean.linear_out",
    "linear_z" + "@tri_mul",
    "ipa.linear_out",
    "bb_update.linear",
    "linear_3",
    "angle_resnet.layers.0.linear_2",
    "angle_resnet.layers.1.linear_2",
    "distogram.linear",
    "masked_msa.linear",
    "experimentally_resolved.linear",
    "tm.linear",
)


def _starts_at_zero(name: str) -> bool:
    for pattern in ZERO:
        tail, _, place = pattern.partition("@")
        if name.endswith(tail + ".weight") and place in name:
            return "structure_module.transition" not in name or tail == "linear_3"
    return False


def test_which_layers_of_the_model_start_at_zero_or_open(config_of) -> None:
    model = AlphaFold(config_of(pae_head=True))
    for name, parameter in model.named_parameters():
        gate = any(part in name for part in ("linear_g.", "linear_a_g.", "linear_b_g."))
        if name.endswith("weight") and parameter.ndim == 2:
            assert (parameter == 0).all() == (gate or _starts_at_zero(name)), name
        elif name.endswith("bias"):
            assert (parameter == (1.0 if gate else 0.0)).all(), name
