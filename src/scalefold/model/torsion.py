"""Torsion angles: their prediction, and atoms from them (Suppl. Alg. 20 lines 11-14, Alg. 24).

Legend: B samples, N residues.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from scalefold.chem.residues import ATOM14_LOCAL_POSITION, ATOM14_MASK, ATOM14_RIGID_GROUP
from scalefold.chem.rigid_groups import DEFAULT_FRAMES, NUM_GROUPS
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
        s : Tensor, shape (..., B, N, c_s)
            Single representation now, of all layers at once.
        s_initial : Tensor, shape (B, N, c_s)
            As it entered the structure module, normalised.

        Returns
        -------
        unnormalized, normalized : Tensor, shape (..., B, N, 7, 2)
        """
        a = self.linear_in(torch.relu(s)) + self.linear_initial(torch.relu(s_initial))
        for layer in self.layers:
            a = layer(a)
        angles = self.linear_out(torch.relu(a)).unflatten(-1, (NUM_ANGLES, 2))
        square = (angles**2).sum(-1, keepdim=True)
        return angles, angles / torch.sqrt(square.clamp(min=EPS))


def _atom_maps() -> NDArray[np.float32]:
    """[21, 14, 8, 4] what an atom takes of each group's three axes and origin: of its own only."""
    maps = np.zeros((*ATOM14_RIGID_GROUP.shape, NUM_GROUPS, 4), np.float32)
    types, slots = np.nonzero(ATOM14_MASK)
    groups = ATOM14_RIGID_GROUP[types, slots]
    maps[types, slots, groups, :3] = ATOM14_LOCAL_POSITION[types, slots]
    maps[types, slots, groups, 3] = 1.0
    return maps


class AllAtoms(nn.Module):
    """Frames of all rigid groups and atom positions from the backbone and torsions (Alg. 24)."""

    default_frames: Tensor
    atom_maps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("default_frames", torch.tensor(DEFAULT_FRAMES), persistent=False)
        self.register_buffer("atom_maps", torch.tensor(_atom_maps()), persistent=False)

    def forward(self, backbone: Rigid, angles: Tensor, aatype: Tensor) -> tuple[Rigid, Tensor]:
        """Build the residues.

        Parameters
        ----------
        backbone : Rigid, batch shape (..., B, N), Å
        angles : Tensor, shape (..., B, N, 7, 2)
            (sin, cos), normalised.
        aatype : Tensor, shape (B, N), int64

        Returns
        -------
        frames : Rigid, batch shape (..., B, N, 8)
        positions : Tensor, shape (..., B, N, 14, 3), Å
            Zero where the residue type has no such atom.
        """
        frames = backbone.unsqueeze(-1).compose(self._groups(angles, aatype))
        axes_and_origin = torch.cat(
            [frames.rotation.transpose(-1, -2), frames.translation[..., None, :]], -2
        )
        # A sum over all groups, not a choice of one: its gradient needs no atomic additions.
        maps = self.atom_maps[aatype][..., None]
        positions = (maps * axes_and_origin[..., None, :, :, :]).sum((-3, -2))
        return frames, positions

    def _groups(self, angles: Tensor, aatype: Tensor) -> Rigid:
        """Frames of all groups seen from the backbone, batch shape (..., B, N, 8)."""
        sine, cosine = angles.unbind(-1)
        # The backbone group has no torsion of its own: rotation by zero.
        sine = functional.pad(sine, (1, 0), value=0.0)[..., None]
        cosine = functional.pad(cosine, (1, 0), value=1.0)[..., None]
        default = Rigid.from_4x4(self.default_frames[aatype])
        x, y, z = default.rotation.unbind(-1)
        rotated = Rigid(
            torch.stack(
                [x.expand(*sine.shape[:-1], 3), cosine * y + sine * z, cosine * z - sine * y], -1
            ),
            default.translation.expand(*sine.shape[:-1], 3),
        )
        # chi2-4 hang from the chi before; all other groups from the backbone.
        groups = [_group(rotated, slice(_CHI1 + 1))]
        for chi in range(_CHI1 + 1, NUM_GROUPS):
            before = _group(groups[-1], slice(-1, None))
            groups.append(before.compose(_group(rotated, slice(chi, chi + 1))))
        return Rigid(
            torch.cat([frame.rotation for frame in groups], -3),
            torch.cat([frame.translation for frame in groups], -2),
        )


def _group(frames: Rigid, groups: slice) -> Rigid:
    return Rigid(frames.rotation[..., groups, :, :], frames.translation[..., groups, :])
