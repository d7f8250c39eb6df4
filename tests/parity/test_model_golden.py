"""The model against golden numbers of the public OpenFold, in float64 (see README_model.md).

Weights and inputs are made by formula (`tests.example`), so only results are stored: for
each output and each parameter's gradient its norm and its dot product with a random tensor, and for
outputs a few elements.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.example import example_features, set_example_weights, uniform
from torch import Tensor

from scalefold.config.load import merge, preset_tree
from scalefold.config.model import ModelConfig
from scalefold.features.contract import INPUT_FEATURES, Features
from scalefold.geometry.rigid import Rigid
from scalefold.model import AlphaFold, Outputs, Previous

GOLDEN = Path(__file__).with_name("model_golden.json")
RELATIVE_TOLERANCE = 1e-9

SIZES = {"B": 2, "N": 14, "S": 5, "E": 7, "T": 3}
_SHALLOW: dict[str, Any] = {
    "evoformer": {"num_blocks": 1},
    "extra_msa": {"num_blocks": 1},
    "template": {"num_blocks": 1},
    "structure": {"num_layers": 2},
}
# name: (preset, overrides of the model section, passes before the last, padded residues)
CASES: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "small": ("tiny", {"template": {"num_blocks": 2}}, 0, 0),
    "small_recycled_padded": ("tiny", {"extra_msa": {"num_blocks": 2}}, 3, 3),
    "small_without_templates": ("tiny", {"template": {"enabled": False}}, 1, 2),
    "small_ptm": ("tiny", {"pae_head": True}, 1, 0),
    "wide_recycled_padded": ("model_1_ptm", _SHALLOW, 1, 2),
}


def model_config(case: str) -> ModelConfig:
    preset, overrides, _, _ = CASES[case]
    return ModelConfig.model_validate(merge(preset_tree(preset).get("model", {}), overrides))


def passes_of(case: str, sizes: dict[str, int] = SIZES) -> list[Features]:
    """Features of every pass, float64; sample features are those of the first pass."""
    _, _, recycles, padding = CASES[case]
    first = example_features(sizes, seed=0, padding=padding)
    passes = []
    for index in range(recycles + 1):
        own = example_features(sizes, seed=index, padding=padding)
        chosen = {n: (own if INPUT_FEATURES[n].per_pass else first)[n] for n in first}
        passes.append({n: x.double() if x.is_floating_point() else x for n, x in chosen.items()})
    return passes


def named_outputs(outputs: Outputs, features: Features) -> dict[str, Tensor]:
    """What is compared, zero at padded rows and residues (which nothing may read)."""
    structure = outputs.structure
    residue, msa = features["seq_mask"], features["msa_mask"]
    pair = residue[:, :, None] * residue[:, None, :]
    masked = {
        "msa": (outputs.msa, msa),
        "pair": (outputs.pair, pair),
        "single": (outputs.single, residue),
        "positions": (outputs.positions, residue),
        "distogram_logits": (outputs.distogram_logits, pair),
        "masked_msa_logits": (outputs.masked_msa_logits, msa),
        "plddt_logits": (outputs.plddt_logits, residue),
        "experimentally_resolved_logits": (outputs.experimentally_resolved_logits, residue),
        "structure_single": (structure.single, residue),
        "unnormalized_angles": (structure.unnormalized_angles, residue),
        "angles": (structure.angles, residue),
        "atom14_positions": (structure.positions, residue),
        "backbone_rotation": (structure.backbone.rotation, residue),
        "backbone_translation": (structure.backbone.translation, residue),
        "sidechain_rotation": (structure.sidechain.rotation, residue),
        "sidechain_translation": (structure.sidechain.translation, residue),
    }
    if outputs.pae_logits is not None:
        masked["pae_logits"] = (outputs.pae_logits, pair)
    named = {}
    for name, (value, mask) in masked.items():
        layered = "backbone" in name or "sidechain" in name or "angles" in name or "14" in name
        leading = mask.ndim + layered
        trailing = mask.reshape(*mask.shape, *[1] * (value.ndim - leading))
        named[name] = value * trailing
    return named


def scalar(named: dict[str, Tensor]) -> Tensor:
    """A number that depends on every element, each output scaled alike."""
    terms = []
    for name, value in named.items():
        weight = 2 * uniform("loss." + name, tuple(value.shape), 0) - 1
        terms.append((value * weight).sum() / value.detach().square().sum().sqrt())
    return torch.stack(terms).sum()


def digest(name: str, value: Tensor) -> list[float]:
    """Norm, and dot product with a random tensor."""
    value = value.detach().double()
    weight = 2 * uniform("digest." + name, tuple(value.shape), 0) - 1
    return [value.square().sum().sqrt().item(), (value * weight).sum().item()]


def samples(name: str, value: Tensor, count: int = 4) -> list[float]:
    """A few elements."""
    flat = value.detach().flatten()
    index = (uniform("sample." + name, (count,), 0) * flat.numel()).long()
    return flat[index].tolist()


def record(named: dict[str, Tensor], gradients: dict[str, Tensor]) -> dict[str, Any]:
    return {
        "outputs": {n: digest(n, x) + samples(n, x) for n, x in named.items()},
        "gradients": {n: digest(n, x) for n, x in gradients.items()},
    }


def run(case: str) -> dict[str, Any]:
    config = model_config(case)
    model = AlphaFold(config).double()
    model.eval()  # no dropout
    set_example_weights(model)
    passes = passes_of(case)
    previous = Previous.zeros(
        SIZES["B"], SIZES["N"], config, like=model.input_embedder.linear_tf_m.weight
    )
    templates = model.embed_templates(passes[-1])
    with torch.no_grad():
        for features in passes[:-1]:
            previous = model.recycle(features, previous, templates)
    outputs, _ = model(passes[-1], previous, templates)
    named = named_outputs(outputs, passes[-1])
    scalar(named).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return record(named, gradients)


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_equal_openfold(case: str) -> None:
    golden = json.loads(GOLDEN.read_text("utf-8"))[case]
    result = run(case)
    for kind in ("outputs", "gradients"):
        assert result[kind].keys() == golden[kind].keys()
        largest = max(expected[0] for expected in golden[kind].values())
        for name, expected in golden[kind].items():
            # Dot product and elements are small against the norm by chance: the norm is the scale.
            # Some gradients are zero but for rounding (a bias that softmax does not feel).
            scale = max(expected[0], 1e-6 * largest)
            assert result[kind][name] == pytest.approx(
                expected, rel=0, abs=RELATIVE_TOLERANCE * scale
            ), f"{case}: {kind} {name}"


def test_rigid_of_outputs_is_a_pair_of_tensors() -> None:
    # The oracle's adapter builds `Rigid` from its own frames; keep the order that it relies on.
    assert Rigid._fields == ("rotation", "translation")
