"""Make ``tests/parity/loss_golden/alphafold2.npz``: inputs of all loss terms and the answers.

Not a test, and needed only to make the file anew. Run it in an environment with jax, dm-haiku,
ml_collections and dm-tree beside scalefold, with a checkout of google-deepmind/alphafold (and in it
``alphafold/common/stereo_chemical_props.txt``, which AlphaFold's installation downloads)::

    python -m tools.parity.loss_golden.make <path of the checkout>

The present file was made with the checkout's state of 2026 (violations of the CA-C-N angle measured
with that angle's own deviation) and jax 0.10.2.

AlphaFold2 runs one sample at a time, in float64, through its own functions; gradients by jax. Of a
term ``x`` the file holds ``x``, one value a sample (for the backbone FAPE a layer and sample), and
the gradients of the sum of its entries as ``x.d_<input>``. Gradients by logits are stored as
products with ``cos(bin number)``, summed over the bins, to save room.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import haiku as hk
import jax
import ml_collections
import numpy as np
from tools.parity.loss_golden.case import NUM_RES, Arrays, make_inputs

jax.config.update("jax_enable_x64", True)
sys.path.insert(0, sys.argv[1])
import jax.numpy as jnp  # noqa: E402
from alphafold.model import all_atom, folding, lddt, modules, quat_affine, r3  # noqa: E402

# AlphaFold2 casts masks and counts to float32: not here.
jnp.float32 = jnp.float64

LAYERED = {"backbone", "sidechain", "positions", "angles", "unnormalized_angles"}
CONFIG = ml_collections.ConfigDict(
    {
        "clash_overlap_tolerance": 1.5,
        "violation_tolerance_factor": 12.0,
        "structural_violation_loss_weight": 1.0,
        "chi_weight": 0.5,
        "angle_norm_weight": 0.01,
        "sidechain": {"weight_frac": 0.5},
    }
)


def _vectors(x: Any) -> Any:
    return r3.Vecs(*(x[..., i] for i in range(3)))


def _rigids(rotation: Any, translation: Any) -> Any:
    entries = (rotation[..., i, j] for i in range(3) for j in range(3))
    return r3.Rigids(r3.Rots(*entries), _vectors(translation))


def _quaternions(rotation: Any, translation: Any) -> Any:
    quaternion = quat_affine.rot_to_quat(rotation, unstack_inputs=True)
    return quat_affine.QuatAffine(quaternion, translation, unstack_inputs=True).to_tensor()


def _head_loss(name: str, value: Any, batch: Any, **config: Any) -> Any:
    def run() -> Any:
        module = getattr(modules, name)(
            ml_collections.ConfigDict({"filter_by_resolution": False, **config}),
            ml_collections.ConfigDict({"multimer_mode": False}),
        )
        return module.loss(value, batch)["loss"]

    return hk.transform(run).apply({}, jax.random.PRNGKey(0))


class Sample:
    """Terms of one sample."""

    def __init__(self, inputs: Arrays, number: int) -> None:
        self.batch: dict[str, Any] = {}
        for name, array in inputs.items():
            one = array[:, number] if name.partition(".")[0] in LAYERED else array[number]
            self.batch[name] = jnp.asarray(one.astype(np.float64) if one.dtype.kind == "f" else one)
        self.final = self.batch["positions"][-1]
        self.renamed = folding.compute_renamed_ground_truth(self.batch, self.final)
        self.true_frames = self.batch["backbone_rigid_tensor"]
        self.frame_mask = self.batch["backbone_rigid_mask"]

    def backbone_fape(self, rotation: Any, translation: Any, clamp: float | None) -> Any:
        true = self.true_frames
        return jnp.stack(
            [
                all_atom.frame_aligned_point_error(
                    _rigids(r, t),
                    _rigids(true[:, :3, :3], true[:, :3, 3]),
                    self.frame_mask,
                    _vectors(t),
                    _vectors(true[:, :3, 3]),
                    self.frame_mask,
                    10.0,
                    clamp,
                )
                for r, t in zip(rotation, translation, strict=True)
            ]
        )

    def sidechain_fape(self, rotation: Any, translation: Any, positions: Any) -> Any:
        swapped = self.renamed["alt_naming_is_better"][:, None, None, None] > 0
        frames = jnp.where(
            swapped, self.batch["rigidgroups_alt_gt_frames"], self.batch["rigidgroups_gt_frames"]
        ).reshape(-1, 4, 4)
        return all_atom.frame_aligned_point_error(
            _rigids(rotation.reshape(-1, 3, 3), translation.reshape(-1, 3)),
            _rigids(frames[:, :3, :3], frames[:, :3, 3]),
            self.batch["rigidgroups_gt_exists"].reshape(-1),
            _vectors(positions.reshape(-1, 3)),
            _vectors(self.renamed["renamed_atom14_gt_positions"].reshape(-1, 3)),
            self.renamed["renamed_atom14_gt_exists"].reshape(-1),
            10.0,
            10.0,
        )

    def chi(self, angles: Any, unnormalized_angles: Any) -> Any:
        sin_cos = self.batch["chi_angles_sin_cos"]
        result = {"loss": 0.0}
        folding.supervised_chi_loss(
            result,
            {**self.batch, "chi_angles": jnp.arctan2(sin_cos[..., 0], sin_cos[..., 1])},
            {
                "sidechains": {
                    "angles_sin_cos": angles,
                    "unnormalized_angles_sin_cos": unnormalized_angles,
                }
            },
            CONFIG,
        )
        return result["loss"]

    def violation(self, positions: Any) -> Any:
        result = {"loss": 0.0}
        found = folding.find_structural_violations(self.batch, positions, CONFIG)
        folding.structural_violation_loss(result, self.batch, {"violations": found}, CONFIG)
        return result["loss"]

    def distogram(self, logits: Any) -> Any:
        breaks = jnp.linspace(2.3125, 21.6875, 63)
        return modules._distogram_log_loss(logits, breaks, self.batch, 64)["loss"]

    def masked_msa(self, logits: Any) -> Any:
        return _head_loss("MaskedMsaHead", {"logits": logits}, self.batch, num_output=23)

    def experimentally_resolved(self, logits: Any) -> Any:
        return _head_loss("ExperimentallyResolvedHead", {"logits": logits}, self.batch)

    def plddt(self, logits: Any) -> Any:
        atoms = jnp.zeros((NUM_RES, 37, 3)).at[:, 1].set(self.batch["predicted_ca"])
        value = {
            "predicted_lddt": {"logits": logits},
            "structure_module": {"final_atom_positions": atoms},
        }
        return _head_loss("PredictedLDDTHead", value, self.batch, num_bins=50)

    def lddt(self, per_residue: bool) -> Any:
        return lddt.lddt(
            self.batch["predicted_ca"][None],
            self.batch["all_atom_positions"][None, :, 1],
            self.batch["all_atom_mask"][None, :, 1:2],
            per_residue=per_residue,
        )[0]

    def pae(self, logits: Any) -> Any:
        rotation, translation = (
            self.batch[f"backbone.{part}"][-1] for part in ("rotation", "translation")
        )
        true = self.true_frames
        # padded rows have no frame; any will do
        true_rotation = jnp.where(self.frame_mask[:, None, None] > 0, true[:, :3, :3], jnp.eye(3))
        value = {
            "predicted_aligned_error": {
                "logits": logits,
                "breaks": jnp.linspace(0.0, 31.0, 63),
            },
            "structure_module": {"final_affines": _quaternions(rotation, translation)},
        }
        batch = {
            **self.batch,
            "backbone_affine_tensor": _quaternions(true_rotation, true[:, :3, 3]),
            "backbone_affine_mask": self.frame_mask,
        }
        return _head_loss("PredictedAlignedErrorHead", value, batch, num_bins=64)

    def all_terms(self) -> dict[str, Any]:
        frames = {part: self.batch[f"backbone.{part}"] for part in ("rotation", "translation")}
        groups = {part: self.batch[f"sidechain.{part}"][-1] for part in ("rotation", "translation")}
        angles = {part: self.batch[part] for part in ("angles", "unnormalized_angles")}
        plan: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
            "backbone_fape_clamped": (lambda **k: self.backbone_fape(**k, clamp=10.0), frames),
            "backbone_fape_unclamped": (lambda **k: self.backbone_fape(**k, clamp=None), frames),
            "sidechain_fape": (self.sidechain_fape, {**groups, "positions": self.final}),
            "chi": (self.chi, angles),
            "violation": (self.violation, {"positions": self.final}),
        }
        for name in ("distogram", "masked_msa", "experimentally_resolved", "plddt", "pae"):
            plan[name] = (getattr(self, name), {"logits": self.batch[f"{name}_logits"]})
        found = {
            "is_swapped": self.renamed["alt_naming_is_better"],
            "lddt": self.lddt(per_residue=False),
            "lddt_per_residue": self.lddt(per_residue=True),
        }
        for name, (function, arguments) in plan.items():
            found[name] = function(**arguments)
            gradients = jax.grad(lambda a, f=function: f(**a).sum())(arguments)
            for key, gradient in gradients.items():
                if key == "logits" and name != "experimentally_resolved":
                    gradient = (gradient * jnp.cos(jnp.arange(gradient.shape[-1]))).sum(-1)
                found[f"{name}.d_{key}"] = gradient
        return found


def main() -> None:
    inputs = make_inputs()
    samples = [Sample(inputs, number).all_terms() for number in range(2)]
    expected = {
        name: np.stack(
            [np.asarray(sample[name]) for sample in samples],
            axis=1 if name.startswith(("backbone_fape", "chi.d_")) else 0,
        )
        for name in samples[0]
    }
    for name, array in expected.items():
        if array.size <= 8:
            print(name, array.ravel())
    small = {
        name: a.astype(np.float32)
        if a.dtype == np.float64 and (a == a.astype(np.float32)).all()
        else a
        for name, a in inputs.items()
    }
    output = Path("tests/parity/loss_golden/alphafold2.npz")
    np.savez_compressed(
        output,
        **{f"input/{name}": array for name, array in small.items()},
        **{f"expected/{name}": array for name, array in expected.items()},
    )
    print(f"{output.name}: {output.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
