"""The section `model` of the configuration. Names follow AlphaFold2's supplement."""

from __future__ import annotations

from pydantic import Field

from scalefold.config.section import Section
from scalefold.config.values import BelowOne, Positive


class EvoformerConfig(Section):
    """Evoformer stack (Suppl. Alg. 6)."""

    num_blocks: Positive = 48
    c_hidden_msa: Positive = 32
    num_heads_msa: Positive = 8
    c_hidden_pair: Positive = 32
    num_heads_pair: Positive = 4
    c_hidden_triangle: Positive = 128
    c_hidden_outer: Positive = 32
    transition_factor: Positive = 4
    msa_dropout: BelowOne = 0.15
    pair_dropout: BelowOne = 0.25


class ExtraMsaConfig(EvoformerConfig):
    """Extra MSA stack (Suppl. Alg. 18)."""

    num_blocks: Positive = 4
    c_hidden_msa: Positive = 8


class TemplateConfig(Section):
    """Template embedding (Suppl. Alg. 16, 17)."""

    enabled: bool = True
    embed_torsion_angles: bool = True
    c_t: Positive = 64
    num_blocks: Positive = 2
    num_heads: Positive = 4
    c_hidden_attention: Positive = 16
    c_hidden_triangle: Positive = 64
    transition_factor: Positive = 2
    pair_dropout: BelowOne = 0.25
    num_distogram_bins: Positive = 39
    min_distance_angstrom: float = 3.25
    max_distance_angstrom: float = 50.75
    c_hidden_pointwise: Positive = 16
    num_heads_pointwise: Positive = 4

    def num_rows(self, slots: int) -> int:
        """Rows that this many template slots add to the MSA representation."""
        return slots if self.enabled and self.embed_torsion_angles else 0


class StructureModuleConfig(Section):
    """Structure module (Suppl. Alg. 20-24)."""

    num_layers: Positive = 8
    c_hidden: Positive = 16
    num_heads: Positive = 12
    num_qk_points: Positive = 4
    num_v_points: Positive = 8
    dropout: BelowOne = 0.1
    c_angle: Positive = 128
    num_angle_blocks: Positive = 2
    translation_scale: float = Field(10.0, description="Å per unit of the frames' translation.")


class ModelConfig(Section):
    """Sizes of the model; names follow the supplement."""

    c_m: Positive = 256
    c_z: Positive = 128
    c_s: Positive = 384
    c_e: Positive = 64
    relative_position_clip: Positive = 32
    num_recycling_bins: Positive = 15
    min_recycling_angstrom: float = 3.25
    max_recycling_angstrom: float = 20.75
    template: TemplateConfig = TemplateConfig()
    extra_msa: ExtraMsaConfig = ExtraMsaConfig()
    evoformer: EvoformerConfig = EvoformerConfig()
    structure: StructureModuleConfig = StructureModuleConfig()
    num_distogram_bins: Positive = 64
    num_plddt_bins: Positive = 50
    c_plddt: Positive = 128
    pae_head: bool = Field(False, description="Predict aligned errors and pTM (the _ptm models).")
    num_pae_bins: Positive = 64
    max_pae_angstrom: float = Field(
        31.0, ge=31.0, le=31.0, description="Last edge of the bins: AlphaFold2's, no other yet."
    )
