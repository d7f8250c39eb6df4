"""Torsion angles: their prediction, and atoms from them (Suppl. Alg. 20 lines 11-14, Alg. 24).

Legend: B samples, N residues.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scalefold.chem.residues import ATOM14_LOCAL_POSITION, ATOM14_MASK, ATOM14_RIGID_GROUP
from scalefold.chem.rigid_groups import DEFAULT_FRAMES
from scalefold.geometry.rigid import Rigid
from scalefold.model.linear import Linear

NUM_ANGLES = 7
EPS = 1e-12
_CHI1 = 4


class AngleResnetBlock(nn.Module):
    """Residual block of the angle network (Alg. 20, lines 12-13)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.linear_1 = Linear(channels, channels, init="relu")
        self.linear_2 = Linear(channels, channels, init="final")

    def forward(self, a: Tensor) -> Tensor:
        """(..., channels) to the same."""
        return a + self.linear_2(torch.relu(self.linear_1(torch.relu(a))))


class AngleResnet(nn.Module):
    """Torsion angles of each residue (Alg. 20, lines 11-14).

    The inputs pass a ReLU, as in the published code, not in the algorithm's text.
    """

    def __init__(self, c_s: int, channels: int, num_blocks: int) -> None:
        super().__init__()
        self.linear_in = Linear(c_s, channels)
        self.linear_initial = Linear(c_s, channels)
        self.layers = nn.ModuleList(AngleResnetBlock(channels) for _ in range(num_blocks))
        self.linear_out = Linear(channels, NUM_ANGLES * 2)

    def forward(self, s: Tensor, s_initial: Tensor) -> tuple[Tensor, Tensor]:
        """Predict (sin, cos) of omega, phi, psi, chi1-4.

        Parameters
        ----------
        s, s_initial : Tensor, shape (B, N, c_s)
            Single representation now, and as it entered the structure module, normalised.

        Returns
        -------
        unnormalized, normalized : Tensor, shape (B, N, 7, 2)
        """
        a = self.linear_in(torch.relu(s)) + self.linear_initial(torch.relu(s_initial))
        for layer in self.layers:
            a = layer(a)
        angles = self.linear_out(torch.relu(a)).unflatten(-1, (NUM_ANGLES, 2))
        square = (angles**2).sum(-1, keepdim=True)
        return angles, angles / torch.sqrt(square.clamp(min=EPS))


class AllAtoms(nn.Module):
    """Frames of all rigid groups and atom positions from the backbone and torsions (Alg. 24)."""

    default_frames: Tensor
    atom_group: Tensor
    atom_mask: Tensor
    local_positions: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, table in (
            ("default_frames", DEFAULT_FRAMES),
            ("atom_group", ATOM14_RIGID_GROUP),
            ("atom_mask", ATOM14_MASK),
            ("local_positions", ATOM14_LOCAL_POSITION),
        ):
            self.register_buffer(name, torch.tensor(table), persistent=False)

    def forward(self, backbone: Rigid, angles: Tensor, aatype: Tensor) -> tuple[Rigid, Tensor]:
        """Build the residues.

        Parameters
        ----------
        backbone : Rigid, batch shape (B, N), Å
        angles : Tensor, shape (B, N, 7, 2)
            (sin, cos), normalised.
        aatype : Tensor, shape (B, N), int64

        Returns
        -------
        frames : Rigid, batch shape (B, N, 8)
        positions : Tensor, shape (B, N, 14, 3), Å
            Zero where the residue type has no such atom.
        """
        frames = self._frames(backbone, angles, aatype)
        group = self.atom_group[aatype]
        index = group[..., None].expand(*group.shape, 3)
        of_atom = Rigid(
            frames.rotation.gather(-3, index[..., None].expand(*index.shape, 3)),
            frames.translation.gather(-2, index),
        )
        positions = of_atom.apply(self.local_positions[aatype])
        return frames, positions * self.atom_mask[aatype][..., None]

    def _frames(self, backbone: Rigid, angles: Tensor, aatype: Tensor) -> Rigid:
        sine, cosine = angles.unbind(-1)
        # The backbone group has no torsion of its own: rotation by zero.
        sine = torch.cat([torch.zeros_like(sine[..., :1]), sine], -1)
        cosine = torch.cat([torch.ones_like(cosine[..., :1]), cosine], -1)
        zero, one = torch.zeros_like(sine), torch.ones_like(sine)
        about_x = torch.stack(
            [
                torch.stack([one, zero, zero], -1),
                torch.stack([zero, cosine, -sine], -1),
                torch.stack([zero, sine, cosine], -1),
            ],
            -2,
        )
        turned = Rigid.from_4x4(self.default_frames[aatype]).compose(
            Rigid(about_x, about_x.new_zeros(about_x.shape[:-1]))
        )
        # chi2-4 hang from the chi before; all other groups from the backbone.
        to_backbone = [_group(turned, i) for i in range(_CHI1 + 1)]
        for i in range(_CHI1 + 1, 8):
            to_backbone.append(to_backbone[-1].compose(_group(turned, i)))
        stacked = Rigid(
            torch.stack([frame.rotation for frame in to_backbone], -3),
            torch.stack([frame.translation for frame in to_backbone], -2),
        )
        return backbone.unsqueeze(-1).compose(stacked)


def _group(frames: Rigid, index: int) -> Rigid:
    return Rigid(frames.rotation[..., index, :, :], frames.translation[..., index, :])
