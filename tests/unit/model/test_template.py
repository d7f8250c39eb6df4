import torch
from tests.example import example_features, set_example_weights
from torch import Tensor

from scalefold.features.contract import Features
from scalefold.model import AlphaFold
from scalefold.model.template import TemplateEmbedder, TemplatePairEmbedder


def test_unit_vectors_are_zero_so_atoms_only_enter_by_pseudo_beta(config, assembly, features):
    embedder = TemplatePairEmbedder(config.template, assembly)
    set_example_weights(embedder)
    t = embedder(features)
    moved = dict(features, template_all_atom_positions=torch.randn(2, 2, 12, 37, 3) * 50)
    assert torch.equal(embedder(moved), t)
    channels = embedder.linear.in_features
    assert channels == 39 + 1 + 2 * 22 + 3 + 1


def test_pair_features_are_masked_by_the_backbone(config, assembly, features) -> None:
    embedder = TemplatePairEmbedder(config.template, assembly)
    set_example_weights(embedder)
    mask = features["template_all_atom_mask"].clone()
    mask[0, 1, 4, 2] = 0  # C of residue 4
    t = embedder(dict(features, template_all_atom_mask=mask))
    torch.testing.assert_close(t[0, 1, 4], embedder.linear.bias.expand(12, -1))
    torch.testing.assert_close(t[0, 1, :, 4], embedder.linear.bias.expand(12, -1))


def test_rows_of_the_msa_are_masked_by_the_psi_torsion(config, assembly, features) -> None:
    embedder = TemplateEmbedder(config, assembly)
    templates = embedder.embed(features, torch.ones(2, 12, 12))
    assert templates.rows.shape == (2, 2, 12, config.c_m)
    assert torch.equal(templates.rows_mask, features["template_torsion_angles_mask"][..., 2])


def test_pointwise_attention_has_no_gate(model: AlphaFold) -> None:
    assert model.template_embedder is not None
    names = [n for n, _ in model.template_embedder.template_pointwise_att.named_parameters()]
    assert names == [f"mha.linear_{x}" for x in ("q.weight", "k.weight", "v.weight")] + [
        "mha.linear_o.weight",
        "mha.linear_o.bias",
    ]


def test_empty_slots_have_no_influence_and_none_at_all_change_nothing(config, assembly) -> None:
    sizes = {"B": 1, "N": 6, "S": 3, "E": 2, "T": 3}
    features = example_features(sizes)
    embedder = TemplateEmbedder(config, assembly)
    set_example_weights(embedder)
    embedder.eval()
    z, pair_mask = torch.randn(1, 6, 6, config.c_z), torch.ones(1, 6, 6)
    features["template_mask"] = torch.tensor([[1.0, 0.0, 1.0]])

    def updated(features: Features) -> Tensor:
        return embedder.update_pair(z, embedder.embed(features, pair_mask))

    expected = updated(features)
    other = dict(features, template_pseudo_beta=features["template_pseudo_beta"].clone())
    other["template_pseudo_beta"][:, 1] += torch.randn(6, 3) * 20
    assert torch.equal(updated(other), expected)
    features["template_mask"] = torch.zeros(1, 3)
    assert torch.equal(updated(features), z)


def test_order_of_templates_does_not_matter(config, assembly, features) -> None:
    embedder = TemplateEmbedder(config, assembly).double()
    set_example_weights(embedder)
    embedder.eval()
    features = {n: x.double() if x.is_floating_point() else x for n, x in features.items()}
    z, pair_mask = torch.randn(2, 12, 12, config.c_z).double(), torch.ones(2, 12, 12).double()
    swapped = {n: x.flip(1) if n.startswith("template") else x for n, x in features.items()}
    ours, reference = (
        embedder.update_pair(z, embedder.embed(f, pair_mask)) for f in (swapped, features)
    )
    torch.testing.assert_close(ours, reference)


def test_each_template_has_its_own_dropout(config, assembly, features) -> None:
    stack = TemplateEmbedder(config, assembly).template_pair_stack
    set_example_weights(stack)
    stack.train()
    t = torch.randn(2, 1, 12, 12, config.template.c_t).expand(-1, 2, -1, -1, -1)
    out = stack(t, torch.ones(2, 12, 12), features["dropout_key"])
    assert not torch.equal(out[:, 0], out[:, 1])
    stack.eval()
    out = stack(t, torch.ones(2, 12, 12), features["dropout_key"])
    torch.testing.assert_close(out[:, 0], out[:, 1])
