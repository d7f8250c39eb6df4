"""Write ``model_golden.json`` from the public OpenFold; see README_model.md.

    python tests/parity/regenerate_model_golden.py

An importable ``openfold`` is needed, prepared as README_model.md says; nothing of it is
in this repository.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from openfold.config import model_config as openfold_config
from openfold.model.model import AlphaFold as OpenFold
from test_model_golden import CASES, GOLDEN, model_config, named_outputs, passes_of, record, scalar
from torch import Tensor

from scalefold.config.schema import ModelConfig
from scalefold.features.contract import Features
from scalefold.geometry.rigid import Rigid, quaternion_to_rotation
from scalefold.model import AlphaFold, Outputs, Structure
from scalefold.model.example import set_example_weights


def openfold_of(config: ModelConfig) -> OpenFold:
    """OpenFold of the same sizes, dropout off, the example weights loaded strictly."""
    reference = openfold_config("model_1_ptm" if config.pae_head else "model_1", train=True)
    reference.globals.update(c_m=config.c_m, c_z=config.c_z, c_s=config.c_s, c_e=config.c_e)
    reference.globals.update(c_t=config.template.c_t, blocks_per_ckpt=None, chunk_size=None)
    # Without this, one eps of the sections below is all of them.
    reference = reference.copy_and_resolve_references()
    sections: Any = reference.model
    template = config.template
    sections.template.enabled = template.enabled
    sections.template.template_pair_stack.update(
        c_hidden_tri_att=template.c_hidden_attention,
        c_hidden_tri_mul=template.c_hidden_triangle,
        no_blocks=template.num_blocks,
        no_heads=template.num_heads,
        pair_transition_n=template.transition_factor,
        dropout_rate=0.0,
    )
    sections.template.template_pointwise_attention.update(
        c_hidden=template.c_hidden_pointwise, no_heads=template.num_heads_pointwise
    )
    for section, own in (
        (sections.extra_msa.extra_msa_stack, config.extra_msa),
        (sections.evoformer_stack, config.evoformer),
    ):
        section.update(
            c_hidden_msa_att=own.c_hidden_msa,
            c_hidden_opm=own.c_hidden_outer,
            c_hidden_mul=own.c_hidden_triangle,
            c_hidden_pair_att=own.c_hidden_pair,
            no_heads_msa=own.num_heads_msa,
            no_heads_pair=own.num_heads_pair,
            no_blocks=own.num_blocks,
            transition_n=own.transition_factor,
            msa_dropout=0.0,
            pair_dropout=0.0,
        )
    # OpenFold's 1e-8 is not AlphaFold2's 1e-10.
    sections.extra_msa.extra_msa_stack.update(ckpt=False, eps=1e-10)
    structure = config.structure
    sections.structure_module.update(
        c_ipa=structure.c_hidden,
        c_resnet=structure.c_angle,
        no_heads_ipa=structure.num_heads,
        no_qk_points=structure.num_qk_points,
        no_v_points=structure.num_v_points,
        no_blocks=structure.num_layers,
        no_resnet_blocks=structure.num_angle_blocks,
        dropout_rate=0.0,
    )
    sections.heads.lddt.c_hidden = config.c_plddt
    sections.heads.lddt.no_bins = config.num_plddt_bins

    own_model = AlphaFold(config).double()
    set_example_weights(own_model)
    model = OpenFold(reference).double()
    model.load_state_dict(own_model.state_dict(), strict=True)
    return model.train()


def adapt(result: dict[str, Any]) -> Outputs:
    """OpenFold's outputs in the model's contract."""
    frames = result["sm"]["frames"]
    return Outputs(
        msa=result["msa"],
        pair=result["pair"],
        single=result["single"],
        structure=Structure(
            backbone=Rigid(quaternion_to_rotation(frames[..., :4]), frames[..., 4:]),
            sidechain=Rigid.from_4x4(result["sm"]["sidechain_frames"]),
            unnormalized_angles=result["sm"]["unnormalized_angles"],
            angles=result["sm"]["angles"],
            positions=result["sm"]["positions"],
            single=result["sm"]["single"],
        ),
        positions=result["final_atom_positions"],
        position_mask=result["final_atom_mask"],
        distogram_logits=result["distogram_logits"],
        masked_msa_logits=result["masked_msa_logits"],
        plddt_logits=result["lddt_logits"],
        experimentally_resolved_logits=result["experimentally_resolved_logits"],
        pae_logits=result.get("tm_logits"),
    )


def run_openfold(
    config: ModelConfig, passes: list[Features]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Named outputs and gradients."""
    model = openfold_of(config)
    batch = {n: torch.stack([p[n] for p in passes], -1) for n in passes[0]}
    outputs = adapt(model(batch))
    named = named_outputs(outputs, passes[-1])
    scalar(named).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return named, gradients


def main() -> None:
    golden = {}
    for case in CASES:
        golden[case] = record(*run_openfold(model_config(case), passes_of(case)))
    lines = [f"{json.dumps(case)}: {json.dumps(content)}" for case, content in golden.items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
