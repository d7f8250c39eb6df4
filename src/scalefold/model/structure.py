"""Structure module (Suppl. Alg. 20, 23). All in float32 (see ``AlphaFold``).

Legend: B samples, N residues, L layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scalefold.config.model import StructureModuleConfig
from scalefold.geometry.rigid import Rigid, quaternion_to_rotation
from scalefold.model.assembly import Assembly
from scalefold.model.contract import Structure
from scalefold.model.dropout import DropoutLayer
from scalefold.model.invariant_point_attention import InvariantPointAttention, SharedTerms
from scalefold.model.linear import Linear
from scalefold.model.norm import LayerNorm
from scalefold.model.torsion import AllAtoms, AngleResnet
from scalefold.ops.dropout import hashed, kept, mix


class BackboneUpdate(nn.Module):
    """A rigid update of each residue's frame (Alg. 23)."""

    def __init__(self, c_s: int) -> None:
        super().__init__()
        self.linear = Linear(c_s, 6, init="final")

    def forward(self, s: Tensor) -> Rigid:
        """(B, N, c_s) to transforms of batch shape (B, N)."""
        vector, translation = self.linear(s).split(3, dim=-1)
        quaternion = torch.cat([torch.ones_like(vector[..., :1]), vector], -1)
        quaternion = quaternion / torch.linalg.vector_norm(quaternion, dim=-1, keepdim=True)
        return Rigid(quaternion_to_rotation(quaternion), translation)


