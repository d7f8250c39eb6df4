"""Superposition against an independent implementation, and its properties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from Bio.SVDSuperimposer import SVDSuperimposer

from scalefold.errors import InputError
from scalefold.geometry.rigid import Rigid, quaternion_to_rotation
from scalefold.geometry.superposition import rmsd, superpose, superposed_rmsd


def _points(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 10 * torch.randn(*shape, 3, generator=generator, dtype=torch.float64)


def _motion(seed: int, *shape: int) -> Rigid:
    generator = torch.Generator().manual_seed(seed)
    quaternion = torch.randn(*shape, 4, generator=generator, dtype=torch.float64)
    quaternion = quaternion / quaternion.norm(dim=-1, keepdim=True)
    return Rigid(quaternion_to_rotation(quaternion), _points(seed + 1, *shape))


def test_recovers_a_known_motion_in_a_batch() -> None:
    mobile, motion = _points(0, 2, 3, 9), _motion(7, 2, 3)
    found = superpose(mobile, motion.unsqueeze(-1).apply(mobile), torch.ones(2, 3, 9))
    torch.testing.assert_close(found.rotation, motion.rotation, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.translation, motion.translation, rtol=0, atol=1e-11)


@pytest.mark.parametrize("seed", range(5))
def test_equals_biopython_also_for_mirror_images(seed: int) -> None:
    mobile = _points(seed, 12)
    target = mobile * torch.tensor([1.0, 1.0, -1.0]) + 0.1 * _points(seed + 50, 12)
    reference = SVDSuperimposer()
    reference.set(target.numpy(), mobile.numpy())
    reference.run()
    found = superpose(mobile, target, torch.ones(12))
    # Biopython multiplies row vectors from the left: its matrix is the transpose.
    np.testing.assert_allclose(found.rotation.numpy().T, reference.get_rotran()[0], atol=1e-10)
    assert torch.linalg.det(found.rotation).item() == pytest.approx(1.0, abs=1e-12)
    distance = superposed_rmsd(mobile, target, torch.ones(12)).item()
    assert distance == pytest.approx(reference.get_rms(), rel=1e-10)


def test_masked_points_do_not_matter_even_nan() -> None:
    mobile, target = _points(1, 8), _points(2, 8)
    mask = torch.tensor([1.0, 1, 1, 1, 1, 1, 0, 0])
    expected = superpose(mobile[:6], target[:6], torch.ones(6))
    mobile[6:], target[7] = float("nan"), float("inf")
    found = superpose(mobile, target, mask)
    torch.testing.assert_close(found.rotation, expected.rotation, rtol=0, atol=1e-12)
    assert torch.isfinite(rmsd(mobile, target, mask))
    assert torch.isfinite(superposed_rmsd(mobile, target, mask))


def test_integer_weights_equal_repeated_points() -> None:
    mobile, target = _points(3, 6), _points(4, 6)
    weight = torch.tensor([1, 2, 1, 3, 1, 1])
    repeated = superpose(
        mobile.repeat_interleave(weight, 0), target.repeat_interleave(weight, 0), torch.ones(9)
    )
    found = superpose(mobile, target, weight)
    torch.testing.assert_close(found.rotation, repeated.rotation, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        rmsd(mobile, target, weight),
        rmsd(
            mobile.repeat_interleave(weight, 0), target.repeat_interleave(weight, 0), torch.ones(9)
        ),
    )


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_points_give_a_proper_rotation(count: int) -> None:
    mobile, target = _points(5, 4), _points(6, 4)
    mask = (torch.arange(4) < count).double()
    found = superpose(mobile, target, mask)
    assert torch.linalg.det(found.rotation).item() == pytest.approx(1.0, abs=1e-12)
    if count == 0:
        torch.testing.assert_close(found.rotation, torch.eye(3, dtype=torch.float64))
        assert found.translation.abs().max() == 0
        assert rmsd(mobile, target, mask) == 0


def test_no_nearby_motion_is_better() -> None:
    mobile, target, mask = _points(8, 10), _points(9, 10), torch.ones(10)
    best = superpose(mobile, target, mask)
    least = rmsd(best.apply(mobile), target, mask)
    for seed in range(10):
        small = torch.cat([torch.ones(1), 0.01 * torch.randn(3)]).double()
        small = small / small.norm()
        other = Rigid(quaternion_to_rotation(small), 0.01 * _points(seed, 1)[0]).compose(best)
        assert rmsd(other.apply(mobile), target, mask) > least


def test_disagreeing_shapes_are_named() -> None:
    with pytest.raises(InputError, match=r"\(4, 3\).*\(5, 3\)"):
        superpose(_points(0, 4), _points(0, 5), torch.ones(4))
    with pytest.raises(InputError, match=r"mask .*\(3,\).*\(4,\)"):
        rmsd(_points(0, 4), _points(0, 4), torch.ones(3))
