"""Rigid transforms against matrix algebra."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from scalefold.geometry.rigid import Rigid, multiply_rotations, quaternion_to_rotation, rotate

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def _random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _unit_quaternion(seed: int, *shape: int) -> Tensor:
    quaternion = _random(seed, *shape, 4)
    return quaternion / quaternion.norm(dim=-1, keepdim=True)


def _rigid(seed: int, *shape: int) -> Rigid:
    rotation = quaternion_to_rotation(_unit_quaternion(seed, *shape))
    return Rigid(rotation, 5 * _random(seed + 100, *shape, 3))


def _homogeneous(points: Tensor) -> Tensor:
    return torch.cat([points, torch.ones_like(points[..., :1])], -1)


def test_quaternions_give_proper_rotations_and_multiply() -> None:
    p, q = _unit_quaternion(0, 5), _unit_quaternion(1, 5)
    rotation = quaternion_to_rotation(p)
    torch.testing.assert_close(
        rotation @ rotation.mT, torch.eye(3).double().expand(5, 3, 3), **EXACT
    )
    torch.testing.assert_close(torch.linalg.det(rotation), torch.ones(5).double(), **EXACT)
    pa, qa, pv, qv = p[:, :1], q[:, :1], p[:, 1:], q[:, 1:]
    product = torch.cat(
        [
            pa * qa - (pv * qv).sum(-1, keepdim=True),
            pa * qv + qa * pv + torch.linalg.cross(pv, qv),
        ],
        -1,
    )
    torch.testing.assert_close(
        quaternion_to_rotation(product), rotation @ quaternion_to_rotation(q), **EXACT
    )
    torch.testing.assert_close(quaternion_to_rotation(-p), rotation, **EXACT)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_quaternion_turns_by_the_right_hand(axis: int) -> None:
    quaternion = torch.zeros(4, dtype=torch.float64)
    quaternion[0] = quaternion[1 + axis] = math.sqrt(0.5)  # 90 degrees
    unit = torch.eye(3, dtype=torch.float64)
    turned = rotate(quaternion_to_rotation(quaternion), unit[(axis + 1) % 3])
    torch.testing.assert_close(turned, unit[(axis + 2) % 3], **EXACT)


def test_operations_equal_those_of_4x4_matrices() -> None:
    a, b, points = _rigid(2, 4), _rigid(3, 4), _random(4, 4, 3)
    torch.testing.assert_close(a.compose(b).to_4x4(), a.to_4x4() @ b.to_4x4(), **EXACT)
    moved = (a.to_4x4() @ _homogeneous(points)[..., None])[..., :3, 0]
    torch.testing.assert_close(a.apply(points), moved, **EXACT)
    torch.testing.assert_close(a.invert_apply(moved), points, **EXACT)
    torch.testing.assert_close(
        multiply_rotations(a.rotation, b.rotation), a.rotation @ b.rotation, **EXACT
    )
    again = Rigid.from_4x4(a.to_4x4())
    assert torch.equal(again.rotation, a.rotation)
    assert torch.equal(again.translation, a.translation)


def test_batches_broadcast() -> None:
    frames, points = _rigid(5, 2, 3), _random(6, 2, 7, 3)
    local = frames.unsqueeze(-1).invert_apply(points[:, None])
    assert local.shape == (2, 3, 7, 3)
    one = Rigid(frames.rotation[1, 2], frames.translation[1, 2])
    torch.testing.assert_close(local[1, 2], one.invert_apply(points[1]), **EXACT)
    assert frames.unsqueeze(0).translation.shape == (1, 2, 3, 3)
    assert frames.unsqueeze(-1).rotation.shape == (2, 3, 1, 3, 3)


def test_frame_of_three_points_has_its_axes() -> None:
    negative_x, origin, xy_plane = _random(7, 3, 6, 3)
    frame = Rigid.from_three_points(negative_x, origin, xy_plane)
    torch.testing.assert_close(torch.linalg.det(frame.rotation), torch.ones(6).double())
    local = [frame.invert_apply(p) for p in (negative_x, origin, xy_plane)]
    assert (local[0][:, 0] < 0).all()
    # eps 1e-8 Å^2 under the norms: axes are off by 1e-8 relative
    assert local[0][:, 1:].abs().max() < 1e-7
    assert local[1].abs().max() == 0
    assert (local[2][:, 1] > 0).all()
    assert local[2][:, 2].abs().max() < 1e-7


def test_points_on_one_line_give_no_nan() -> None:
    points = [torch.full((1, 3), x, requires_grad=True) for x in (0.0, 1.0, 2.0)]
    frame = Rigid.from_three_points(*points)
    assert torch.isfinite(frame.rotation).all()
    for gradient in torch.autograd.grad(frame.rotation.sum(), points):
        assert torch.isfinite(gradient).all()


def test_detaching_the_rotation_keeps_the_gradient_of_the_translation() -> None:
    rotation, translation = (x.requires_grad_() for x in _rigid(8, 2))
    Rigid(rotation, translation).detach_rotation().apply(_random(9, 2, 3)).sum().backward()
    assert rotation.grad is None
    torch.testing.assert_close(translation.grad, torch.ones(2, 3).double())


def test_identity_and_type() -> None:
    identity = Rigid.identity((2, 3), torch.zeros(1, dtype=torch.float64))
    points = _random(11, 2, 3, 3)
    assert torch.equal(identity.apply(points), points)
    half = identity.to(torch.float32)
    assert half.rotation.dtype == half.translation.dtype == torch.float32


def test_gradients() -> None:
    a, b, points = _rigid(12, 2), _rigid(13, 2), _random(14, 2, 3)
    assert torch.autograd.gradcheck(
        lambda r, t, p, x: Rigid(r, t).compose(Rigid(p, b.translation)).invert_apply(x),
        tuple(x.requires_grad_() for x in (*a, b.rotation, points)),
    )