class SingleTransitionLayer(nn.Module):
    """Three-layer residual network on each residue (Alg. 20, line 8)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear_1 = Linear(channels, channels, init="relu")
        self.linear_2 = Linear(channels, channels, init="relu")
        self.linear_3 = Linear(channels, channels, init="final")

    def forward(self, s: Tensor) -> Tensor:
        """Update of s."""
        return self.linear_3(torch.relu(self.linear_2(torch.relu(self.linear_1(s)))))


class SingleTransition(nn.Module):
    """Transition with dropout and normalisation (Alg. 20, lines 8-9)."""

    def __init__(self, channels: int, dropout: float, assembly: Assembly) -> None:
        super().__init__()
        self.layers = nn.ModuleList([SingleTransitionLayer(channels)])
        self.dropout = DropoutLayer(dropout, None, assembly)
        self.layer_norm = nn.LayerNorm(channels)

    def forward(self, s: Tensor, kept: Tensor) -> Tensor:
        """(B, N, channels) to the same; ``kept`` is what dropout multiplies with."""
        for layer in self.layers:
            s = s + layer(s)
        return self.layer_norm(s * kept)


class StructureModule(nn.Module):
    """Backbone frames, torsions and atoms from the trunk's representations (Alg. 20).

    One set of weights is applied in every layer. Gradients between layers do not pass through
    rotations. Dropout acts on the sum of residual and update, not on the update alone.
    """

    def __init__(
        self, config: StructureModuleConfig, c_s: int, c_z: int, assembly: Assembly
    ) -> None:
        super().__init__()
        self.num_layers, self.translation_scale = config.num_layers, config.translation_scale
        self.layer_norm_s = LayerNorm(c_s, assembly)
        self.layer_norm_z = LayerNorm(c_z, assembly)
        self.linear_in = Linear(c_s, c_s)
        self.ipa = InvariantPointAttention(config, c_s, c_z)
        self.layer_norm_ipa = nn.LayerNorm(c_s)
        self.transition = SingleTransition(c_s, config.dropout, assembly)
        self.bb_update = BackboneUpdate(c_s)
        self.angle_resnet = AngleResnet(c_s, config.c_angle, config.num_angle_blocks)
        self.ipa_dropout = DropoutLayer(config.dropout, None, assembly)
        self.all_atoms = AllAtoms()
        # Functions, not methods: a method held by its own module would keep both alive.
        self._compiled_layer = assembly.compiled(StructureModule._layer)
        self._compiled_factor = assembly.compiled(_factor)
        self._compiled_build = assembly.compiled(StructureModule._build)

    def forward(self, s: Tensor, z: Tensor, aatype: Tensor, mask: Tensor, key: Tensor) -> Structure:
        """Predict the structure.

        Parameters
        ----------
        s : Tensor, shape (B, N, c_s)
        z : Tensor, shape (B, N, N, c_z)
        aatype : Tensor, shape (B, N), int64
        mask : Tensor, shape (B, N)
        key : Tensor, shape (B,), int64
            Key of the dropout masks.
        """
        initial = self.layer_norm_s(s)
        layers = self._layers(initial, z, mask, key)
        # No layer reads torsions and atoms, so they are made for all layers at once.
        return self._compiled_build(self, initial, layers, aatype)

    def last_layer(
        self, s: Tensor, z: Tensor, aatype: Tensor, mask: Tensor, key: Tensor
    ) -> Structure:
        """The same for the last layer only (L = 1): atoms of earlier layers are not built."""
        initial = self.layer_norm_s(s)
        layers = self._layers(initial, z, mask, key)
        return self._compiled_build(self, initial, layers[-1:], aatype)

    def _layers(
        self, initial: Tensor, z: Tensor, mask: Tensor, key: Tensor
    ) -> list[tuple[Tensor, Rigid]]:
        """Single representation and backbone frames, in units of the scale, after each layer."""
        shared = self.ipa.shared_terms(self.layer_norm_z(z), mask)
        s = self.linear_in(initial)
        factors = zip(
            self._kept(self.ipa_dropout, key, s),
            self._kept(self.transition.dropout, key, s),
            strict=True,
        )
        start = Rigid.identity(tuple(s.shape[:2]), s)
        # Layout and gradient as in later layers, so that one compiled layer serves all.
        frames = Rigid(
            start.rotation.contiguous(), start.translation.requires_grad_(s.requires_grad)
        )
        layers = []
        for kept_ipa, kept_transition in factors:
            s, frames = self._compiled_layer(self, s, frames, shared, kept_ipa, kept_transition)
            layers.append((s, frames))
            frames = frames.detach_rotation()
        return layers

    def _kept(self, layer: DropoutLayer, key: Tensor, like: Tensor) -> Tensor:
        """What dropout multiplies tensors like the given one with in each layer, (L, B, N, c_s)."""
        shape = self.num_layers, *like.shape
        dropout = layer.draw(key)
        if dropout is None:
            return like.new_ones(shape)
        layers, _, residues, channels = (torch.arange(n, device=key.device) for n in shape)
        return self._compiled_factor(
            key, layers, residues, channels, dropout.layer, dropout.rate, like.dtype
        )

    def _layer(
        self,
        s: Tensor,
        frames: Rigid,
        shared: SharedTerms,
        kept_ipa: Tensor,
        kept_transition: Tensor,
    ) -> tuple[Tensor, Rigid]:
        update = self.ipa(s, frames, shared)
        s = self.layer_norm_ipa((s + update) * kept_ipa)
        s = self.transition(s, kept_transition)
        return s, frames.compose(self.bb_update(s))

    def _build(
        self, initial: Tensor, layers: list[tuple[Tensor, Rigid]], aatype: Tensor
    ) -> Structure:
        singles, frames = zip(*layers, strict=True)
        backbone = Rigid(
            torch.stack([frame.rotation for frame in frames]),
            torch.stack([frame.translation for frame in frames]) * self.translation_scale,
        )
        unnormalized, angles = self.angle_resnet(torch.stack(singles), initial)
        sidechain, positions = self.all_atoms(backbone, angles, aatype)
        return Structure(
            backbone=backbone,
            sidechain=sidechain,
            unnormalized_angles=unnormalized,
            angles=angles,
            positions=positions,
            single=singles[-1],
        )


def _factor(
    key_B: Tensor,
    layer_L: Tensor,
    residue_N: Tensor,
    channel_C: Tensor,
    number: int,
    rate: float,
    dtype: torch.dtype,
) -> Tensor:
    """What dropout multiplies with, (L, B, N, C).

    Coordinates are tensors, since Inductor multiplies positions of its own in 32 bits.
    """
    bits = hashed(mix(key_B, layer_L[:, None]), number, [residue_N, channel_C])
    return kept(bits, rate).to(dtype) * (1.0 / (1.0 - rate))
