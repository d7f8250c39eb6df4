import inspect
from pathlib import Path

import pytest
import torch
from tests.example import example_features, set_example_weights

from scalefold.features.contract import INPUT_FEATURES, Features
from scalefold.model import AlphaFold, Outputs, Previous
from scalefold.model.structure import StructureModule

KEYS = Path(__file__).with_name("state_dict_keys.txt")
SIZES = {"B": 2, "N": 12, "S": 6, "E": 4, "T": 2}


def one_pass(model: AlphaFold, features: Features, previous: Previous) -> tuple[Outputs, Previous]:
    return model(features, previous, model.embed_templates(features))


def count(config) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in AlphaFold(config).parameters())


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [
        ("mlperf", 93_229_082),
        ("initial_training", 93_229_082),
        ("model_1", 93_229_082),
        # without the template embedding
        ("model_3", 92_899_674),
        # 128 * 64 + 64 for aligned errors
        ("model_2_ptm", 93_229_082 + 8_256),
        ("model_5_ptm", 92_899_674 + 8_256),
    ],
)
def test_parameter_counts(config_of, preset: str, parameters: int) -> None:
    assert count(config_of(preset)) == parameters


def compact(keys) -> list[str]:
    """Keys with the shape, one block of each stack."""
    return [
        f"{name} {'x'.join(map(str, shape))}"
        for name, shape in keys
        if ".blocks." not in name or ".blocks.0." in name
    ]


def test_state_dict_keys_and_shapes_are_openfolds(config_of) -> None:
    with torch.device("meta"):
        model = AlphaFold(config_of("model_1_ptm"))
    state = [(n, tuple(p.shape)) for n, p in model.state_dict().items()]
    assert compact(state) == KEYS.read_text("utf-8").splitlines()
    for stack, blocks in (
        ("evoformer", 48),
        ("extra_msa_stack", 4),
        ("template_embedder.template_pair_stack", 2),
    ):
        own = [n.removeprefix(stack + ".blocks.") for n, _ in state if n.startswith(stack + ".b")]
        first = sorted(n.removeprefix("0.") for n in own if n.startswith("0."))
        for i in range(blocks):
            assert sorted(n.removeprefix(f"{i}.") for n in own if n.startswith(f"{i}.")) == first
        assert len(own) == blocks * len(first)


def test_forwards_have_no_flags(model) -> None:
    for module in model.modules():
        for name, parameter in inspect.signature(module.forward).parameters.items():
            if type(module).__module__.startswith("scalefold"):
                assert parameter.default is inspect.Parameter.empty, f"{type(module)}: {name}"
                assert "bool" not in str(parameter.annotation)


def test_shapes_and_types_of_the_contract(model, config, features, zeros) -> None:
    outputs, after = one_pass(model, features, zeros)
    b, n, s, layers = 2, 12, 6, config.structure.num_layers
    assert isinstance(outputs, Outputs)
    assert outputs.msa.shape == (b, s, n, config.c_m)
    assert outputs.pair.shape == (b, n, n, config.c_z)
    assert outputs.single.shape == (b, n, config.c_s)
    assert outputs.positions.shape == (b, n, 37, 3)
    assert outputs.position_mask.shape == (b, n, 37)
    assert outputs.distogram_logits.shape == (b, n, n, 64)
    assert outputs.masked_msa_logits.shape == (b, s, n, 23)
    assert outputs.plddt_logits.shape == (b, n, 50)
    assert outputs.experimentally_resolved_logits.shape == (b, n, 37)
    assert outputs.pae_logits is None
    structure = outputs.structure
    assert structure.backbone.rotation.shape == (layers, b, n, 3, 3)
    assert structure.sidechain.translation.shape == (layers, b, n, 8, 3)
    assert structure.angles.shape == structure.unnormalized_angles.shape == (layers, b, n, 7, 2)
    assert structure.positions.shape == (layers, b, n, 14, 3)
    assert [x.shape for x in after] == [x.shape for x in zeros]
    assert (outputs.positions[outputs.position_mask == 0] == 0).all()


def test_recycle_is_the_pass_without_the_heads(model, features, zeros) -> None:
    templates = model.embed_templates(features)
    first, after = model(features, zeros, templates)
    for mine, other in zip(model.recycle(features, zeros, templates), after, strict=True):
        assert torch.equal(mine, other)
    with torch.no_grad():
        recycled = model.recycle(features, zeros, templates)
    assert not any(x.requires_grad for x in recycled)
    again, _ = model(features, recycled, templates)
    assert not torch.equal(again.pair, first.pair)


def test_the_model_reads_input_features_only(model, features, zeros) -> None:
    class Watched(dict):
        read: set[str] = set()  # noqa: RUF012

        def __getitem__(self, name):
            self.read.add(name)
            return super().__getitem__(name)

    watched = Watched(features)
    one_pass(model, watched, zeros)
    unread = INPUT_FEATURES.keys() - watched.read
    assert watched.read <= INPUT_FEATURES.keys()
    # unit vectors are zero, so only masks of template atoms matter; atom14 tables serve the losses
    assert unread == {
        "template_all_atom_positions",
        "atom14_atom_exists",
        "residx_atom14_to_atom37",
    }


