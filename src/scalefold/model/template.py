"""Template embedding (Suppl. Alg. 2 lines 7-13, Alg. 16, 17; sec. 1.7.1).

Legend: B samples, T template slots, N residues. The number of slots is fixed; empty ones are
masked, never skipped, so no branch depends on data. Templates are independent until pointwise
attention: they are folded into the batch dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scalefold.chem.residues import ATOM37_INDEX
from scalefold.config.model import ModelConfig, TemplateConfig
from scalefold.features.contract import Features
from scalefold.model.assembly import Assembly
from scalefold.model.contract import Templates
from scalefold.model.feature_linear import feature_linear
from scalefold.model.linear import Linear
from scalefold.model.norm import LayerNorm
from scalefold.model.one_hot import distance_one_hot, one_hot
from scalefold.model.pair_stack import TemplatePairBlock
from scalefold.ops.dropout import mix

TEMPLATE_CLASSES = 22
ANGLE_CHANNELS = TEMPLATE_CLASSES + 7 * 2 * 2 + 7
# Atom by atom: a list of indices would be copied to the device, which no captured graph may do.
_BACKBONE = [ATOM37_INDEX[name] for name in ("N", "CA", "C")]
_PSI = 2


class TemplateSingleEmbedder(nn.Module):
    """Torsion angles of a template as a row of the MSA representation (Alg. 2, line 7)."""

    def __init__(self, c_m: int) -> None:
        super().__init__()
        self.linear_1 = Linear(ANGLE_CHANNELS, c_m, init="relu")
        self.linear_2 = Linear(c_m, c_m, init="relu")

    def forward(self, features: Features) -> Tensor:
        """Rows (B, T, N, c_m), replicated."""
        parts = [
            one_hot(features["template_aatype"], TEMPLATE_CLASSES),
            features["template_torsion_angles_sin_cos"].flatten(-2),
            features["template_alt_torsion_angles_sin_cos"].flatten(-2),
            features["template_torsion_angles_mask"],
        ]
        return self.linear_2(torch.relu(feature_linear(parts, self.linear_1)))


class TemplatePairEmbedder(nn.Module):
    """Distances and residue types of a template as a pair representation (Alg. 2, line 9)."""

    def __init__(self, config: TemplateConfig, assembly: Assembly) -> None:
        super().__init__()
        self.axis = assembly.axis
        self.bins = (
            config.min_distance_angstrom,
            config.max_distance_angstrom,
            config.num_distogram_bins,
        )
        # distances, their mask, both residue types, unit vector, mask of the backbone
        channels = config.num_distogram_bins + 1 + 2 * TEMPLATE_CLASSES + 3 + 1
        self.linear = Linear(channels, config.c_t, init="relu")
        self._compiled_embed = assembly.compiled(TemplatePairEmbedder._embed)

    def forward(self, features: Features) -> Tensor:
        """Pair representation (B, T, N, N, c_t), sharded along rows."""
        n, ca, c = (features["template_all_atom_mask"][..., atom] for atom in _BACKBONE)
        columns = (
            features["template_pseudo_beta"],
            features["template_pseudo_beta_mask"],
            features["template_aatype"],
            n * ca * c,
        )
        rows = (self.axis.split(x, dim=2) for x in columns)
        return self._compiled_embed(self, *rows, *columns)

    def _embed(self, *operands: Tensor) -> Tensor:
        """Positions, their mask, types and backbone's mask of each row; then of each column."""
        beta_i, beta_mask_i, type_i, backbone_i, beta_j, beta_mask_j, type_j, backbone_j = operands
        backbone = (backbone_i[..., :, None] * backbone_j[..., None, :])[..., None]
        pairs = (*backbone.shape[:-1], -1)
        parts = [
            distance_one_hot(beta_i, beta_j, *self.bins),
            (beta_mask_i[..., :, None] * beta_mask_j[..., None, :])[..., None],
            one_hot(type_j, TEMPLATE_CLASSES)[..., None, :, :].expand(pairs),
            one_hot(type_i, TEMPLATE_CLASSES)[..., :, None, :].expand(pairs),
            # The monomer models were trained without unit vectors: their channels are zero.
            backbone.new_zeros(3).expand(pairs),
            backbone,
        ]
        return feature_linear([part * backbone for part in parts], self.linear)


