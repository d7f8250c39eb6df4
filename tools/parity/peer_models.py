"""OpenFold's and MLPerf HPC's models in a configuration's sizes; their outputs in our contract.

Imported after `peer_code.PeerCode` has made ``openfold`` importable.
"""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from scalefold.config.model import ModelConfig
from scalefold.geometry.rigid import Rigid, quaternion_to_rotation
from scalefold.model import Outputs, Structure


def openfold_of(config: ModelConfig) -> nn.Module:
    """OpenFold of the same sizes, without dropout; its parameters have our names."""
    from openfold.config import model_config as openfold_config
    from openfold.model.model import AlphaFold as OpenFold

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

    return OpenFold(reference).train()  # evaluation has in-place ways that need CUDA


def adapt_openfold(result: dict[str, Any]) -> Outputs:
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


def mlperf_of(config: ModelConfig) -> nn.Module:
    """MLPerf HPC's model of the same sizes, without dropout; see `mlperf_name`."""
    from openfold.config import AlphaFoldConfig
    from openfold.model.alphafold import AlphaFold as MLPerf

    c: Any = AlphaFoldConfig()
    t, s = config.template, config.structure
    _set(c, templates_enabled=t.enabled)
    _set(c.input_embedder_config, c_z=config.c_z, c_m=config.c_m)
    _set(c.recycling_embedder_config, c_z=config.c_z, c_m=config.c_m)
    _set(c.template_angle_embedder_config, c_m=config.c_m)
    _set(c.template_pair_embedder_config, c_t=t.c_t)
    _set(
        c.template_pair_stack_config,
        c_t=t.c_t,
        c_hidden_tri_att=t.c_hidden_attention,
        c_hidden_tri_mul=t.c_hidden_triangle,
        num_blocks=t.num_blocks,
        num_heads_tri=t.num_heads,
        pair_transition_n=t.transition_factor,
        dropout_rate=0.0,
    )
    _set(
        c.template_pointwise_attention_config,
        c_t=t.c_t,
        c_z=config.c_z,
        c_hidden=t.c_hidden_pointwise,
        num_heads=t.num_heads_pointwise,
    )
    _set(c.extra_msa_embedder_config, c_e=config.c_e)
    for section, stack in (
        (c.extra_msa_stack_config, config.extra_msa),
        (c.evoformer_stack_config, config.evoformer),
    ):
        _set(
            section,
            c_z=config.c_z,
            c_hidden_msa_att=stack.c_hidden_msa,
            c_hidden_opm=stack.c_hidden_outer,
            c_hidden_tri_mul=stack.c_hidden_triangle,
            c_hidden_tri_att=stack.c_hidden_pair,
            num_heads_msa=stack.num_heads_msa,
            num_heads_tri=stack.num_heads_pair,
            num_blocks=stack.num_blocks,
            transition_n=stack.transition_factor,
            msa_dropout=0.0,
            pair_dropout=0.0,
        )
    # AlphaFold2's, not 1e-8
    _set(c.extra_msa_stack_config, c_e=config.c_e, eps=1e-10)
    _set(c.evoformer_stack_config, c_m=config.c_m, c_s=config.c_s)
    _set(
        c.structure_module_config,
        c_s=config.c_s,
        c_z=config.c_z,
        c_hidden_ipa=s.c_hidden,
        c_hidden_ang_res=s.c_angle,
        num_heads_ipa=s.num_heads,
        num_qk_points=s.num_qk_points,
        num_v_points=s.num_v_points,
        dropout_rate=0.0,
        num_blocks=s.num_layers,
        num_ang_res_blocks=s.num_angle_blocks,
    )
    heads = c.auxiliary_heads_config
    _set(heads, tm_score_head_enabled=config.pae_head)
    _set(heads.per_residue_lddt_ca_predictor_config, c_s=config.c_s, c_hidden=config.c_plddt)
    _set(heads.distogram_head_config, c_z=config.c_z)
    _set(heads.masked_msa_head_config, c_m=config.c_m)
    _set(heads.experimentally_resolved_head_config, c_s=config.c_s)
    _set(heads.tm_score_head_config, c_z=config.c_z)
    return MLPerf(c).train()


def _set(section: Any, **values: Any) -> None:
    for name, value in values.items():
        if not hasattr(section, name):
            raise AttributeError(f"{type(section).__name__} has no {name}")
        setattr(section, name, value)


def mlperf_name(name: str) -> str:
    """Our parameter's name in MLPerf HPC's code."""
    name = re.sub(r"^aux_heads\.", "auxiliary_heads.", name)
    name = re.sub(r"^evoformer\.", "evoformer_stack.", name)
    name = re.sub(r"(blocks\.\d+\.)(msa_transition|outer_product_mean)", r"\1core.\2", name)
    name = re.sub(r"(blocks\.\d+\.)pair_stack\.", r"\1core.", name)
    for ours, theirs in (
        ("template_embedder.template_single_embedder", "template_angle_embedder"),
        ("template_embedder.template_pointwise_att.", "template_pointwise_attention."),
        ("template_embedder.", ""),
        ("_msa_att.", ""),
        ("points.linear.", "points."),
        ("transition.layers.0.", "transition."),
    ):
        name = name.replace(ours, theirs)
    return name


def adapt_mlperf(result: dict[str, Any]) -> Outputs:
    """MLPerf HPC's outputs in the model's contract: OpenFold's, but flat and samples first."""
    layered = {
        name.removeprefix("sm_"): value if name == "sm_single" else value.transpose(0, 1)
        for name, value in result.items()
        if name.startswith("sm_")
    }
    return adapt_openfold({**result, "sm": layered})
