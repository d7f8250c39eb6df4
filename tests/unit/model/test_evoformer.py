import pytest
import torch
from tests.example import set_example_weights
from torch import nn

from scalefold.model import AlphaFold
from scalefold.model.dropout import DropoutLayer
from scalefold.model.evoformer import EvoformerBlock, ExtraMsaBlock
from scalefold.model.pair_stack import TemplatePairBlock

LAYERS = (
    "msa_att_row",
    "msa_att_col",
    "msa_transition",
    "outer_product_mean",
    "tri_mul_out",
    "tri_mul_in",
    "tri_att_start",
    "tri_att_end",
    "pair_transition",
)


def inputs(config, sequences: int = 5, residues: int = 7):
    generator = torch.Generator().manual_seed(0)
    m = torch.randn(1, sequences, residues, config.c_m, generator=generator)
    z = torch.randn(1, residues, residues, config.c_z, generator=generator)
    msa_mask, pair_mask = torch.ones(1, sequences, residues), torch.ones(1, residues, residues)
    count = torch.full((1, residues, residues), float(sequences))
    return m, z, msa_mask, msa_mask, pair_mask, count, torch.tensor([3])


def order_of_calls(block: nn.Module, *arguments) -> list[str]:
    calls: list[str] = []
    for name, module in block.named_modules():
        if name.rpartition(".")[2] in LAYERS:
            module.register_forward_hook(
                lambda *_, name=name: calls.append(name.rpartition(".")[2])
            )
    block(*arguments)
    return calls


@pytest.mark.parametrize("kind", [EvoformerBlock, ExtraMsaBlock])
def test_order_of_the_evoformer(kind, config, assembly) -> None:
    block = kind(config.evoformer, config.c_m, config.c_z, assembly)
    assert order_of_calls(block, *inputs(config)) == list(LAYERS)


def test_the_template_block_attends_before_it_multiplies(assembly) -> None:
    block = TemplatePairBlock(8, 8, 4, 2, 2, 0.25, assembly)
    t, mask = torch.randn(1, 5, 5, 8), torch.ones(1, 5, 5)
    assert order_of_calls(block, t, mask, torch.tensor([3])) == [
        "tri_att_start",
        "tri_att_end",
        "tri_mul_out",
        "tri_mul_in",
        "pair_transition",
    ]


def test_dropout_rates_and_shared_dimensions(config) -> None:
    model = AlphaFold(config)
    found = {
        name: (module.rate, module.shared_dim)
        for name, module in model.named_modules()
        if isinstance(module, DropoutLayer)
    }
    blocks = [
        *(f"evoformer.blocks.{i}" for i in range(config.evoformer.num_blocks)),
        *(f"extra_msa_stack.blocks.{i}" for i in range(config.extra_msa.num_blocks)),
    ]
    pair = {
        "dropout_mul_out": (0.25, -3),
        "dropout_mul_in": (0.25, -3),
        "dropout_att_start": (0.25, -3),
        "dropout_att_end": (0.25, -2),
    }
    expected: dict[str, tuple[float, int | None]] = {f"{b}.msa_dropout": (0.15, -3) for b in blocks}
    stacks = [f"{b}.pair_stack" for b in blocks] + [
        f"template_embedder.template_pair_stack.blocks.{i}"
        for i in range(config.template.num_blocks)
    ]
    expected |= {f"{s}.{name}": value for s in stacks for name, value in pair.items()}
    expected |= {
        "structure_module.ipa_dropout": (0.1, None),
        "structure_module.transition.dropout": (0.1, None),
    }
    assert found == expected


def test_layer_numbers_are_unique_and_repeatable(config) -> None:
    def numbers() -> list[int]:
        modules = AlphaFold(config).modules()
        return [m.layer for m in modules if isinstance(m, DropoutLayer)]

    first = numbers()
    assert len(set(first)) == len(first)
    assert numbers() == first


def test_nothing_but_row_attention_and_pair_updates_drops(config, assembly) -> None:
    block = EvoformerBlock(config.evoformer, config.c_m, config.c_z, assembly)
    set_example_weights(block)
    arguments = inputs(config)
    block.train()
    m_train, z_train = block(*arguments)
    again = block(*arguments)
    assert torch.equal(m_train, again[0])
    assert torch.equal(z_train, again[1])
    for dropout in (block.msa_dropout, *block.pair_stack.children()):
        if isinstance(dropout, DropoutLayer):
            dropout.rate = 0.0
    m_off, z_off = block(*arguments)
    block.eval()
    m_eval, z_eval = block(*arguments)
    assert not torch.equal(m_train, m_eval)
    assert torch.equal(m_off, m_eval)
    assert torch.equal(z_off, z_eval)


def test_permuting_sequences_permutes_the_msa_and_leaves_the_pair(config, assembly) -> None:
    block = EvoformerBlock(config.evoformer, config.c_m, config.c_z, assembly).double()
    set_example_weights(block)
    block.eval()
    m, z, *masks, key = inputs(config)
    m, z = m.double(), z.double()
    order = torch.tensor([0, 4, 2, 1, 3])
    m_out, z_out = block(m, z, *masks, key)
    rows, columns, *rest = masks
    m_permuted, z_permuted = block(m[:, order], z, rows[:, order], columns[:, order], *rest, key)
    torch.testing.assert_close(m_permuted, m_out[:, order], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(z_permuted, z_out, rtol=1e-12, atol=1e-12)


def test_a_block_can_be_recomputed(config, assembly) -> None:
    block = EvoformerBlock(config.evoformer, config.c_m, config.c_z, assembly)
    set_example_weights(block)
    block.train()
    m, z, *rest = inputs(config)

    def gradients(call) -> list[torch.Tensor]:
        leaves = m.clone().requires_grad_(), z.clone().requires_grad_()
        out = call(*leaves, *rest)
        return list(torch.autograd.grad(out[0].square().sum() + out[1].square().sum(), leaves))

    def recomputed(*arguments):
        return torch.utils.checkpoint.checkpoint(block, *arguments, use_reentrant=False)

    for plain, again in zip(gradients(block), gradients(recomputed), strict=True):
        assert torch.equal(plain, again)
