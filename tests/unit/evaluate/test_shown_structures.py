"""The structures that an evaluation keeps, and the maps of pairs of residues."""

import base64

import numpy as np
import pytest
import torch

from scalefold.chem.residues import CA
from scalefold.evaluate.metrics import rmsd_ca
from scalefold.evaluate.shown_structures import MAP_SCALE, backbones, shown_chains
from scalefold.loss.distogram import FIRST_BREAK_ANGSTROM, LAST_BREAK_ANGSTROM
from scalefold.predict.pair_maps import MOST_SAMPLED, pair_maps, true_aligned_error


def points(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f4").reshape(-1, 4, 3)


def test_both_structures_keep_their_shape_and_lie_on_each_other(compare):
    comparison = compare("5pti_A", "hinge:0.6")
    kept = backbones(comparison)
    for ours, whole in ((kept.predicted, comparison.predicted), (kept.true, comparison.true)):
        distances = torch.cdist(ours[:, 1].double(), ours[:, 1].double())
        expected = torch.cdist(whole[:, CA], whole[:, CA])
        torch.testing.assert_close(distances, expected, atol=0.002, rtol=0)  # kept to 0.001 Å
    apart = (kept.predicted[:, 1] - kept.true[:, 1]).square().sum(-1).mean().sqrt()
    assert float(apart) == pytest.approx(rmsd_ca(comparison), abs=0.001)


def test_handedness_is_kept(compare):
    kept = backbones(compare("5pti_A", "noise:0"))
    n, ca, c, _ = kept.true.unbind(1)
    whole = compare("5pti_A", "noise:0").true
    sign = (torch.linalg.cross(n - ca, c - ca) * (ca[5] - ca)).sum(-1)
    expected = torch.linalg.cross(whole[:, 0] - whole[:, 1], whole[:, 2] - whole[:, 1])
    expected = (expected * (whole[5, 1] - whole[:, 1])).sum(-1)
    torch.testing.assert_close(sign.double(), expected, atol=0.2, rtol=0)


def test_best_median_and_worst_of_each_split_and_each_chain_once(compare):
    kept = {f"{i}abc_A": backbones(compare("1lcd_A", "drift:1")) for i in range(8)}
    scores = [("0abc_A", "train", 0.5), ("1abc_A", "train", 0.9), ("2abc_A", "train", None)]
    scores += [(f"{i}abc_A", "validation", 0.1 * i) for i in range(3, 8)]
    size = {"length": 51, "observed": 26}
    chains = [{"chain_key": key, "split": split, "lddt_ca": s, **size} for key, split, s in scores]
    found = shown_chains(chains, kept)
    assert [(one["chain_key"], one["split"], one["place"]) for one in found] == [
        ("1abc_A", "train", "best"),
        ("0abc_A", "train", "median"),
        ("7abc_A", "validation", "best"),
        ("5abc_A", "validation", "median"),
        ("3abc_A", "validation", "worst"),
    ]
    assert points(found[0]["true"]).shape == (51, 4, 3)
    assert len(found[0]["sequence"]) == 51


def test_chains_that_are_mostly_not_observed_are_shown_only_where_no_others_are(compare):
    kept = {f"{i}abc_A": backbones(compare("1lcd_A", "drift:1")) for i in range(3)}
    chains = [
        {"chain_key": key, "split": "train", "lddt_ca": 0.5, "length": 51, "observed": number}
        for key, number in zip(kept, (51, 26, 25))
    ]
    assert [one["chain_key"] for one in shown_chains(chains, kept)] == ["0abc_A", "1abc_A"]
    assert [one["chain_key"] for one in shown_chains(chains[2:], kept)] == ["2abc_A"]


def test_atoms_that_were_not_observed_are_not_shown(compare):
    comparison = compare("3u8v_A", "noise:0.1")
    kept = backbones(comparison)
    observed = comparison.true_mask[:, CA]
    assert not observed.all()
    assert torch.equal(torch.isfinite(kept.true[:, 1]).all(-1), observed)


def test_maps_are_the_means_of_the_heads_distributions():
    length, bins = 3 * MOST_SAMPLED + 1, 64
    number = torch.arange(length)
    chosen = (number[:, None] + number) % bins
    logits = 200.0 * torch.nn.functional.one_hot(chosen, bins).float()
    maps = pair_maps(logits, logits, length, max_angstrom=31.0)
    assert len(maps.residues) <= MOST_SAMPLED
    wanted = chosen[maps.residues][:, maps.residues].double()
    width = (LAST_BREAK_ANGSTROM - FIRST_BREAK_ANGSTROM) / (bins - 2)
    expected = FIRST_BREAK_ANGSTROM + width * (wanted - 0.5)
    torch.testing.assert_close(maps.distance.double(), expected, atol=1e-3, rtol=0)
    torch.testing.assert_close(maps.aligned_error.double(), 0.5 * (wanted + 0.5), atol=1e-3, rtol=0)


def test_aligned_error_is_that_of_the_superposed_frames(compare):
    comparison = compare("5pti_A", "drift:0.7")
    both = [x[:, [0, 1, 2, 4]] for x in (comparison.predicted, comparison.true)]
    error = true_aligned_error(*both)
    assert float(true_aligned_error(both[1], both[1]).abs().max()) < 1e-9
    for i in (0, 20, 57):
        local = []
        for atoms in both:
            n, ca, c = atoms[i, :3]
            x = (c - ca) / (c - ca).norm()
            z = torch.linalg.cross(x, n - ca)
            z = z / z.norm()
            frame = torch.stack([x, torch.linalg.cross(z, x), z], 1)
            local.append((atoms[:, 1] - ca) @ frame)
        torch.testing.assert_close(error[i], (local[0] - local[1]).norm(dim=-1))


def test_maps_are_written_in_eighths_of_an_angstrom(compare):
    comparison = compare("5pti_A", "noise:0")
    logits = torch.zeros(58, 58, 64)
    kept = {"5pti_A": backbones(comparison, pair_maps(logits, None, 58, 31.0))}
    chain = {"chain_key": "5pti_A", "split": "train", "lddt_ca": 1.0, "length": 58, "observed": 58}
    (one,) = shown_chains([chain], kept)
    assert set(one["maps"]) == {"distance", "true_distance"}
    written = np.frombuffer(base64.b64decode(one["maps"]["true_distance"]), np.uint8)
    expected = np.minimum(kept["5pti_A"].distance.numpy() * MAP_SCALE, 254)
    assert np.abs(written.reshape(58, 58) - expected).max() <= 0.5
