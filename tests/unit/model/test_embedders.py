import torch
from tests.example import set_example_weights

from scalefold.chem.residues import CA, CB, RESTYPE_INDEX
from scalefold.model.contract import Previous
from scalefold.model.embedders import (
    ExtraMsaEmbedder,
    InputEmbedder,
    RecyclingEmbedder,
    pseudo_beta,
)
from scalefold.model.one_hot import distance_one_hot


def test_recycling_bins() -> None:
    edges = [3.25 + 1.25 * i for i in range(15)]  # 3.25 to 20.75
    distances = torch.tensor([0.0, 3.2, 3.3, *[e + 0.6 for e in edges], 500.0])
    line = torch.stack([distances, torch.zeros_like(distances), torch.zeros_like(distances)], -1)
    one_hot = distance_one_hot(torch.zeros(1, 3), line, 3.25, 20.75, 15)[0].int()
    assert one_hot.shape == (len(distances), 15)
    assert (one_hot[:2] == 0).all(), "closer than the first edge: no bin"
    assert one_hot[2:].sum(-1).eq(1).all()
    assert one_hot[2:].argmax(-1).tolist() == [0, *range(15), 14], "the last bin is open"


def test_pseudo_beta_is_calpha_for_glycine_only() -> None:
    positions = torch.randn(1, 2, 37, 3)
    beta = pseudo_beta(torch.tensor([[RESTYPE_INDEX["G"], RESTYPE_INDEX["A"]]]), positions)
    assert torch.equal(beta[0, 0], positions[0, 0, CA])
    assert torch.equal(beta[0, 1], positions[0, 1, CB])


def test_first_pass_adds_the_embedding_of_zeros(config, assembly, zeros) -> None:
    embedder = RecyclingEmbedder(config, assembly)
    set_example_weights(embedder)
    row, pair = embedder(torch.zeros(2, 12, dtype=torch.int64), zeros)
    torch.testing.assert_close(row[0, 0], embedder.layer_norm_m.bias)
    torch.testing.assert_close(pair[1, 2, 3], embedder.layer_norm_z.bias + embedder.linear.bias)


def test_recycled_coordinates_are_binned_in_float32_when_the_trunk_is_bfloat16(
    config, assembly
) -> None:
    embedder = RecyclingEmbedder(config, assembly).bfloat16()
    set_example_weights(embedder)
    positions = torch.zeros(1, 2, 37, 3)
    positions[0, 1, :, 0] = 20.76  # 20.75 in bfloat16: on the edge, in no bin
    previous = Previous(
        torch.zeros(1, 2, config.c_m).bfloat16(),
        torch.zeros(1, 2, 2, config.c_z).bfloat16(),
        positions,
    )
    _, pair = embedder(torch.zeros(1, 2, dtype=torch.int64), previous)
    assert pair.dtype == torch.bfloat16
    expected = embedder.layer_norm_z.bias + embedder.linear.bias + embedder.linear.weight[:, 14]
    torch.testing.assert_close(pair[0, 0, 1], expected, rtol=0.02, atol=0.02)


def test_relative_positions_are_clipped_and_use_the_residue_index(config, assembly) -> None:
    embedder = InputEmbedder(config, assembly)
    set_example_weights(embedder)
    index = torch.tensor([[5, 6, 200]])
    _, z = embedder(torch.zeros(1, 3, 22), index, torch.zeros(1, 2, 3, 49))
    constant = embedder.linear_tf_z_i.bias + embedder.linear_tf_z_j.bias
    for i, j, column in ((0, 1, 31), (1, 0, 33), (2, 2, 32), (2, 0, 64), (0, 2, 0)):
        expected = constant + embedder.linear_relpos.weight[:, column] + embedder.linear_relpos.bias
        torch.testing.assert_close(z[0, i, j], expected)


def test_target_features_enter_rows_and_columns_of_the_pair(config, assembly) -> None:
    embedder = InputEmbedder(config, assembly)
    set_example_weights(embedder)
    target = torch.zeros(1, 3, 22, requires_grad=True)
    m, z = embedder(target, torch.arange(3)[None], torch.zeros(1, 2, 3, 49))
    jacobian = torch.autograd.grad(z[0, 1, 2].sum(), target, retain_graph=True)[0]
    torch.testing.assert_close(jacobian[0, 1], embedder.linear_tf_z_i.weight.sum(0))
    torch.testing.assert_close(jacobian[0, 2], embedder.linear_tf_z_j.weight.sum(0))
    assert (jacobian[0, 0] == 0).all()
    assert m.shape == (1, 2, 3, config.c_m)


def test_extra_msa_channels(config, assembly, features) -> None:
    embedder = ExtraMsaEmbedder(config.c_e, assembly)
    e = embedder(features)
    weight = embedder.linear.weight
    symbol = features["extra_msa"][1, 2, 3]
    expected = (
        weight[:, symbol]
        + weight[:, 23] * features["extra_has_deletion"][1, 2, 3]
        + weight[:, 24] * features["extra_deletion_value"][1, 2, 3]
    )
    torch.testing.assert_close(e[1, 2, 3], expected)
