"""What `test_dap` compares: a pass in float64 and a short training, on a mesh of processes.

Started as ``torchrun -m tests.parity.dap_runs <config> <shards> <out> <degree>``. With one more
word, ``exact``, more than two processes also train in float64, which takes them a minute.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.example import example_features, set_example_weights
from torch import Tensor
from torch.nn.utils import vector_to_parameters
from torch.utils._pytree import tree_leaves

from scalefold.config import Config, load_config, make_config
from scalefold.config.load import merge
from scalefold.engine.activation_checkpointing import training_model
from scalefold.features.contract import Features
from scalefold.features.padding import pad_to_degree
from scalefold.features.pipeline import training_features
from scalefold.features.query import Query
from scalefold.launcher import find_place
from scalefold.loader.loader import TrainingLoader
from scalefold.loader.sampler import TrainingSampler
from scalefold.loader.shared_batches import SharedLoader
from scalefold.loss.total import total_loss
from scalefold.model.alphafold import AlphaFold
from scalefold.model.assembly import Assembly
from scalefold.model.passes import SamplePasses
from scalefold.optim.clipping import clip_scale
from scalefold.optim.optimiser import Adam
from scalefold.parallel import Mesh
from scalefold.parallel.launch import divided, joined
from scalefold.predict.features_ahead import ready_features
from scalefold.predict.predictor import Predictor
from scalefold.shards.reader import ShardReader
from scalefold.train.assemble import assemble
from scalefold.train.step_numbers import Readback

CPU = torch.device("cpu")
DRAW = 7
"""Of a chain with a deep alignment."""
STEPS = 20
CHECKPOINTING = ("none", "selective", "full", "offload")


class _Outputs(SamplePasses[Any]):
    def last(self, features: Any, previous: Any, templates: Any) -> Any:
        return self._model(features, previous, templates)[0]


def whole_pass(config: Config, shards: Path, mesh: Mesh, checkpointing: str) -> dict[str, Any]:
    """Outputs, loss terms and gradients of a sample in float64, dropout on, one recycling pass."""
    model = _model(config, mesh, checkpointing)
    passes = _passes(config, shards, mesh, DRAW)
    made = _Outputs(model, config.model)(passes)
    rows = passes[-1]["msa_mask"][..., None]  # a masked row attends to all residues, padded or not
    shown = made._replace(msa=made.msa * rows, masked_msa_logits=made.masked_msa_logits * rows)
    loss, terms = total_loss(made, passes[-1], config.loss)
    loss.backward()
    outputs, shapes = tree_leaves(_tree(shown)), config.features
    return {
        "outputs": [_real(t.detach(), shapes.max_msa_clusters, shapes.crop_size) for t in outputs],
        "terms": {name: value.detach() for name, value in terms.items()} | {"loss": loss.detach()},
        "gradients": _gradients(model, mesh),
    }


def exact_training(config: Config, shards: Path, mesh: Mesh) -> dict[str, Any]:
    """Losses, norms and weights of `STEPS` optimiser steps in float64, a sample each."""
    model = _model(config, mesh, "none")
    parameters = dict(model.named_parameters())
    weights = torch.cat([p.detach().flatten() for p in parameters.values()])
    vector_to_parameters(weights, model.parameters())  # views of it from now on
    optimiser = Adam(weights, config.optimiser)
    rate = torch.tensor(config.optimiser.learning_rate, dtype=torch.float64)
    losses, norms = [], []
    for step in range(STEPS):
        passes = _passes(config, shards, mesh, step)
        model.zero_grad()
        made = _Outputs(model, config.model)(passes)
        loss, _ = total_loss(made, passes[-1], config.loss)
        loss.backward()
        found = _gradients(model, mesh)
        gradient = torch.cat(
            [found.get(name, torch.zeros_like(p)).flatten() for name, p in parameters.items()]
        )
        norm = gradient.norm()
        gradient *= clip_scale(norm, config.optimiser.clip_norm)
        optimiser.update(weights, gradient, rate, norm.isfinite())
        losses.append(loss.detach())
        norms.append(norm)
    return {"losses": torch.stack(losses), "norms": torch.stack(norms), "weights": weights}


def prediction(config: Config, shards: Path, mesh: Mesh) -> dict[str, Tensor]:
    """A chain of odd length in float64, recycled until it moves little."""
    reader = ShardReader(shards)
    query = Query.of(reader.sample(reader.keys("train")[0]))
    passes = [_double(features) for features in ready_features(query, config, CPU)]
    model = _model(config, mesh, "none").eval()
    settings = {"length_step": 1, "graphs": False, "tolerance_angstrom": 0.01}
    found = Predictor(model, config.model, **settings, ranks=mesh.dap)(passes)
    assert found.pae is not None
    assert found.maps is not None
    return {
        "positions": found.positions,
        "plddt": found.plddt_logits,
        "pae": found.pae,
        "passes": torch.tensor(float(found.num_passes)),
    }


def _model(config: Config, mesh: Mesh, checkpointing: Any) -> AlphaFold:
    model = training_model(config.model, Assembly(axis=mesh.axis), checkpointing).double()
    set_example_weights(model)
    return model


def _passes(config: Config, shards: Path, mesh: Mesh, draw: int) -> list[Features]:
    reader = ShardReader(shards)
    key = TrainingSampler(reader.index, config.sampling, config.seed).key(draw)
    sample = reader.sample(key)
    passes = training_features(sample, config.features, config.seed, draw, range(2), CPU)
    shapes = config.features
    sizes = {"B": 1, "N": shapes.crop_size, "S": 1, "E": 1, "T": shapes.max_templates}
    made_up = example_features(sizes)  # the chain has no templates
    templates = {name: x for name, x in made_up.items() if name.startswith("template")}
    passes = [features | templates for features in passes]
    added = config.model.template.num_rows(config.features.max_templates)
    return [pad_to_degree(_double(features), mesh.axis.size, added) for features in passes]


def _gradients(model: AlphaFold, mesh: Mesh) -> dict[str, Tensor]:
    replicated = {id(p) for part in model.replicated_modules() for p in part.parameters()}
    gradients = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            if mesh.dap.rank and id(parameter) in replicated:
                parameter.grad.zero_()
            gradients[name] = mesh.dap.all_reduce(parameter.grad).wait()
    return gradients


def _tree(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return [_tree(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple):
        return [_tree(part) for part in value]
    return value


def _real(tensor: Tensor, rows: int, residues: int) -> Tensor:
    """Without the padding: `rows` of the MSA and residues, which no other dimension is as long."""
    for dim, size in enumerate(tensor.shape):
        for wanted in (rows, residues):
            if wanted <= size < wanted + 4:
                tensor = tensor.narrow(dim, 0, wanted)
    return tensor


def _double(features: Features) -> Features:
    return {n: t.double() if t.is_floating_point() else t for n, t in features.items()}


def training(config: Config, shards: Path, mesh: Mesh, precision: str) -> dict[str, Any]:
    """Numbers of each step of a short training, and the state at its end."""
    tree = merge(config.model_dump(mode="json"), {"training": {"precision": precision}})
    config = make_config(tree)
    parts = assemble(config, CPU, mesh)
    generator = torch.Generator().manual_seed(3)
    for view in parts.parameters.by_name(parts.parameters.master).values():
        view += 0.05 * torch.randn(view.shape, generator=generator)
    parts.parameters.update_working_copy()
    own = None
    if mesh.dap.rank == 0:
        place = {"rank": mesh.data.rank, "world_size": mesh.data.size}
        own = TrainingLoader(ShardReader(shards), config, CPU, **place)
    loader = SharedLoader(own, mesh.dap, CPU)
    steps = []
    for _ in range(config.training.steps):
        batch = next(loader)
        numbers = Readback(parts.step(batch.samples, config.optimiser.learning_rate)).get()
        steps.append({"means": numbers.means, "norm": numbers.gradient_norm, "keys": batch.draws})
    weights = parts.parameters.by_name(parts.parameters.master)
    return {
        "steps": steps,
        "weights": {name: view.clone() for name, view in weights.items()},
        "average": parts.state.average.average.clone(),
    }


def found(config: Config, shards: Path, mesh: Mesh, *, exact: bool) -> dict[str, Any]:
    """All that is compared; the training in float64 only if it is to be ``exact``."""
    passes = {how: whole_pass(config, shards, mesh, how) for how in CHECKPOINTING}
    scopes = {}
    for scope in ("sample", "global"):
        tree = merge(config.model_dump(mode="json"), {"optimiser": {"clip_scope": scope}})
        scopes[scope] = training(make_config(tree), shards, mesh, "fp32")
    twenty = exact_training(config, shards, mesh) if exact else None
    predicted = prediction(config, shards, mesh)
    return {
        "passes": passes,
        "training": scopes,
        "exact_training": twenty,
        "prediction": predicted,
    }


if __name__ == "__main__":
    config_file, shards_folder, out, wanted, *more = sys.argv[1:]
    torch.set_num_threads(1)
    place = find_place()
    with joined(place, lambda: CPU) as (everybody, _):
        config = load_config([Path(config_file)])
        mesh = divided(everybody, int(wanted), place, config.training.global_batch_size)
        exact = everybody.world.size == 2 or more == ["exact"]
        results = found(config, Path(shards_folder), mesh, exact=exact)
        torch.save(results, f"{out}-{dist.get_rank()}.pt")
