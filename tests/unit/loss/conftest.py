"""Real truth and made-up predictions for the loss tests, float64, B = 1.

Legend: B samples, N residues, L = 2 structure module layers, S = 3 MSA rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scalefold.config.schema import LossConfig
from scalefold.features.atoms import atom_layout
from scalefold.features.contract import ALL_FEATURES, Features
from scalefold.features.targets import structure_targets
from scalefold.geometry.rigid import Rigid, quaternion_to_rotation
from scalefold.model.contract import Outputs, Structure
from scalefold.raw.mmcif import read_entry

LAYERS, ROWS = 2, 3
DEMO = Path(__file__).parents[3] / "demo/mirror/wwpdb"

MakeTruth = Callable[..., Features]
MakeOutputs = Callable[..., Outputs]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="session")
def make_truth() -> MakeTruth:
    """Features of residues ``start`` to ``stop`` of BPTI (1.0 Å, all 58 residues observed)."""
    chain = read_entry(next(DEMO.rglob("5pti.cif.gz"))).chains[0]

    def make(start: int = 0, stop: int = 16) -> Features:
        aatype = torch.from_numpy(chain.aatype[start:stop]).long()
        positions = torch.from_numpy(chain.positions[start:stop])
        mask = torch.from_numpy(chain.atom_mask[start:stop]).float()
        num_res = stop - start
        generator = _generator(start)
        features = {
            "aatype": aatype,
            "residue_index": torch.arange(start, stop),
            "seq_mask": torch.ones(num_res),
            "true_msa": torch.randint(0, 22, (ROWS, num_res), generator=generator),
            "bert_mask": (torch.rand(ROWS, num_res, generator=generator) < 0.4).float(),
            "resolution": torch.tensor(1.0),
            "seq_length": torch.tensor(58),
            "use_clamped_fape": torch.tensor(1.0),
            **atom_layout(aatype),
            **structure_targets(aatype, positions, mask),
        }
        return {k: (v.double() if v.is_floating_point() else v)[None] for k, v in features.items()}

    return make


def _noise(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _outputs(features: Features, frames: Rigid, positions: Tensor, angles: Tensor, ca: Tensor,
             generator: torch.Generator) -> Outputs:  # fmt: skip
    batch, num_res = features["aatype"].shape
    atoms = torch.zeros(batch, num_res, 37, 3, dtype=torch.float64)
    atoms[:, :, 1] = ca
    return Outputs(
        msa=torch.zeros(0),
        pair=torch.zeros(0),
        single=torch.zeros(0),
        structure=Structure(
            backbone=Rigid(frames.rotation[..., 0, :, :], frames.translation[..., 0, :]),
            sidechain=frames,
            unnormalized_angles=angles,
            angles=angles / angles.norm(dim=-1, keepdim=True),
            positions=positions,
            single=torch.zeros(0),
        ),
        positions=atoms,
        position_mask=torch.zeros(0),
        distogram_logits=_noise(generator, batch, num_res, num_res, 64),
        masked_msa_logits=_noise(generator, batch, ROWS, num_res, 23),
        plddt_logits=_noise(generator, batch, num_res, 50),
        experimentally_resolved_logits=_noise(generator, batch, num_res, 37),
        pae_logits=_noise(generator, batch, num_res, num_res, 64),
    )


@pytest.fixture(scope="session")
def perfect_outputs() -> MakeOutputs:
    """The truth as prediction, in all layers; logits are noise."""

    def make(features: Features) -> Outputs:
        true = features["rigidgroups_gt_frames"].expand(LAYERS, -1, -1, -1, -1, -1)
        batch, num_res = features["aatype"].shape
        angles = torch.zeros(LAYERS, batch, num_res, 7, 2, dtype=torch.float64)
        angles[..., 1] = 1.0
        chi = features["chi_angles_sin_cos"]
        angles[..., 3:, :] = torch.where(
            features["chi_mask"][..., None] > 0, chi, angles[0, :, :, 3:]
        )
        positions = features["atom14_gt_positions"].expand(LAYERS, -1, -1, -1, -1)
        ca = features["all_atom_positions"][:, :, 1]
        return _outputs(features, Rigid.from_4x4(true), positions, angles, ca, _generator(0))

    return make


@pytest.fixture(scope="session")
def noisy_outputs() -> MakeOutputs:
    """A bad prediction: some errors above 10 Å, many bonds broken, some groups swapped."""

    def make(features: Features, seed: int = 0) -> Outputs:
        generator = _generator(seed)
        shape = (LAYERS, *features["aatype"].shape)
        true = Rigid.from_4x4(features["rigidgroups_gt_frames"])
        turn = torch.cat(
            [torch.ones(*shape, 8, 1), 0.3 * _noise(generator, *shape, 8, 3)], -1
        ).double()
        turn = quaternion_to_rotation(turn / turn.norm(dim=-1, keepdim=True))
        frames = Rigid(
            true.rotation @ turn, true.translation + 5.0 * _noise(generator, *shape, 8, 3)
        )
        swap = (torch.arange(shape[-1]) % 2 == 1)[:, None, None]
        named = torch.where(
            swap, features["atom14_alt_gt_positions"], features["atom14_gt_positions"]
        )
        positions = named + 0.4 * _noise(generator, *shape, 14, 3)
        ca = features["all_atom_positions"][:, :, 1] + _noise(generator, *shape[1:], 3)
        angles = _noise(generator, *shape, 7, 2)
        return _outputs(features, frames, positions, angles, ca, generator)

    return make


@pytest.fixture(scope="session")
def all_terms() -> LossConfig:
    """Every term switched on."""
    return LossConfig(
        fape=1.0, chi=0.7, distogram=0.3, masked_msa=2.0, plddt=0.4, experimentally_resolved=0.6,
        violation=0.9, pae=0.2,
    )  # fmt: skip


def _concatenate(items: list[Tensor], dim: int) -> Tensor:
    return torch.cat(items, dim) if items[0].numel() else items[0]


@pytest.fixture(scope="session")
def join() -> Callable[..., tuple[Features, Outputs]]:
    """Make one batch of several samples."""

    def make(samples: list[tuple[Features, Outputs]]) -> tuple[Features, Outputs]:
        features = {name: torch.cat([f[name] for f, _ in samples]) for name in samples[0][0]}
        outputs = [o for _, o in samples]
        structures = [o.structure for o in outputs]

        def rigid(name: str) -> Rigid:
            parts = [getattr(s, name) for s in structures]
            return Rigid(
                torch.cat([p.rotation for p in parts], 1),
                torch.cat([p.translation for p in parts], 1),
            )

        def layered(name: str) -> Tensor:
            return torch.cat([getattr(s, name) for s in structures], 1)

        plain = {
            name: _concatenate([getattr(o, name) for o in outputs], 0)
            for name in Outputs._fields
            if name != "structure"
        }
        structure = Structure(
            rigid("backbone"),
            rigid("sidechain"),
            layered("unnormalized_angles"),
            layered("angles"),
            layered("positions"),
            structures[0].single,
        )
        return features, Outputs(structure=structure, **plain)

    return make


def _pad(value: Tensor, axes: list[int], extra: int, fill: float) -> Tensor:
    for axis in axes:
        shape = list(value.shape)
        shape[axis] = extra
        value = torch.cat([value, torch.full(shape, fill, dtype=value.dtype)], axis)
    return value


@pytest.fixture(scope="session")
def pad() -> Callable[[Features, Outputs, int], tuple[Features, Outputs]]:
    """Append padded residues: zeros in the features, arbitrary numbers in the prediction."""

    def make(features: Features, outputs: Outputs, extra: int) -> tuple[Features, Outputs]:
        padded = {}
        for name, value in features.items():
            axes = [i for i, d in enumerate(ALL_FEATURES[name].dims) if d == "N"]
            padded[name] = _pad(value, axes, extra, 0)
        structure = outputs.structure

        def rigid(frames: Rigid) -> Rigid:
            return Rigid(
                _pad(frames.rotation, [2], extra, 0.3), _pad(frames.translation, [2], extra, 1.0)
            )

        return padded, outputs._replace(
            structure=structure._replace(
                backbone=rigid(structure.backbone),
                sidechain=rigid(structure.sidechain),
                unnormalized_angles=_pad(structure.unnormalized_angles, [2], extra, 0.5),
                angles=_pad(structure.angles, [2], extra, 0.5),
                positions=_pad(structure.positions, [2], extra, 1.0),
            ),
            positions=_pad(outputs.positions, [1], extra, 1.0),
            distogram_logits=_pad(outputs.distogram_logits, [1, 2], extra, 2.0),
            masked_msa_logits=_pad(outputs.masked_msa_logits, [2], extra, 2.0),
            plddt_logits=_pad(outputs.plddt_logits, [1], extra, 2.0),
            experimentally_resolved_logits=_pad(
                outputs.experimentally_resolved_logits, [1], extra, 2.0
            ),
            pae_logits=_pad(outputs.pae_logits, [1, 2], extra, 2.0),
        )

    return make
