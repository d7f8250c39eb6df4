"""Rigid transforms (rotation, translation) as a pair of tensors.

Conventions: a frame ``T = (R, t)`` maps local to global coordinates, ``x_global = R x_local + t``;
``T1.compose(T2)`` applies ``T2`` first. Translations are in Å unless a method says otherwise.
Rotations are 3x3 matrices multiplied element by element: tiny matrices through a GEMM would be
rounded to TF32 or bf16 on a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def rotate(rotation: Tensor, vector: Tensor) -> Tensor:
    """Rotate vectors.

    Parameters
    ----------
    rotation : Tensor, shape (..., 3, 3)
    vector : Tensor, shape (..., 3)

    Returns
    -------
    Tensor, shape (..., 3)
    """
    return (rotation * vector[..., None, :]).sum(-1)


def multiply_rotations(first: Tensor, second: Tensor) -> Tensor:
    """Matrix product of 3x3 rotations, broadcasting (..., 3, 3)."""
    return (first[..., :, :, None] * second[..., None, :, :]).sum(-2)


def quaternion_to_rotation(quaternion: Tensor) -> Tensor:
    """Rotation matrices of unit quaternions (a, b, c, d): (..., 4) -> (..., 3, 3)."""
    a, v = quaternion[..., :1, None], quaternion[..., 1:]
    eye = torch.eye(3, dtype=v.dtype, device=v.device).expand(*v.shape, 3)
    # Euler and Rodrigues: (a^2 - |v|^2) x + 2 v (v.x) + 2 a (v cross x), for each unit vector x.
    square = a.square() - v.square().sum(-1, keepdim=True)[..., None]
    cross = torch.linalg.cross(eye, v[..., None, :].expand_as(eye))  # reversed: the transpose
    return square * eye + 2 * (v[..., :, None] * v[..., None, :] + a * cross)


class Rigid(NamedTuple):
    """A batch of rigid transforms.

    Attributes
    ----------
    rotation : Tensor, shape (..., 3, 3)
    translation : Tensor, shape (..., 3)
    """

    rotation: Tensor
    translation: Tensor

    @staticmethod
    def identity(shape: tuple[int, ...], like: Tensor) -> Rigid:
        """Identity transforms of the given batch shape, on the device and dtype of ``like``."""
        eye = torch.eye(3, dtype=like.dtype, device=like.device)
        return Rigid(eye.expand(*shape, 3, 3), like.new_zeros((*shape, 3)))

    @staticmethod
    def from_three_points(
        negative_x: Tensor, origin: Tensor, xy_plane: Tensor, eps: float = 1e-8
    ) -> Rigid:
        """Frame by Gram-Schmidt from three points (Suppl. Alg. 21).

        Parameters
        ----------
        negative_x, origin, xy_plane : Tensor, shape (..., 3)
            A point on the negative x axis, the origin, a point in the xy plane with y > 0.
        eps : float
            Added under the square root of each norm, in Å^2.
        """
        e0 = origin - negative_x
        e0 = e0 / torch.sqrt((e0 * e0).sum(-1, keepdim=True) + eps)
        e1 = xy_plane - origin
        e1 = e1 - e0 * (e0 * e1).sum(-1, keepdim=True)
        e1 = e1 / torch.sqrt((e1 * e1).sum(-1, keepdim=True) + eps)
        e2 = torch.linalg.cross(e0, e1)
        return Rigid(torch.stack([e0, e1, e2], -1), origin)

    @staticmethod
    def from_4x4(matrix: Tensor) -> Rigid:
        """From homogeneous matrices (..., 4, 4)."""
        return Rigid(matrix[..., :3, :3], matrix[..., :3, 3])

    def to_4x4(self) -> Tensor:
        """Homogeneous matrices (..., 4, 4)."""
        matrix = self.rotation.new_zeros((*self.translation.shape[:-1], 4, 4))
        matrix[..., :3, :3] = self.rotation
        matrix[..., :3, 3] = self.translation
        matrix[..., 3, 3] = 1.0
        return matrix

    def apply(self, points: Tensor) -> Tensor:
        """Map local points (..., 3) to global coordinates; batch dimensions broadcast."""
        return rotate(self.rotation, points) + self.translation

    def invert_apply(self, points: Tensor) -> Tensor:
        """Map global points (..., 3) to local coordinates; batch dimensions broadcast."""
        return rotate(self.rotation.transpose(-1, -2), points - self.translation)

    def compose(self, inner: Rigid) -> Rigid:
        """The transform that applies ``inner`` first, then this one."""
        return Rigid(
            multiply_rotations(self.rotation, inner.rotation), self.apply(inner.translation)
        )

    def detach_rotation(self) -> Rigid:
        """Stop gradients through the rotation only (Suppl. Alg. 20, line 20)."""
        return Rigid(self.rotation.detach(), self.translation)

    def unsqueeze(self, dim: int) -> Rigid:
        """Insert a batch dimension; ``dim`` counts batch dimensions and may be negative."""
        if dim < 0:
            return Rigid(self.rotation.unsqueeze(dim - 2), self.translation.unsqueeze(dim - 1))
        return Rigid(self.rotation.unsqueeze(dim), self.translation.unsqueeze(dim))

    def to(self, dtype: torch.dtype) -> Rigid:
        """Change the floating-point type."""
        return Rigid(self.rotation.to(dtype), self.translation.to(dtype))
