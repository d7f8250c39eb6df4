"""The whole model: one recycling pass (Suppl. Alg. 2, lines 4-22).

Legend: B samples, S clustered rows, T templates, N residues.

Types: trunk, structure module and heads each compute in the type of their own parameters; the
casts are the lines that say so below. Assembly keeps the structure module and the heads in
float32 when it narrows the trunk. Coordinates and masks stay in float32 everywhere.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from scalefold.config.model import ModelConfig
from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.model.assembly import Assembly
from scalefold.model.contract import Outputs, Previous, Structure, Templates
from scalefold.model.embedders import ExtraMsaEmbedder, InputEmbedder, RecyclingEmbedder
from scalefold.model.evoformer import EvoformerStack, ExtraMsaStack
from scalefold.model.heads import AuxiliaryHeads
from scalefold.model.structure import StructureModule
from scalefold.model.template import TemplateEmbedder


class _Representations(NamedTuple):
    msa: Tensor  # (B, S + T, N, c_m)
    pair: Tensor  # (B, N, N, c_z)
    single: Tensor  # (B, N, c_s)


class AlphaFold(nn.Module):
    """AlphaFold2's monomer model.

    The recycling loop is outside, see `scalefold.model.passes`: embed the templates, which are the
    same in all passes, call ``recycle`` without gradients for all passes but the last, then the
    model itself.

    Parameters
    ----------
    assembly : Assembly, optional
        Operations and axis that the modules are built with; default plain torch, one process.

    Examples
    --------
    >>> templates = model.embed_templates(passes[-1])
    >>> previous = Previous.zeros(batch, num_res, config, like=next(model.parameters()))
    >>> for features in passes[:-1]:
    ...     with torch.no_grad():
    ...         previous = model.recycle(features, previous, templates)
    >>> outputs, _ = model(passes[-1], previous, templates)
    """

    def __init__(self, config: ModelConfig, assembly: Assembly | None = None) -> None:
        super().__init__()
        assembly = assembly or Assembly()
        self.axis = assembly.axis
        self.input_embedder = InputEmbedder(config, assembly)
        self.recycling_embedder = RecyclingEmbedder(config, assembly)
        self.template_embedder = (
            TemplateEmbedder(config, assembly) if config.template.enabled else None
        )
        self.extra_msa_embedder = ExtraMsaEmbedder(config.c_e, assembly)
        self.extra_msa_stack = ExtraMsaStack(config.extra_msa, config.c_e, config.c_z, assembly)
        self.evoformer = EvoformerStack(
            config.evoformer, config.c_m, config.c_z, config.c_s, assembly
        )
        self.structure_module = StructureModule(config.structure, config.c_s, config.c_z, assembly)
        self.aux_heads = AuxiliaryHeads(config)

    def forward(
        self, features: Features, previous: Previous, templates: Templates | None
    ) -> tuple[Outputs, Previous]:
        """One pass with all outputs.

        Parameters
        ----------
        features : dict of str to Tensor
            ``features.contract.INPUT_FEATURES`` (others are ignored).
        templates : Templates or None
            What `embed_templates` returned for this sample.

        Raises
        ------
        InputError
            If the model reads templates and there are none.
        """
        trunk = self._trunk(features, previous, templates)
        structure = self.structure_module(*self._structure_inputs(trunk, features))
        after = self._previous(trunk, structure, features)
        return self._outputs(trunk, structure, after, features), after

    def embed_templates(self, features: Features) -> Templates | None:
        """The embedding of a sample's templates, for all of its passes; None if the model reads
        none.
        """
        if self.template_embedder is None:
            return None
        return self.template_embedder.embed(features, _pair_mask(features))

    def recycle(
        self, features: Features, previous: Previous, templates: Templates | None
    ) -> Previous:
        """One pass that only makes the next one's input: atoms of the last layer, no heads."""
        trunk = self._trunk(features, previous, templates)
        structure = self.structure_module.last_layer(*self._structure_inputs(trunk, features))
        return self._previous(trunk, structure, features)

    def replicated_modules(self) -> tuple[nn.Module, ...]:
        """Modules that all ranks compute alike, each with the whole gradient."""
        return self.evoformer.linear, self.structure_module, self.aux_heads

    def _trunk(
        self, features: Features, previous: Previous, templates: Templates | None
    ) -> _Representations:
        dtype = self.input_embedder.linear_msa_m.weight.dtype
        msa_mask, pair_mask = features["msa_mask"], _pair_mask(features)
        key = features["dropout_key"]

        m, z = self.input_embedder(
            features["target_feat"], features["residue_index"], features["msa_feat"]
        )
        previous = previous._replace(
            msa_first_row=previous.msa_first_row.to(dtype), pair=previous.pair.to(dtype)
        )
        first_row, pair = self.recycling_embedder(features["aatype"], previous)
        m = torch.cat([m[:, :1] + first_row[:, None], m[:, 1:]], dim=1)
        z = z + pair

        if self.template_embedder is not None:
            if templates is None:
                raise InputError(
                    "templates are None, but the model reads templates (model.template.enabled): "
                    "give it what its embed_templates returns"
                )
            z = self.template_embedder.update_pair(z, templates)
            if templates.rows is not None and templates.rows_mask is not None:
                m = torch.cat([m, templates.rows], dim=1)
                msa_mask = torch.cat([msa_mask, templates.rows_mask], dim=1)

        extra = self.extra_msa_embedder(features)
        z = self.extra_msa_stack(extra, z, features["extra_msa_mask"], pair_mask, key)
        m, z, s = self.evoformer(self.axis.split(m, dim=1), z, msa_mask, pair_mask, key)
        return _Representations(m, z, s)

    def _structure_inputs(
        self, trunk: _Representations, features: Features
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        dtype = self.structure_module.linear_in.weight.dtype
        return (
            trunk.single.to(dtype),
            trunk.pair.to(dtype),
            features["aatype"],
            features["seq_mask"].to(dtype),
            features["dropout_key"],
        )

    def _previous(
        self, trunk: _Representations, structure: Structure, features: Features
    ) -> Previous:
        index = features["residx_atom37_to_atom14"][..., None].expand(-1, -1, -1, 3)
        positions = structure.positions[-1].gather(2, index)
        positions = positions * features["atom37_atom_exists"][..., None].to(positions.dtype)
        return Previous(trunk.msa[:, 0], trunk.pair, positions)

    def _outputs(
        self, trunk: _Representations, structure: Structure, after: Previous, features: Features
    ) -> Outputs:
        heads = self.aux_heads
        dtype = heads.distogram.linear.weight.dtype
        msa = trunk.msa[:, : features["msa_feat"].shape[1]]
        pair = trunk.pair.to(dtype)
        return Outputs(
            msa=msa,
            pair=trunk.pair,
            single=trunk.single,
            structure=structure,
            positions=after.positions,
            position_mask=features["atom37_atom_exists"],
            distogram_logits=heads.distogram(pair),
            masked_msa_logits=heads.masked_msa(msa.to(dtype)),
            plddt_logits=heads.plddt(structure.single.to(dtype)),
            experimentally_resolved_logits=heads.experimentally_resolved(trunk.single.to(dtype)),
            pae_logits=None if heads.tm is None else heads.tm(pair),
        )


def _pair_mask(features: Features) -> Tensor:
    mask = features["seq_mask"]
    return mask[:, :, None] * mask[:, None, :]