class TemplatePairStack(nn.Module):
    """Blocks on the pair representation of each template (Alg. 16)."""

    def __init__(self, config: TemplateConfig, assembly: Assembly) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            TemplatePairBlock(
                config.c_t,
                config.c_hidden_triangle,
                config.c_hidden_attention,
                config.num_heads,
                config.transition_factor,
                config.pair_dropout,
                assembly,
            )
            for _ in range(config.num_blocks)
        )
        self.layer_norm = LayerNorm(config.c_t, assembly)

    def forward(self, t: Tensor, pair_mask: Tensor, key: Tensor) -> Tensor:
        """Return the updated t.

        Parameters
        ----------
        t : Tensor, shape (B, T, N, N, c_t), sharded along rows
        pair_mask : Tensor, shape (B, N, N), replicated
        key : Tensor, shape (B,), int64
        """
        batch, slots = t.shape[:2]
        mask = pair_mask.repeat_interleave(slots, dim=0)
        # Each template has its own dropout masks.
        slot = torch.arange(slots, device=key.device)
        keys = mix(key[:, None], slot).flatten()
        t = t.flatten(0, 1)
        for block in self.blocks:
            t = block(t, mask, keys)
        return self.layer_norm(t).unflatten(0, (batch, slots))


class _TemplateAttention(nn.Module):
    """Attention from a pair to its templates; no gate."""

    def __init__(self, config: TemplateConfig, c_z: int, assembly: Assembly) -> None:
        super().__init__()
        self.num_heads, self.ops = config.num_heads_pointwise, assembly.ops
        self._compiled_add = assembly.compiled(_TemplateAttention._add)
        hidden = config.c_hidden_pointwise * config.num_heads_pointwise
        self.linear_q = Linear(c_z, hidden, bias=False, init="glorot")
        self.linear_k = Linear(config.c_t, hidden, bias=False, init="glorot")
        self.linear_v = Linear(config.c_t, hidden, bias=False, init="glorot")
        self.linear_o = Linear(hidden, c_z, init="final")

    def forward(self, t: Tensor, z: Tensor, template_mask: Tensor) -> Tensor:
        heads = (self.num_heads, -1)
        q = self.linear_q(z).flatten(1, 2).unflatten(-1, heads)
        k, v = (f(t).flatten(2, 3).unflatten(-1, heads) for f in (self.linear_k, self.linear_v))
        out = self.ops.pointwise_attention(q, k, v, template_mask)
        heads = out.flatten(-2).unflatten(1, z.shape[1:3])
        return self._compiled_add(self, z, heads, template_mask)

    def _add(self, z: Tensor, heads: Tensor, template_mask: Tensor) -> Tensor:
        has_template = (template_mask.sum(1) > 0).to(z.dtype)
        return z + self.linear_o(heads) * has_template[:, None, None, None]


class TemplatePointwiseAttention(nn.Module):
    """Attention of each pair over the templates (Alg. 17); no gate."""

    def __init__(self, config: TemplateConfig, c_z: int, assembly: Assembly) -> None:
        super().__init__()
        self.mha = _TemplateAttention(config, c_z, assembly)

    def forward(self, t: Tensor, z: Tensor, template_mask: Tensor) -> Tensor:
        """Updated z (B, N, N, c_z) from t (B, T, N, N, c_t) under mask (B, T); rows sharded.

        A sample without templates keeps its z.
        """
        return self.mha(t, z, template_mask)


class TemplateEmbedder(nn.Module):
    """All that templates give to the trunk: made once a sample, read in each pass."""

    def __init__(self, config: ModelConfig, assembly: Assembly) -> None:
        super().__init__()
        template = config.template
        self.embed_torsion_angles = template.embed_torsion_angles
        if template.embed_torsion_angles:
            self.template_single_embedder = TemplateSingleEmbedder(config.c_m)
        self.template_pair_embedder = TemplatePairEmbedder(template, assembly)
        self.template_pair_stack = TemplatePairStack(template, assembly)
        self.template_pointwise_att = TemplatePointwiseAttention(template, config.c_z, assembly)

    def embed(self, features: Features, pair_mask: Tensor) -> Templates:
        """The embedding of the templates (Alg. 2, lines 7, 9-12); ``pair_mask`` is (B, N, N).

        Rows of the MSA stack are masked by the psi angle's mask.
        """
        pair = self.template_pair_embedder(features)
        pair = self.template_pair_stack(pair, pair_mask, features["dropout_key"])
        rows = rows_mask = None
        if self.embed_torsion_angles:
            rows = self.template_single_embedder(features)
            rows_mask = features["template_torsion_angles_mask"][..., _PSI]
        return Templates(pair, features["template_mask"], rows, rows_mask)

    def update_pair(self, z: Tensor, templates: Templates) -> Tensor:
        """Updated z (B, N, N, c_z), sharded along rows (Alg. 2, line 13)."""
        return self.template_pointwise_att(templates.pair, z, templates.mask)
