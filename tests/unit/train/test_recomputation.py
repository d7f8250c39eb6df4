"""Recomputation changes memory, not results."""

from __future__ import annotations

import torch

from scalefold.config.schema import Config, ModelConfig
from scalefold.model.alphafold import AlphaFold
from scalefold.model.contract import Previous
from scalefold.model.example import example_features, set_example_weights
from scalefold.train.recomputation import recompute_blocks


def gradients(config: ModelConfig, recompute: bool) -> dict[str, torch.Tensor]:
    model = AlphaFold(config).train()
    set_example_weights(model)
    if recompute:
        recompute_blocks(model)
    sizes = {"B": 1, "N": 9, "S": 3, "E": 4, "T": 2}
    features = example_features(sizes)
    like = next(model.parameters())
    outputs, _ = model(features, Previous.zeros(1, 9, config, like))
    (outputs.pair.square().mean() + outputs.positions.square().mean()).backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def test_recomputed_blocks_give_the_same_gradients_with_dropout_on(micro: Config) -> None:
    plain, recomputed = gradients(micro.model, False), gradients(micro.model, True)
    assert plain.keys() == recomputed.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(recomputed[name], gradient, rtol=0, atol=0, msg=name)


def test_recomputation_keeps_the_names_of_parameters(micro: Config) -> None:
    model = AlphaFold(micro.model)
    names = list(model.state_dict())
    recompute_blocks(model)
    assert list(model.state_dict()) == names
