"""Evoformer and extra MSA stack (Suppl. Alg. 6, 18).

Legend: m (B, S, N, c_m), z (B, N, N, c_z); s sequences, i/j residues.

Layout with DAP, and what one block exchanges (bytes of the full tensor, bf16, N = 256, S = 128):

=========================  ==============  ==========  =========================================
step                       m sharded on    z on        exchange
=========================  ==============  ==========  =========================================
row attention              sequences       rows        gather pair bias (1 MB), under q/k/v/g
-> switch m                to residues                 all-to-all (17 MB)
column attention           residues        rows        none
MSA transition             residues        rows        none
outer product mean         residues        rows        gather one operand (2 MB); a_i stays, the
                                                       result's rows i are the own residues
-> switch m back           to sequences                all-to-all (17 MB), under the pair stack
multiplication outgoing    (on its way)    rows        gather b (17 MB)
multiplication incoming    (on its way)    rows        reduce-scatter of partial sums (17 MB)
attention, starting node   (on its way)    rows        gather bias (0.5 MB)
-> switch z                                to columns  all-to-all (17 MB)
attention, ending node     (on its way)    columns     gather bias (0.5 MB)
-> switch z back                           to rows     all-to-all (17 MB)
pair transition            (on its way)    rows        none
=========================  ==============  ==========  =========================================

Blocks are modules from tensors to tensors, so that assembly may wrap them (activation
checkpointing, graphs). A block that runs again sees the same dropout: masks depend on the key only.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from scalefold.config.model import EvoformerConfig, ExtraMsaConfig
from scalefold.model.assembly import Assembly
from scalefold.model.dropout import DropoutLayer
from scalefold.model.linear import Linear
from scalefold.model.msa import (
    MsaColumnAttention,
    MsaColumnGlobalAttention,
    MsaRowAttentionWithPairBias,
)
from scalefold.model.outer_product_mean import OuterProductMean
from scalefold.model.pair_stack import PairStack
from scalefold.model.transition import Transition
from scalefold.parallel import Axis


class EvoformerBlock(nn.Module):
    """One block of the Evoformer (Alg. 6, lines 2-10)."""

    column_attention: type[MsaColumnAttention] | type[MsaColumnGlobalAttention] = MsaColumnAttention

    def __init__(self, config: EvoformerConfig, c_m: int, c_z: int, assembly: Assembly) -> None:
        super().__init__()
        self.axis = assembly.axis
        self.msa_att_row = MsaRowAttentionWithPairBias(
            c_m, c_z, config.c_hidden_msa, config.num_heads_msa, assembly
        )
        self.msa_dropout = DropoutLayer(config.msa_dropout, -3, assembly)
        self.msa_att_col = self.column_attention(
            c_m, config.c_hidden_msa, config.num_heads_msa, assembly
        )
        self.msa_transition = Transition(c_m, config.transition_factor, assembly)
        self.outer_product_mean = OuterProductMean(c_m, c_z, config.c_hidden_outer, assembly)
        self.pair_stack = PairStack(
            c_z,
            config.c_hidden_triangle,
            config.c_hidden_pair,
            config.num_heads_pair,
            config.transition_factor,
            config.pair_dropout,
            assembly,
        )

    def forward(
        self,
        m: Tensor,
        z: Tensor,
        row_mask: Tensor,
        column_mask: Tensor,
        pair_mask: Tensor,
        sequence_count: Tensor,
        key: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the updated m and z.

        Parameters
        ----------
        m : Tensor, shape (B, S, N, c_m), sharded along S
        z : Tensor, shape (B, N, N, c_z), sharded along rows
        row_mask, column_mask : Tensor, shape (B, S, N), sharded along S, and along N
        pair_mask : Tensor, shape (B, N, N), symmetric, replicated
        sequence_count : Tensor, shape (B, N, N), sharded along rows
            Number of sequences in which both residues are real.
        key : Tensor, shape (B,), int64
            Key of the dropout masks.
        """
        m, z = self.msa_att_row(m, z, row_mask, self.msa_dropout.draw(key))
        m = self.axis.switch(m, sharded=1, to=2).wait()
        m = self.msa_att_col(m, column_mask)
        m = self.msa_transition(m)
        m, z = self.outer_product_mean(m, column_mask, sequence_count, z)
        returning = self.axis.switch(m, sharded=2, to=1)
        z = self.pair_stack(z, pair_mask, key)
        return returning.wait(), z


class ExtraMsaBlock(EvoformerBlock):
    """One block of the extra MSA stack: an Evoformer block, column attention global (Alg. 18)."""

    column_attention = MsaColumnGlobalAttention


class EvoformerStack(nn.Module):
    """The Evoformer and the single representation (Alg. 6)."""

    def __init__(
        self, config: EvoformerConfig, c_m: int, c_z: int, c_s: int, assembly: Assembly
    ) -> None:
        super().__init__()
        self.axis = assembly.axis
        self.blocks = nn.ModuleList(
            EvoformerBlock(config, c_m, c_z, assembly) for _ in range(config.num_blocks)
        )
        self.linear = Linear(c_m, c_s)

    def forward(
        self, m: Tensor, z: Tensor, msa_mask: Tensor, pair_mask: Tensor, key: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run all blocks; m and z as for ``EvoformerBlock``, masks replicated.

        Returns
        -------
        m : Tensor, shape (B, S, N, c_m), replicated
        z : Tensor, shape (B, N, N, c_z), replicated
        s : Tensor, shape (B, N, c_s), replicated
        """
        m, z = _run(self.blocks, self.axis, m, z, msa_mask, pair_mask, key)
        gathering = self.axis.gather_to_replicated(z, dim=1)
        m = self.axis.gather_to_replicated(m, dim=1).wait()
        return m, gathering.wait(), self.linear(m[:, 0])


class ExtraMsaStack(nn.Module):
    """The stack of the unclustered sequences (Alg. 18)."""

    def __init__(self, config: ExtraMsaConfig, c_e: int, c_z: int, assembly: Assembly) -> None:
        super().__init__()
        self.axis = assembly.axis
        self.blocks = nn.ModuleList(
            ExtraMsaBlock(config, c_e, c_z, assembly) for _ in range(config.num_blocks)
        )

    def forward(
        self, e: Tensor, z: Tensor, msa_mask: Tensor, pair_mask: Tensor, key: Tensor
    ) -> Tensor:
        """Return the updated z (sharded along rows); e (B, E, N, c_e) is sharded along E."""
        return _run(self.blocks, self.axis, e, z, msa_mask, pair_mask, key)[1]


def _run(
    blocks: Iterable[nn.Module],
    axis: Axis,
    m: Tensor,
    z: Tensor,
    msa_mask: Tensor,
    pair_mask: Tensor,
    key: Tensor,
) -> tuple[Tensor, Tensor]:
    # In the mask's float32: bfloat16 cannot hold counts above 256.
    count = axis.split(torch.einsum("bsi,bsj->bij", msa_mask, msa_mask), dim=1)
    row_mask = axis.split(msa_mask, dim=1)
    # Columns lie together in memory, as column attention reads them: copied here, not in a block.
    column_mask = axis.split(msa_mask, dim=2).mT.contiguous().mT
    for block in blocks:
        m, z = block(m, z, row_mask, column_mask, pair_mask, count, key)
    return m, z
