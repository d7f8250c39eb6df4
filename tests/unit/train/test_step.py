"""The step against the plain way of doing the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from scalefold.config import Config, make_config
from scalefold.config.load import merge
from scalefold.features.contract import Features
from scalefold.loader.loader import TrainingLoader
from scalefold.loss.total import total_loss
from scalefold.model.alphafold import AlphaFold
from scalefold.model.contract import Previous
from scalefold.optim.parameters import flat_norm
from scalefold.shards.reader import ShardReader
from scalefold.train.assemble import assemble

CPU = torch.device("cpu")


def _perturb(model: torch.nn.Module) -> None:
    # Zero-initialised layers would hide what does not flow through them.
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


def _samples(config: Config, shards: Path, recycling: int) -> list[list[Features]]:
    with TrainingLoader(ShardReader(shards), config) as loader:
        return next(b for b in loader if b.recycling == recycling).samples


def _joined(samples: list[list[Features]]) -> list[Features]:
    """Features of each pass, the samples along B."""
    return [
        {name: torch.cat([features[name] for features in of_pass]) for name in of_pass[0]}
        for of_pass in zip(*samples, strict=True)
    ]


def _plain_backward(model: AlphaFold, config: Config, passes: list[Features]) -> torch.Tensor:
    """Loss, and gradients into the model, of a whole batch, without the training code."""
    batch, num_res = passes[0]["aatype"].shape
    previous = Previous.zeros(batch, num_res, config.model, next(model.parameters()))
    templates = model.embed_templates(passes[-1])
    with torch.no_grad():
        for features in passes[:-1]:
            _, previous = model(features, previous, templates)
    outputs, _ = model(passes[-1], previous, templates)
    loss, _ = total_loss(outputs, passes[-1], config.loss)
    model.zero_grad()
    loss.backward()
    return loss.detach()


def _gradient(model: AlphaFold, name: str) -> torch.Tensor:
    parameter = model.get_parameter(name)  # heads of loss terms with weight 0 have no gradient
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


@pytest.mark.parametrize("recycling", [0, 1])
def test_accumulated_samples_equal_the_batch_and_torchs_update(
    micro_tree: dict[str, Any], shards: Path, recycling: int
) -> None:
    """One global-clipping step = batched loss, clip_grad_norm_ and torch.optim.Adam."""
    optimiser = {"clip_scope": "global", "clip_norm": 0.1}
    config = make_config(merge(micro_tree, {"optimiser": optimiser}))
    samples = _samples(config, shards, recycling)
    plain = AlphaFold(config.model)
    _perturb(plain)
    parts = assemble(config, CPU)
    parts.parameters.load(parts.parameters.master, plain.state_dict(), "x")

    loss = _plain_backward(plain, config, _joined(samples))
    norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
    torch.optim.Adam(plain.parameters(), lr=1e-3, eps=1e-6).step()

    numbers = parts.step(samples, 1e-3)
    columns = dict(zip(numbers.names, numbers.per_sample.T))
    assert numbers.finite
    # One sample at a time or two at once: other orders of float32 sums, nothing more.
    torch.testing.assert_close(columns["loss"].mean(), loss.float(), rtol=1e-5, atol=0)
    torch.testing.assert_close(numbers.gradient_norm, norm, rtol=1e-4, atol=0)
    for name, moment in parts.parameters.by_name(parts.state.optimiser.first_moment).items():
        expected = 0.1 * _gradient(plain, name)  # clipped in place
        torch.testing.assert_close(moment, expected, rtol=1e-3, atol=1e-7, msg=name)
    # Where the gradient is tiny, its rounding decides the sign of Adam's first update: compare
    # where it is not.
    for name, view in parts.parameters.by_name(parts.parameters.master).items():
        clear = _gradient(plain, name).abs() > 1e-5
        theirs = plain.get_parameter(name).detach()
        torch.testing.assert_close(view[clear], theirs[clear], rtol=0, atol=2e-5, msg=name)


def test_each_samples_gradient_is_clipped(micro: Config, shards: Path) -> None:
    samples = _samples(micro, shards, 1)
    plain = AlphaFold(micro.model)
    _perturb(plain)
    parts = assemble(micro, CPU)
    parts.parameters.load(parts.parameters.master, plain.state_dict(), "x")
    expected = torch.zeros_like(parts.parameters.master)
    norms = []
    for passes in samples:
        _plain_backward(plain, micro, passes)
        norms.append(torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1))
        for name, view in parts.parameters.by_name(expected).items():
            view += _gradient(plain, name) / 2
    assert min(norms) > 0.1  # both are clipped, or the test shows nothing
    numbers = parts.step(samples, 1e-3)
    columns = dict(zip(numbers.names, numbers.per_sample.T))
    torch.testing.assert_close(columns["grad_norm"], torch.stack(norms), rtol=1e-4, atol=0)
    found = parts.state.optimiser.first_moment / 0.1
    assert flat_norm(found - expected) < 1e-4 * flat_norm(expected)


def test_a_step_that_is_not_finite_leaves_everything_as_it_was(micro: Config, shards: Path) -> None:
    parts = assemble(micro, CPU)
    samples = _samples(micro, shards, 0)
    parts.step(samples, 1e-3)
    before = {name: tensor.clone() for name, tensor in parts.state.tensors().items()}
    nan = torch.full_like(samples[0][-1]["backbone_rigid_tensor"], torch.nan)
    bad = [[*passes[:-1], passes[-1] | {"backbone_rigid_tensor": nan}] for passes in samples]
    numbers = parts.step(bad, 1e-3)
    assert not numbers.finite
    columns = dict(zip(numbers.names, numbers.per_sample.T))
    assert columns["loss/fape"].isnan().all()
    assert columns["loss/distogram"].isfinite().all()
    torch.testing.assert_close(parts.state.tensors(), before, rtol=0, atol=0)
    assert parts.step(samples, 1e-3).finite


def test_the_same_seed_gives_the_same_run(micro: Config, shards: Path) -> None:
    samples = _samples(micro, shards, 1)
    states = []
    for _ in range(2):
        torch.rand(7)  # the state of torch's generator must not matter
        parts = assemble(micro, CPU)
        for _ in range(2):
            parts.step(samples, 1e-3)
        states.append(parts.parameters.master)
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)


def test_bf16_trains_like_fp32_within_its_rounding(
    micro_tree: dict[str, Any], shards: Path
) -> None:
    """Trunk in bfloat16, the rest and all state in float32."""
    losses = {}
    for precision in ("fp32", "bf16"):
        config = make_config(merge(micro_tree, {"training": {"precision": precision}}))
        parts = assemble(config, CPU)
        _perturb_master(parts)
        kinds = {n: p.dtype for n, p in parts.model.named_parameters()}
        narrow = {n for n, kind in kinds.items() if kind == torch.bfloat16}
        wide = {n for n in kinds if n.startswith(("structure_module.", "aux_heads."))}
        assert narrow == (set(kinds) - wide if precision == "bf16" else set())
        numbers = parts.step(_samples(config, shards, 1), 1e-3)
        assert numbers.finite
        assert parts.parameters.master.dtype == torch.float32
        assert parts.state.optimiser.first_moment.dtype == torch.float32
        columns = dict(zip(numbers.names, numbers.per_sample.T))
        losses[precision] = columns["loss"]
    # A few dozen operations in a row, each rounding by 2^-9: some per cent.
    torch.testing.assert_close(losses["bf16"], losses["fp32"], rtol=0.05, atol=0)


def _perturb_master(parts: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    for view in parts.parameters.by_name(parts.parameters.master).values():
        view += 0.1 * torch.randn(view.shape, generator=generator)
    parts.parameters.update_working_copy()


def test_tf32_needs_a_gpu(micro_tree: dict[str, Any]) -> None:
    config = make_config(merge(micro_tree, {"training": {"precision": "tf32"}}))
    with pytest.raises(ValueError, match=r"training\.precision.*tf32"):
        assemble(config, CPU)
