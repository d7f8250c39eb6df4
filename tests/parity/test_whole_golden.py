"""The whole chain on real batches against golden numbers of the public OpenFold, in float64.

Model, recycling, every loss term, their weighted sum and its gradient by every parameter.
``whole_golden/README.md`` says how the batches and the numbers were made; weights are made by
formula (`tests.example`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.example import set_example_weights, uniform
from torch import Tensor

from scalefold.config.load import merge, preset_tree
from scalefold.config.model import ModelConfig
from scalefold.config.schema import LossConfig
from scalefold.features.contract import ALL_FEATURES, Features
from scalefold.loss.total import TERMS, total_loss
from scalefold.model import AlphaFold, Outputs, Previous

FOLDER: Final = Path(__file__).with_name("whole_golden")
BATCHES: Final = FOLDER / "batches.npz"
GOLDEN: Final = FOLDER / "openfold.npz"
RELATIVE_TOLERANCE: Final = 1e-9
# A gradient smaller than this share of the largest is zero but for rounding (a bias that a softmax
# does not feel): its error is measured against this share.
ZERO_GRADIENT: Final = 1e-7

OPENFOLD_CA_C_N_STDDEV: Final = 0.014
ALL_TERMS: Final = LossConfig(
    violation=1.0,
    violation_ca_c_n_stddev=OPENFOLD_CA_C_N_STDDEV,
    experimentally_resolved=0.01,
    pae=0.1,
)
INITIAL_TERMS: Final = LossConfig()


class Case(NamedTuple):
    """One comparison."""

    batch: str
    recycles: int
    templates: bool
    pae_head: bool
    loss: LossConfig


CASES: Final = {
    "templates_recycled": Case("2nwd_X", 3, True, True, ALL_TERMS),
    "templates": Case("2nwd_X", 0, True, True, ALL_TERMS),
    "recycled": Case("2nwd_X", 3, False, True, ALL_TERMS),
    "neither": Case("2nwd_X", 0, False, True, ALL_TERMS),
    "initial_training": Case("2nwd_X", 3, True, False, INITIAL_TERMS),
    "gaps_and_padding": Case("gaps", 3, True, True, ALL_TERMS),
}


class Result(NamedTuple):
    """What is compared; terms are unweighted, ``total`` is their weighted and scaled sum."""

    outputs: dict[str, Tensor]
    terms: dict[str, Tensor]
    gradients: dict[str, Tensor]


def model_config(case: Case, preset: str = "tiny", **overrides: Any) -> ModelConfig:
    switches = {"pae_head": case.pae_head, "template": {"enabled": case.templates}}
    tree = merge(preset_tree(preset).get("model", {}), switches)
    return ModelConfig.model_validate(merge(tree, overrides))


def load_passes(batch: str, recycles: int, dtype: torch.dtype = torch.float64) -> list[Features]:
    """Features of the passes; the stored ones are float32, so any type is exact from there up."""
    passes: list[Features] = [{} for _ in range(recycles + 1)]
    with np.load(BATCHES) as stored:
        for name, spec in ALL_FEATURES.items():
            value = torch.from_numpy(stored[f"{batch}/{name}"]).to(spec.dtype)
            for index, features in enumerate(passes):
                one = value[index] if spec.per_pass else value
                features[name] = one.to(dtype) if one.is_floating_point() else one
    return passes


def named_outputs(outputs: Outputs, features: Features) -> dict[str, Tensor]:
    """All outputs; zero at padded rows and residues, which nothing may read."""
    residue, rows = features["seq_mask"], features["msa_mask"]
    pair = residue[:, :, None] * residue[:, None, :]
    structure = outputs.structure
    layered = {
        "unnormalized_angles": structure.unnormalized_angles,
        "angles": structure.angles,
        "atom14_positions": structure.positions,
        "backbone_rotation": structure.backbone.rotation,
        "backbone_translation": structure.backbone.translation,
        "sidechain_rotation": structure.sidechain.rotation,
        "sidechain_translation": structure.sidechain.translation,
    }
    masked = {name: (value, residue[None]) for name, value in layered.items()}
    masked |= {
        "msa": (outputs.msa, rows),
        "pair": (outputs.pair, pair),
        "single": (outputs.single, residue),
        "structure_single": (structure.single, residue),
        "positions": (outputs.positions, residue),
        "distogram_logits": (outputs.distogram_logits, pair),
        "masked_msa_logits": (outputs.masked_msa_logits, rows),
        "plddt_logits": (outputs.plddt_logits, residue),
        "experimentally_resolved_logits": (outputs.experimentally_resolved_logits, residue),
    }
    if outputs.pae_logits is not None:
        masked["pae_logits"] = (outputs.pae_logits, pair)
    return {
        name: value.detach() * mask.reshape(*mask.shape, *[1] * (value.ndim - mask.ndim))
        for name, (value, mask) in masked.items()
    }


def run(config: ModelConfig, loss: LossConfig, passes: list[Features], seed: int = 0) -> Result:
    """This model's results, in the type of the features; no dropout."""
    model = AlphaFold(config).to(passes[0]["seq_mask"].dtype).eval()
    set_example_weights(model, seed)
    batch, num_res = passes[0]["aatype"].shape
    like = model.input_embedder.linear_tf_m.weight
    previous = Previous.zeros(batch, num_res, config, like=like)
    templates = model.embed_templates(passes[-1])
    with torch.no_grad():
        for features in passes[:-1]:
            previous = model.recycle(features, previous, templates)
    outputs, _ = model(passes[-1], previous, templates)
    total, terms = total_loss(outputs, passes[-1], loss)
    total.backward()
    return Result(
        named_outputs(outputs, passes[-1]),
        {**terms, "total": total.detach()},
        {n: gradient(p) for n, p in model.named_parameters()},
    )


