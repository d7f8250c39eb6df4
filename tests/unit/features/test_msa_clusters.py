import numpy as np
import pytest
import torch

from scalefold.chem.residues import GAP, MASK
from scalefold.features import msa_clusters
from scalefold.features.msa_clusters import nearest_centres, summarize_clusters, symbol_counts


def symbols(generator, *shape, top=23):
    return torch.from_numpy(generator.integers(0, top, shape).astype(np.uint8))


def brute_force(rows, centres):
    """Nearest centres by comparing symbols one by one, ties to the first."""
    result = []
    for passes in centres.numpy():
        agreement = ((rows.numpy()[:, None] == passes[None]) & (passes[None] < GAP)).sum(-1)
        result.append(agreement.argmax(-1))
    return torch.from_numpy(np.stack(result))


@pytest.mark.parametrize(
    ("rows", "passes", "centres", "width"),
    [(1, 1, 1, 1), (5, 1, 3, 4), (40, 3, 13, 9), (90, 2, 8, 50)],
)
def test_nearest_is_brute_force(rows, passes, centres, width):
    generator = np.random.default_rng(rows)
    # few symbols: many ties
    msa = symbols(generator, rows, width, top=22) % 3 + 19
    chosen = symbols(generator, passes, centres, width) % 4 + 19
    assert torch.equal(nearest_centres(msa, chosen), brute_force(msa, chosen))


def test_blocks_of_rows_do_not_matter(monkeypatch):
    generator = np.random.default_rng(0)
    msa, chosen = symbols(generator, 50, 12, top=22), symbols(generator, 2, 7, 12)
    whole = nearest_centres(msa, chosen)
    monkeypatch.setitem(msa_clusters._ONE_HOT_BYTES, "cpu", 16 * GAP * 3)  # three rows at a time
    assert torch.equal(nearest_centres(msa, chosen), whole)


def test_gaps_and_masks_do_not_count():
    row = torch.tensor([[GAP, GAP, GAP, 4]], dtype=torch.uint8)
    gaps = torch.tensor([[[GAP, GAP, GAP, 5], [MASK, MASK, MASK, 4]]], dtype=torch.uint8)
    assert nearest_centres(row, gaps).item() == 1
    nothing = torch.tensor([[[GAP, GAP, GAP, 5], [GAP, GAP, GAP, 6]]], dtype=torch.uint8)
    assert nearest_centres(row, nothing).item() == 0


def test_large_counts_are_exact():
    """600 and 601 agreements: half precision could not tell them apart."""
    row = torch.zeros(1, 700, dtype=torch.uint8)
    centres = torch.ones(1, 3, 700, dtype=torch.uint8)
    centres[0, 0, :600] = 0
    centres[0, 1, :601] = 0
    centres[0, 2, :601] = 0
    assert nearest_centres(row, centres).item() == 1


def test_float_product_agrees_with_the_integer_one(monkeypatch):
    generator = np.random.default_rng(3)
    msa, chosen = symbols(generator, 30, 40, top=22), symbols(generator, 2, 9, 40)
    integer = nearest_centres(msa, chosen)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert torch.equal(nearest_centres(msa, chosen), integer)


def test_symbol_counts():
    generator = np.random.default_rng(0)
    msa, group = symbols(generator, 60, 11), torch.from_numpy(generator.integers(0, 5, 60))
    counts = symbol_counts(msa, group, 6)
    assert counts.shape == (6, 11, 23)
    for g in range(6):
        for symbol in range(23):
            expected = (msa[group == g] == symbol).sum(0)
            assert torch.equal(counts[g, :, symbol], expected)


def test_symbol_counts_of_no_rows():
    counts = symbol_counts(
        torch.zeros(0, 4, dtype=torch.uint8), torch.zeros(0, dtype=torch.long), 2
    )
    assert counts.shape == (2, 4, 23)
    assert counts.sum() == 0


def test_summary_includes_the_centre():
    """Two members and the centre: each counts a third."""
    centre = torch.tensor([[MASK, 3]])
    members = torch.tensor([[1, 3], [2, GAP]])
    profile, deletion_mean = summarize_clusters(
        centre,
        torch.tensor([[3.0, 0.0]]),
        symbol_counts(members, torch.zeros(2, dtype=torch.long), 1),
        torch.tensor([[3, 6]]),
        torch.tensor([2]),
    )
    third = pytest.approx(1 / 3, abs=1e-6)
    assert [profile[0, 0, s].item() for s in (MASK, 1, 2)] == [third] * 3
    assert profile[0, 1, 3].item() == pytest.approx(2 / 3, abs=1e-6)
    assert profile[0, 1, GAP].item() == third
    assert deletion_mean[0].tolist() == pytest.approx([2.0, 2.0], abs=1e-5)


def test_lone_centre_is_its_own_profile():
    zeros = torch.zeros(1, 2, dtype=torch.long)
    profile, mean = summarize_clusters(
        torch.tensor([[4, 21]]),
        torch.tensor([[0.0, 5.0]]),
        torch.zeros(1, 2, 23).long(),
        zeros,
        torch.tensor([0]),
    )
    torch.testing.assert_close(
        profile, torch.nn.functional.one_hot(torch.tensor([[4, 21]]), 23).float(), rtol=2e-6, atol=0
    )
    torch.testing.assert_close(mean, torch.tensor([[0.0, 5.0]]), rtol=2e-6, atol=0)
