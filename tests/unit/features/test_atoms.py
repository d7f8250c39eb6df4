import numpy as np
import torch

from scalefold.chem.residues import ATOM14, ATOM37_INDEX, RESTYPE_INDEX
from scalefold.features.atoms import atom14_targets, atom_layout, pseudo_beta


def tensors(chain):
    return (
        torch.from_numpy(chain.aatype).long(),
        torch.from_numpy(chain.positions),
        torch.from_numpy(chain.atom_mask).float(),
    )


def test_atom14_holds_the_named_atoms(bpti):
    aatype, positions, mask = tensors(bpti)
    targets = atom14_targets(aatype, positions, mask)
    for n, residue in enumerate(aatype):
        for slot, name in enumerate(ATOM14[residue]):
            atom = ATOM37_INDEX[name]
            assert targets["atom14_gt_exists"][n, slot] == mask[n, atom]
            assert torch.equal(targets["atom14_gt_positions"][n, slot], positions[n, atom])
        assert (targets["atom14_gt_exists"][n, len(ATOM14[residue]) :] == 0).all()


def test_layouts_lead_there_and_back(bpti):
    aatype, positions, mask = tensors(bpti)
    layout = atom_layout(aatype)
    packed = atom14_targets(aatype, positions, mask)["atom14_gt_positions"]
    slots = layout["residx_atom37_to_atom14"][..., None].expand(-1, -1, 3)
    back = packed.gather(1, slots) * layout["atom37_atom_exists"][..., None]
    # the terminal OXT is in no atom14 layout
    known = positions * layout["atom37_atom_exists"][..., None]
    assert torch.equal(back, known)


def test_alternative_naming_swaps_both_pairs_of_a_ring(bpti):
    aatype, positions, mask = tensors(bpti)
    targets = atom14_targets(aatype, positions, mask)
    ring = int((aatype == RESTYPE_INDEX["F"]).nonzero()[0])
    names = ATOM14[RESTYPE_INDEX["F"]]
    for first, second in (("CD1", "CD2"), ("CE1", "CE2")):
        i, j = names.index(first), names.index(second)
        truth, other = (
            targets["atom14_gt_positions"][ring],
            targets["atom14_alt_gt_positions"][ring],
        )
        assert torch.equal(truth[i], other[j])
        assert torch.equal(truth[j], other[i])
        assert not torch.equal(truth[i], other[i])
    ambiguous = targets["atom14_atom_is_ambiguous"][ring]
    assert ambiguous.sum() == 4
    same = ambiguous == 0
    assert torch.equal(
        targets["atom14_gt_positions"][ring][same], targets["atom14_alt_gt_positions"][ring][same]
    )


def test_alternative_mask_follows_its_atom(bpti):
    aatype, positions, mask = tensors(bpti)
    ring = int((aatype == RESTYPE_INDEX["F"]).nonzero()[0])
    mask = mask.clone()
    mask[ring, ATOM37_INDEX["CD1"]] = 0
    targets = atom14_targets(aatype, positions, mask)
    names = ATOM14[RESTYPE_INDEX["F"]]
    assert targets["atom14_gt_exists"][ring, names.index("CD1")] == 0
    assert targets["atom14_alt_gt_exists"][ring, names.index("CD2")] == 0
    assert targets["atom14_alt_gt_exists"][ring, names.index("CD1")] == 1


def test_pseudo_beta(bpti):
    aatype, positions, mask = tensors(bpti)
    beta, beta_mask = pseudo_beta(aatype, positions, mask)
    letters = np.asarray(list(bpti.sequence))
    for n, letter in enumerate(letters):
        atom = ATOM37_INDEX["CA" if letter == "G" else "CB"]
        assert torch.equal(beta[n], positions[n, atom])
    assert (letters == "G").any()
    assert (beta_mask == 1).all()


def test_gap_is_not_glycine():
    _, mask = pseudo_beta(torch.tensor([21]), torch.zeros(1, 37, 3), torch.zeros(1, 37))
    assert mask.item() == 0