def test_every_parameter_gets_a_finite_gradient(model, features, config) -> None:
    torch.manual_seed(0)
    previous = Previous.zeros(2, 12, config, like=torch.zeros(1))
    previous = Previous(*(torch.randn_like(x) * 10 for x in previous))
    model.train()
    outputs, _ = one_pass(model, features, previous)
    structure = outputs.structure
    terms = [
        outputs.distogram_logits,
        outputs.masked_msa_logits,
        outputs.plddt_logits,
        outputs.experimentally_resolved_logits,
        structure.positions,
        structure.unnormalized_angles,
    ]
    sum((x * torch.randn_like(x)).mean() for x in terms).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).any(), name


def test_padding_does_not_change_real_residues(model, config) -> None:
    model = model.double()
    padding = 3
    padded = example_features(SIZES, padding=padding)
    padded = {n: x.double() if x.is_floating_point() else x for n, x in padded.items()}
    sizes = {"N": SIZES["N"] - padding, "S": SIZES["S"] - 1, "E": SIZES["E"] - 1, "T": 1}
    short = {}
    for name, value in padded.items():
        for axis, dim in enumerate(INPUT_FEATURES[name].dims):
            if dim in sizes:
                value = value.narrow(axis, 0, sizes[dim])
        short[name] = value
    results = []
    for batch in (padded, short):
        previous = Previous.zeros(2, batch["aatype"].shape[1], config, like=batch["seq_mask"])
        templates = model.embed_templates(batch)
        previous = model.recycle(batch, previous, templates)
        results.append(model(batch, previous, templates)[0])
    n, s = sizes["N"], sizes["S"]
    with_padding, without = results
    for name, cut in (
        ("msa", (slice(None), slice(0, s), slice(0, n))),
        ("pair", (slice(None), slice(0, n), slice(0, n))),
        ("positions", (slice(None), slice(0, n))),
        ("plddt_logits", (slice(None), slice(0, n))),
        ("distogram_logits", (slice(None), slice(0, n), slice(0, n))),
        ("masked_msa_logits", (slice(None), slice(0, s), slice(0, n))),
    ):
        torch.testing.assert_close(
            getattr(with_padding, name)[cut], getattr(without, name), rtol=1e-10, atol=1e-10
        )


def test_what_stands_in_padded_places_does_not_matter(model, zeros) -> None:
    features = example_features(SIZES, padding=3)
    first, _ = one_pass(model, features, zeros)
    other = dict(features)
    for name in ("msa_feat", "extra_has_deletion", "template_pseudo_beta", "target_feat"):
        axis = INPUT_FEATURES[name].dims.index("N")
        other[name] = features[name].clone()
        other[name].narrow(axis, 9, 3).fill_(17.0)
    second, _ = one_pass(model, other, zeros)
    assert torch.equal(first.positions[:, :9], second.positions[:, :9])
    assert torch.equal(first.pair[:, :9, :9], second.pair[:, :9, :9])


@pytest.mark.parametrize("everything", [False, True])
def test_bfloat16_weights_are_finite(config, features, everything: bool) -> None:
    model = AlphaFold(config)
    set_example_weights(model)
    model.bfloat16()
    if not everything:  # as assembly does it
        model.structure_module.float()
        model.aux_heads.float()
    zeros = Previous.zeros(2, 12, config, like=model.evoformer.linear.weight)
    assert zeros.pair.dtype == torch.bfloat16
    assert zeros.positions.dtype == torch.float32
    outputs, after = one_pass(model, features, zeros)
    assert outputs.pair.dtype == torch.bfloat16
    expected = torch.bfloat16 if everything else torch.float32
    assert outputs.structure.positions.dtype == outputs.distogram_logits.dtype == expected
    for value in (*after, outputs.distogram_logits, outputs.masked_msa_logits):
        assert value.isfinite().all()


def test_structure_module_is_the_float32_island(config, features) -> None:
    model = AlphaFold(config)
    set_example_weights(model)
    model.bfloat16()
    model.structure_module.float()
    model.aux_heads.float()
    seen: list[torch.dtype] = []
    for module in model.modules():
        if isinstance(module, StructureModule):
            module.register_forward_pre_hook(
                lambda _, inputs: seen.extend((inputs[0].dtype, inputs[1].dtype))
            )
    one_pass(model, features, Previous.zeros(2, 12, config, like=model.evoformer.linear.weight))
    assert seen == [torch.float32, torch.float32]


def test_samples_of_a_batch_are_independent(model, features, config) -> None:
    model.train()
    whole, _ = one_pass(model, features, Previous.zeros(2, 12, config, torch.zeros(1)))
    for i in range(2):
        one = {n: x[i : i + 1] for n, x in features.items()}
        single, _ = one_pass(model, one, Previous.zeros(1, 12, config, torch.zeros(1)))
        torch.testing.assert_close(
            single.positions, whole.positions[i : i + 1], rtol=1e-4, atol=1e-3
        )
