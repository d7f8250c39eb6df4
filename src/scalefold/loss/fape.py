"""Frame aligned point error (Suppl. Alg. 28): backbone over all layers, side chains on the last.

Legend: B samples, N residues, L structure module layers, F frames, P points.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from scalefold.geometry.rigid import Rigid
from scalefold.loss.masked import float64_sum

CLAMP_ANGSTROM: Final = 10.0
UNIT_ANGSTROM: Final = 10.0
_EPS: Final = 1e-4  # Å^2 under the root, and in the denominator of the mean


def aligned_distance(
    predicted_frames: Rigid, true_frames: Rigid, predicted_points: Tensor, true_points: Tensor
) -> Tensor:
    """Distance of each predicted point from the true one, seen from each frame.

    Parameters
    ----------
    predicted_frames, true_frames : Rigid, batch shape (..., F)
    predicted_points, true_points : Tensor, shape (..., P, 3)
        Å. Leading dimensions broadcast.

    Returns
    -------
    Tensor, shape (..., F, P)
        Å; at least 0.01 (eps under the root keeps the gradient finite).
    """
    # Coordinate by coordinate: a matrix product may be rounded to TF32, and a broadcast product of
    # 3x3 matrices would hold three times the memory.
    predicted = _offsets(predicted_frames, predicted_points)
    true = _offsets(true_frames, true_points)
    difference = [
        _component(predicted_frames, predicted, axis) - _component(true_frames, true, axis)
        for axis in range(3)
    ]
    x, y, z = (component.square() for component in difference)
    return torch.sqrt(x + y + z + _EPS)


def _offsets(frames: Rigid, points: Tensor) -> list[Tensor]:
    """Global x, y and z of each point less each frame's origin, (..., F, P) each."""
    return [
        point[..., None, :] - origin[..., None]
        for point, origin in zip(points.unbind(-1), frames.translation.unbind(-1), strict=True)
    ]


def _component(frames: Rigid, offsets: list[Tensor], axis: int) -> Tensor:
    """Local coordinate of the offsets along one axis of the frames, (..., F, P)."""
    rx, ry, rz = frames.rotation[..., axis, None].unbind(-2)
    x, y, z = offsets
    return rx * x + ry * y + rz * z


def _mean(distance: Tensor, frame_mask: Tensor, point_mask: Tensor) -> Tensor:
    kept = (distance / UNIT_ANGSTROM) * frame_mask[..., None] * point_mask[..., None, :]
    count = float64_sum(frame_mask, [-1]) * float64_sum(point_mask, [-1])
    return float64_sum(kept, [-1, -2]) / (_EPS + count)


def backbone_fape(predicted: Rigid, true: Rigid, mask: Tensor, use_clamped: Tensor) -> Tensor:
    """FAPE of the backbone frames and their origins, mean over the layers (Suppl. Alg. 20, l. 17).

    Parameters
    ----------
    predicted : Rigid, batch shape (L, B, N)
        Backbone frame after each layer.
    true : Rigid, batch shape (B, N)
    mask : Tensor, shape (B, N)
        1 where the true frame is known.
    use_clamped : Tensor, shape (B,)
        1: errors of this sample are clamped at 10 Å, 0: they are not; between, a mixture
        (Suppl. sec. 1.11.5).

    Returns
    -------
    Tensor, shape (B,)
        In units of 10 Å.
    """
    distance = aligned_distance(predicted, true, predicted.translation, true.translation)
    clamped = distance.clamp(max=CLAMP_ANGSTROM)
    share = use_clamped[:, None, None]
    return _mean(clamped * share + distance * (1.0 - share), mask, mask).mean(0)


def sidechain_fape(
    predicted_frames: Rigid,
    true_frames: Rigid,
    frame_mask: Tensor,
    predicted_points: Tensor,
    true_points: Tensor,
    point_mask: Tensor,
) -> Tensor:
    """FAPE of all rigid groups and all atoms of the last layer, always clamped.

    True frames and positions are those after renaming (Suppl. Alg. 20, lines 26-29).

    Parameters
    ----------
    predicted_frames, true_frames : Rigid, batch shape (B, N, 8)
    frame_mask : Tensor, shape (B, N, 8)
    predicted_points, true_points : Tensor, shape (B, N, 14, 3)
    point_mask : Tensor, shape (B, N, 14)

    Returns
    -------
    Tensor, shape (B,)
        In units of 10 Å.
    """
    distance = aligned_distance(
        Rigid(predicted_frames.rotation.flatten(1, 2), predicted_frames.translation.flatten(1, 2)),
        Rigid(true_frames.rotation.flatten(1, 2), true_frames.translation.flatten(1, 2)),
        predicted_points.flatten(1, 2),
        true_points.flatten(1, 2),
    )
    return _mean(distance.clamp(max=CLAMP_ANGSTROM), frame_mask.flatten(1), point_mask.flatten(1))
