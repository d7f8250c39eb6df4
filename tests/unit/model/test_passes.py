"""Templates are embedded once a sample, which changes nothing but how often dropout is drawn."""

from __future__ import annotations

import pytest
import torch
from tests.example import example_features, set_example_weights
from torch import Tensor

from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.model import AlphaFold, Outputs, Previous, Templates
from scalefold.model.passes import SamplePasses

SIZES = {"N": 7, "S": 3, "E": 2, "T": 2}


class Last(SamplePasses[Outputs]):
    def last(self, features: Features, previous: Previous, templates: Templates | None) -> Outputs:
        return self._model(features, previous, templates)[0]


def passes_of(batch: int) -> list[Features]:
    """Three passes that differ in what is drawn for each."""
    first = example_features({"B": batch, **SIZES})
    return [
        first
        | {
            "dropout_key": first["dropout_key"] + number,
            "msa_feat": first["msa_feat"].roll(number, dims=-1),
        }
        for number in range(3)
    ]


def model_of(config) -> AlphaFold:
    model = AlphaFold(config)
    set_example_weights(model)
    return model


def by_hand(model: AlphaFold, config, passes: list[Features], keys: list[Tensor]) -> Outputs:
    """Templates embedded anew in each pass, their dropout drawn by these keys."""
    batch, num_res = passes[0]["aatype"].shape
    previous = Previous.zeros(batch, num_res, config, like=model.evoformer.linear.weight)
    for features, key in zip(passes, keys, strict=True):
        previous = Previous(*(value.detach() for value in previous))
        templates = model.embed_templates(features | {"dropout_key": key})
        outputs, previous = model(features, previous, templates)
    return outputs


def gradients(model: AlphaFold, outputs: Outputs) -> list[Tensor | None]:
    loss = outputs.pair.square().mean() + outputs.positions.square().mean()
    return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    "template", [{}, {"embed_torsion_angles": False}, {"enabled": False}], ids=str
)
def test_without_dropout_the_same_to_the_bit_as_once_a_pass(config_of, batch, template) -> None:
    config = config_of(template=template)
    model, passes = model_of(config).eval(), passes_of(batch)
    ours = Last(model, config)(passes)
    reference = by_hand(model, config, passes, [f["dropout_key"] for f in passes])
    assert not torch.equal(ours.pair, Last(model, config)(passes[-1:]).pair)
    assert torch.equal(ours.positions, reference.positions)
    assert torch.equal(ours.pair, reference.pair)
    for one, other in zip(gradients(model, ours), gradients(model, reference), strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


@pytest.mark.parametrize("count", [1, 3])
def test_dropout_of_templates_is_drawn_by_the_last_passs_key(config, count: int) -> None:
    model, passes = model_of(config).train(), passes_of(1)[-count:]
    ours = Last(model, config)(passes)
    reference = by_hand(model, config, passes, [passes[-1]["dropout_key"]] * count)
    assert torch.equal(ours.pair, reference.pair)
    for one, other in zip(gradients(model, ours), gradients(model, reference), strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)
    if count > 1:
        others = by_hand(model, config, passes, [f["dropout_key"] for f in passes])
        assert not torch.equal(ours.pair, others.pair)


def test_the_stack_runs_once(config) -> None:
    model, runs = model_of(config), []
    assert model.template_embedder is not None
    model.template_embedder.template_pair_stack.register_forward_hook(lambda *_: runs.append(1))
    Last(model, config)(passes_of(1))
    assert len(runs) == 1


def test_a_model_that_reads_templates_is_not_run_without(model, features, zeros) -> None:
    for run in (model, model.recycle):
        with pytest.raises(InputError, match=r"model\.template\.enabled.*embed_templates"):
            run(features, zeros, None)
