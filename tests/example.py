"""Example inputs and weights by formula: for tests and golden numbers.

Everything is a function of the names, shapes and a seed by the hash of ``ops.dropout``, so golden
numbers need no stored inputs and do not depend on a library's random generator.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from scalefold.chem.residues import (
    ATOM14_MASK,
    ATOM14_TO_ATOM37,
    ATOM37_MASK,
    ATOM37_TO_ATOM14,
    MASK,
    NUM_RESTYPES,
)
from scalefold.features.contract import ALL_FEATURES, INPUT_FEATURES, Features, FeatureSpec
from scalefold.ops.dropout import random_bits

_INTEGER_RANGE = {"aatype": 21, "template_aatype": 22, "extra_msa": MASK + 1, "dropout_key": 2**31}


def uniform(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Uniform numbers in [0, 1), float64, by (name, seed, flat index)."""
    key = torch.tensor([zlib.crc32(name.encode())])
    bits = random_bits(key, seed, (math.prod(shape),))[0]
    return (((bits >> 11) & ((1 << 53) - 1)).double() * 2.0**-53).reshape(shape)


def check_contract(
    features: Features,
    sizes: Mapping[str, int],
    contract: Mapping[str, FeatureSpec] = ALL_FEATURES,
) -> None:
    """Check names, shapes and types of features."""
    found = {name: (list(tensor.shape), tensor.dtype) for name, tensor in features.items()}
    assert found == {name: (spec.shape(sizes), spec.dtype) for name, spec in contract.items()}


def example_features(sizes: Mapping[str, int], seed: int = 0, padding: int = 0) -> Features:
    """Random but well-formed model inputs.

    Parameters
    ----------
    sizes : mapping
        Of the dimensions of the feature contract: B, N, S, E, T.
    padding : int
        Number of padded residues; where positive, the last rows of both alignments and the last
        template slot are padded as well.

    Returns
    -------
    dict of str to Tensor
        All of ``INPUT_FEATURES``. Template coordinates are random points, not a protein.
    """
    features: Features = {}
    for name, spec in INPUT_FEATURES.items():
        value = uniform(name, tuple(spec.shape(sizes)), seed)
        if not spec.dtype.is_floating_point:
            value = (value * _INTEGER_RANGE.get(name, 1)).floor()
        elif name.endswith(("positions", "pseudo_beta")):
            value = value * 40.0
        elif "sin_cos" in name:
            angle = value[..., 0] * (2 * math.pi)
            value = torch.stack([angle.sin(), angle.cos()], -1)
        elif name.startswith("template") and name.endswith("mask"):
            value = (value > 0.15).double()
        features[name] = value.to(spec.dtype)

    num_res = sizes["N"]
    real = (torch.arange(num_res) < num_res - padding).float().expand(sizes["B"], num_res)
    features["seq_mask"] = real.contiguous()
    features["aatype"] = features["aatype"] * real.long()
    # A gap in the numbering, as after cropping or an unresolved loop, is not one in the features.
    features["residue_index"] = torch.arange(num_res).repeat(sizes["B"], 1) + 7
    for name, dim in (("msa_mask", "S"), ("extra_msa_mask", "E")):
        row = (torch.arange(sizes[dim]) < sizes[dim] - bool(padding)).float()
        features[name] = row[:, None] * real[:, None]
    slot = (torch.arange(sizes["T"]) < sizes["T"] - bool(padding)).float()
    features["template_mask"] = slot.expand(sizes["B"], -1).contiguous()
    for name in ("template_all_atom_mask", "template_pseudo_beta_mask"):
        mask = features[name]
        outer = slot[:, None] * real[:, None]
        features[name] = mask * outer.reshape(*outer.shape, *[1] * (mask.ndim - 3))
    mask = features["template_torsion_angles_mask"]
    features["template_torsion_angles_mask"] = mask * (slot[:, None] * real[:, None])[..., None]
    for name, table in (
        ("atom14_atom_exists", ATOM14_MASK),
        ("atom37_atom_exists", ATOM37_MASK),
        ("residx_atom14_to_atom37", ATOM14_TO_ATOM37),
        ("residx_atom37_to_atom14", ATOM37_TO_ATOM14),
    ):
        features[name] = torch.tensor(table)[features["aatype"].clamp(max=NUM_RESTYPES)]
    for name in ("atom14_atom_exists", "atom37_atom_exists"):
        features[name] = features[name] * real[..., None]
    return features


def set_example_weights(model: nn.Module, seed: int = 0, gain: float = 1.0) -> None:
    """Overwrite every parameter, so that none is zero and no path through the model is closed.

    With u uniform in [-1, 1): matrices are ``gain * sqrt(3 / fan_in) * u``, which keeps variances;
    scales of normalisations ``1 + 0.2 u``; all other vectors ``0.2 u``.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            u = 2 * uniform(name, tuple(parameter.shape), seed) - 1
            if parameter.ndim == 2:
                u = u * (gain * math.sqrt(3 / parameter.shape[1]))
            elif "layer_norm" in name and name.endswith("weight"):
                u = 1 + 0.2 * u
            else:
                u = 0.2 * u
            parameter.copy_(u)
