import math

import numpy as np
import torch
from tests.example import set_example_weights

from scalefold.chem.residues import (
    ATOM14,
    ATOM14_LOCAL_POSITION,
    ATOM37,
    CHI_ATOMS,
    CHI_MASK,
    RESTYPES,
)
from scalefold.geometry.rigid import Rigid
from scalefold.model.torsion import AllAtoms, AngleResnet


def dihedral(a, b, c, d) -> float:
    b0, b1, b2 = a - b, c - b, d - c
    b1 = b1 / np.linalg.norm(b1)
    v, w = b0 - (b0 @ b1) * b1, b2 - (b2 @ b1) * b1
    return math.atan2(np.cross(b1, v) @ w, v @ w)


def built(angle: float) -> torch.Tensor:
    """All 20 residues with every torsion at one angle."""
    aatype = torch.arange(20)[None]
    angles = torch.tensor([math.sin(angle), math.cos(angle)]).expand(1, 20, 7, 2)
    backbone = Rigid.identity((1, 20), torch.zeros(1))
    return AllAtoms()(backbone, angles, aatype)[1][0].double()


def test_built_side_chains_have_the_torsions_asked_for() -> None:
    for angle in (-2.5, 0.3, 1.9):
        positions = built(angle).numpy()
        checked = 0
        for i in range(20):
            at = {name: positions[i, j] for j, name in enumerate(ATOM14[i])}
            for chi in range(int(CHI_MASK[i].sum())):
                a, b, c, d = (at[ATOM37[k]] for k in CHI_ATOMS[i, chi])
                difference = dihedral(a, b, c, d) - angle
                # positions are tabulated to 3 decimals: some rad / 1000
                assert abs(math.remainder(difference, 2 * math.pi)) < 0.01, (RESTYPES[i], chi)
                checked += 1
        assert checked == int(CHI_MASK.sum())


def test_backbone_atoms_do_not_move_with_torsions() -> None:
    one, two = built(0.3), built(2.0)
    for i in range(20):
        for name in ("N", "CA", "C", "CB"):
            if name in ATOM14[i]:
                j = ATOM14[i].index(name)
                torch.testing.assert_close(one[i, j], two[i, j])
                expected = torch.tensor(ATOM14_LOCAL_POSITION[i, j]).double()
                torch.testing.assert_close(one[i, j], expected)


def test_psi_turns_the_oxygen() -> None:
    for angle in (0.3, 2.0):
        positions = built(angle).numpy()
        n, ca, c, o = (positions[0, ATOM14[0].index(x)] for x in ("N", "CA", "C", "O"))
        # The psi group's torsion is that of the next nitrogen; the oxygen lies opposite to it.
        difference = math.remainder(dihedral(n, ca, c, o) - angle - math.pi, 2 * math.pi)
        assert abs(difference) < 0.01


def test_unknown_residues_have_no_atoms() -> None:
    angles = torch.tensor([0.0, 1.0]).expand(1, 1, 7, 2)
    frame = Rigid.identity((1, 1), torch.zeros(1))
    _, positions = AllAtoms()(frame, angles, torch.tensor([[20]]))
    assert (positions == 0).all()


def test_angles_are_normalised_and_inputs_pass_a_relu() -> None:
    net = AngleResnet(6, 8, 2)
    set_example_weights(net)
    s, initial = torch.randn(2, 3, 6), torch.randn(2, 3, 6)
    raw, angles = net(s, initial)
    torch.testing.assert_close(angles.norm(dim=-1), torch.ones(2, 3, 7))
    torch.testing.assert_close(angles * raw.norm(dim=-1, keepdim=True), raw)
    other = net(s.clamp(min=0), initial.clamp(min=0))[0]
    assert torch.equal(raw, other)


def test_a_zero_angle_is_finite_with_finite_gradient() -> None:
    net = AngleResnet(6, 8, 2)
    torch.nn.init.zeros_(net.linear_out.weight)
    raw, angles = net(torch.randn(1, 2, 6), torch.randn(1, 2, 6))
    assert (raw == 0).all()
    angles.sum().backward()
    assert angles.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())
