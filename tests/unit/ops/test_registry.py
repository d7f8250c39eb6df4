import dataclasses

import pytest
import torch
from tests.example import example_features

from scalefold.config.model import ModelConfig
from scalefold.model import AlphaFold, Assembly, Previous
from scalefold.model.transition import Transition
from scalefold.ops import TORCH, Ops


def test_an_implementation_is_bound_per_instance() -> None:
    calls = []

    def counted(*arguments: torch.Tensor) -> torch.Tensor:
        calls.append(len(arguments))
        return TORCH.transition(*arguments)

    plain = Transition(4, 2, Assembly())
    other = Transition(4, 2, Assembly(ops=dataclasses.replace(TORCH, transition=counted)))
    other.load_state_dict(plain.state_dict(), strict=True)
    x = torch.randn(2, 4)
    assert torch.equal(plain(x), other(x))
    assert calls == [7]


def test_the_record_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TORCH.attention = None


def test_every_operation_is_used_by_the_model(tiny_model_sections: ModelConfig) -> None:
    used = set()

    def watch(name: str):
        def wrapped(*arguments):
            used.add(name)
            return getattr(TORCH, name)(*arguments)

        return wrapped

    names = [field.name for field in dataclasses.fields(Ops)]
    ops = Ops(**{name: watch(name) for name in names})
    model = AlphaFold(tiny_model_sections, Assembly(ops=ops))
    sizes = {"B": 1, "N": 6, "S": 3, "E": 2, "T": 1}
    like = model.evoformer.linear.weight
    features, zeros = example_features(sizes), Previous.zeros(1, 6, tiny_model_sections, like)
    outputs, _ = model(features, zeros, model.embed_templates(features))
    outputs.positions.sum().backward()  # some operations are of gradients alone
    assert used == set(names)