def gradient(parameter: Tensor) -> Tensor:
    """Zero where nothing depends on it: a head whose term has weight 0 is not evaluated here."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def digest(name: str, value: Tensor, elements: int) -> NDArray[np.float64]:
    """Norm, dot product with a random tensor, and a few elements."""
    value = value.detach().double()
    weight = 2 * uniform("digest." + name, tuple(value.shape), 0) - 1
    flat = value.flatten()
    index = (uniform("sample." + name, (elements,), 0) * flat.numel()).long()
    sums = torch.stack([value.norm(), (value * weight).sum()])
    return torch.cat([sums, flat[index]]).numpy()


def record(result: Result) -> dict[str, NDArray[Any]]:
    """What is stored of a result: for each kind its names and a row of numbers for each."""
    stored: dict[str, NDArray[Any]] = {}
    for kind, elements in (("outputs", 4), ("gradients", 2)):
        values = getattr(result, kind)
        stored[f"{kind}/names"] = np.array(sorted(values))
        stored[kind] = np.stack([digest(name, values[name], elements) for name in sorted(values)])
    stored["terms/names"] = np.array(sorted(result.terms))
    stored["terms"] = np.array([result.terms[name].item() for name in sorted(result.terms)])
    return stored


@pytest.mark.parametrize("name", CASES)
def test_outputs_losses_and_gradients_equal_openfold(name: str) -> None:
    case = CASES[name]
    result = run(model_config(case), case.loss, load_passes(case.batch, case.recycles))
    computed = record(result)
    with np.load(GOLDEN) as stored:
        golden = {key: stored[f"{name}/{key}"] for key in computed}

    for kind in ("outputs", "terms", "gradients"):
        names = golden[f"{kind}/names"].tolist()
        if kind == "terms":  # a term of weight 0 is not computed here, by OpenFold it is
            weighted = [t for t in TERMS if getattr(case.loss, t) > 0]
            assert set(computed["terms/names"].tolist()) == {*weighted, "total"}
            assert set(names) >= {*weighted, "total"}
            rows = [names.index(term) for term in computed["terms/names"].tolist()]
            names, expected = [names[row] for row in rows], golden[kind][rows, None]
            scale = np.abs(expected[:, 0])
        else:
            assert computed[f"{kind}/names"].tolist() == names
            expected = golden[kind]
            # elements and dot products are small against the norm by chance: the norm is the scale
            scale = np.maximum(expected[:, 0], ZERO_GRADIENT * expected[:, 0].max())
        error = np.abs(computed[kind].reshape(expected.shape) - expected).max(1) / scale
        worst = int(error.argmax())
        assert error[worst] <= RELATIVE_TOLERANCE, f"{name}: {kind} {names[worst]}: {error[worst]}"


def test_batches_are_what_they_are_said_to_be() -> None:
    (chain,), (gaps,) = load_passes("2nwd_X", 0), load_passes("gaps", 0)
    assert chain["seq_mask"].all()
    for batch in (chain, gaps):
        assert batch["atom14_atom_is_ambiguous"].any()
        assert 0.1 <= batch["resolution"].item() <= 3.0  # pLDDT, resolved and PAE losses count
    assert chain["template_mask"].all()
    assert not gaps["template_mask"].any()
    exists, seen = gaps["atom37_atom_exists"], gaps["all_atom_mask"]
    assert (exists - seen).clamp(min=0).sum() > 20
    assert not gaps["backbone_rigid_mask"][gaps["seq_mask"] > 0].all()
    assert 0 < gaps["seq_mask"].sum() < gaps["seq_mask"].numel()
    assert {chain["use_clamped_fape"].item(), gaps["use_clamped_fape"].item()} == {0.0, 1.0}
