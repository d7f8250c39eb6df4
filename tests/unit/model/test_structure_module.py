import math

import pytest
import torch
from tests.example import set_example_weights
from torch.utils._pytree import tree_map

from scalefold.geometry.rigid import Rigid, quaternion_to_rotation
from scalefold.model.assembly import Assembly
from scalefold.model.structure import BackboneUpdate, StructureModule
from scalefold.ops.dropout import mix, residual_dropout


@pytest.fixture
def module(config) -> StructureModule:
    module = StructureModule(config.structure, config.c_s, config.c_z, Assembly()).double()
    set_example_weights(module)
    return module.eval()


@pytest.fixture
def arguments(config):
    generator = torch.Generator().manual_seed(0)
    s = torch.randn(2, 9, config.c_s, generator=generator, dtype=torch.float64)
    z = torch.randn(2, 9, 9, config.c_z, generator=generator, dtype=torch.float64)
    aatype = torch.randint(0, 21, (2, 9), generator=generator)
    return s, z, aatype, torch.ones(2, 9).double(), torch.tensor([1, 2])


def random_rigid() -> Rigid:
    quaternion = torch.tensor([0.3, -0.5, 0.2, 0.7]).double()
    rotation = quaternion_to_rotation(quaternion / quaternion.norm())
    return Rigid(rotation, torch.tensor([3.0, -8.0, 11.0]).double())


def test_global_motion_of_the_start_moves_the_structure_along(
    module, arguments, monkeypatch
) -> None:
    still = module(*arguments)
    motion = random_rigid()
    translation = motion.translation / module.translation_scale
    shape = (2, 9)
    start = Rigid(motion.rotation.expand(*shape, 3, 3), translation.expand(*shape, 3))
    monkeypatch.setattr(Rigid, "identity", staticmethod(lambda shape, like: start))
    moved = module(*arguments)
    torch.testing.assert_close(
        moved.positions,
        # absent atoms stay at zero
        torch.where(still.positions == 0, 0, motion.apply(still.positions)),
        rtol=1e-10,
        atol=1e-10,
    )
    expected = motion.compose(still.backbone)
    torch.testing.assert_close(moved.backbone.rotation, expected.rotation, rtol=0, atol=1e-10)
    torch.testing.assert_close(moved.backbone.translation, expected.translation)
    torch.testing.assert_close(moved.single, still.single, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(moved.angles, still.angles, rtol=1e-10, atol=1e-10)


def test_layers_share_weights(config) -> None:
    sizes = []
    for num_layers in (1, 8):
        section = config.structure.model_copy(update={"num_layers": num_layers})
        module = StructureModule(section, config.c_s, config.c_z, Assembly())
        sizes.append(sum(p.numel() for p in module.parameters()))
    assert sizes[0] == sizes[1]


def test_layers_have_different_dropout_masks(module, arguments) -> None:
    module.train()
    seen: list[torch.Tensor] = []
    for layer_norm in (module.layer_norm_ipa, module.transition.layer_norm):
        layer_norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0] == 0))
    module(*arguments)
    assert len(seen) == 2 * module.num_layers
    masks = torch.stack(seen).flatten(1)
    equal = (masks[:, None] == masks).all(-1)
    assert torch.equal(equal, torch.eye(len(seen), dtype=torch.bool))


def test_dropout_masks_are_those_of_one_layer_at_a_time(module, arguments) -> None:
    module.train()
    dropped: list[torch.Tensor] = []
    module.layer_norm_ipa.register_forward_pre_hook(lambda _, inputs: dropped.append(inputs[0]))
    s, *_, key = arguments
    module(*arguments)
    for layer, x in enumerate(dropped):
        dropout = module.ipa_dropout.draw(mix(key, layer))
        alone = residual_dropout(torch.zeros_like(s), torch.ones_like(s), *dropout)
        assert torch.equal(x == 0, alone == 0)


def test_dropout_acts_on_the_sum_of_residual_and_update(module, arguments) -> None:
    module.train()
    dropped: list[torch.Tensor] = []
    module.layer_norm_ipa.register_forward_pre_hook(lambda _, inputs: dropped.append(inputs[0]))
    module(*arguments)
    share = (dropped[0] == 0).double().mean().item()
    count = dropped[0].numel()
    assert abs(share - 0.1) < 4 * math.sqrt(0.09 / count)


def test_gradients_between_layers_pass_translations_but_not_rotations(module, arguments) -> None:
    entering: list[Rigid] = []
    module.ipa.register_forward_pre_hook(lambda _, inputs: entering.append(inputs[1]))
    structure = module(*arguments)
    assert len(entering) == module.num_layers
    for frames in entering[1:]:
        assert not frames.rotation.requires_grad
        assert frames.translation.requires_grad
    assert structure.backbone.rotation.requires_grad


def test_backbone_update_is_the_quaternion_1_b_c_d(config) -> None:
    update = BackboneUpdate(config.c_s)
    update.linear.bias.data = torch.tensor([0.5, 0.0, 0.0, 1.0, 2.0, 3.0])
    rigid = update(torch.randn(1, 1, config.c_s))
    angle = 2 * math.atan2(0.5, 1.0)  # about x
    expected = torch.tensor(
        [
            [1, 0, 0],
            [0, math.cos(angle), -math.sin(angle)],
            [0, math.sin(angle), math.cos(angle)],
        ]
    )
    torch.testing.assert_close(rigid.rotation[0, 0], expected)
    assert rigid.translation[0, 0].tolist() == [1.0, 2.0, 3.0]


def test_translations_are_in_units_of_ten_angstrom(config, arguments) -> None:
    module = StructureModule(config.structure, config.c_s, config.c_z, Assembly()).double()
    module.bb_update.linear.bias.data[3:] = torch.tensor([0.1, 0.0, 0.0])
    structure = module(*arguments)
    steps = structure.backbone.translation[:, 0, 0, 0]
    expected = torch.arange(1, module.num_layers + 1).double()
    torch.testing.assert_close(steps, expected)


def test_the_angle_net_takes_the_normalised_initial_single(module, arguments) -> None:
    seen: list[torch.Tensor] = []
    module.angle_resnet.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1]))
    module(*arguments)
    expected = module.layer_norm_s(arguments[0])
    assert len(seen) == 1  # for all layers at once
    assert torch.equal(seen[0], expected)


def test_the_last_layer_alone_is_that_of_the_whole(module, arguments) -> None:
    whole, last = module(*arguments), module.last_layer(*arguments)
    assert torch.equal(last.single, whole.single)
    close = {"rtol": 1e-12, "atol": 1e-12}  # the angle net multiplies matrices of another size
    for name in ("backbone", "sidechain", "unnormalized_angles", "angles", "positions"):
        reference = tree_map(lambda of_layers: of_layers[-1:], getattr(whole, name))
        torch.testing.assert_close(getattr(last, name), reference, **close)


def test_masked_residues_have_no_influence(module, arguments) -> None:
    s, z, aatype, mask, key = arguments
    mask = mask.clone()
    mask[:, 7:] = 0
    first = module(s, z, aatype, mask, key)
    s, z = s.clone(), z.clone()
    s[:, 7:], z[:, 7:], z[:, :, 7:] = 3.0, -2.0, 5.0
    second = module(s, z, aatype, mask, key)
    assert torch.equal(first.positions[:, :, :7], second.positions[:, :, :7])
