"""All choices of a run, made once, in order: precision, kernels, parallelism, model, optimiser."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scalefold.checkpoint.initial_weights import read_initial_weights
from scalefold.checkpoint.state import TrainingState
from scalefold.config.schema import Config
from scalefold.engine.activation_checkpointing import ActivationCheckpointing, training_model
from scalefold.engine.compilation import choose_compilation
from scalefold.engine.cuda_graphs import use_graphs
from scalefold.engine.memory import choose_checkpointing, least_free_bytes
from scalefold.engine.precision import narrow_parameters, set_determinism, set_matrix_products
from scalefold.errors import InputError
from scalefold.model.alphafold import AlphaFold
from scalefold.model.assembly import Assembly
from scalefold.ops import select_ops
from scalefold.ops.kernels import select_gather
from scalefold.optim.averaging import WeightAverage
from scalefold.optim.clipping import ClippedMean
from scalefold.optim.gather import TorchGather
from scalefold.optim.optimiser import Adam
from scalefold.optim.parameters import FlatParameters
from scalefold.optim.trainable import freeze_others
from scalefold.parallel import ALONE, SINGLE, Mesh, Ranks
from scalefold.train.sample import (
    GraphedSampleGradient,
    SampleGradient,
    loss_and_scores,
    padded_samples,
)
from scalefold.train.step import TrainingStep


@dataclass(frozen=True, eq=False)
class TrainingParts:
    """What `assemble` built.

    Attributes
    ----------
    model : AlphaFold
        Its parameters are views of those of ``parameters``.
    state : TrainingState
        What a step updates: the parameters, their average and the optimiser's moments.
    checkpointing : ActivationCheckpointing
        What ``training.recomputation`` came to.
    """

    model: AlphaFold
    parameters: FlatParameters
    state: TrainingState
    step: TrainingStep
    checkpointing: ActivationCheckpointing


def assemble(config: Config, device: torch.device, mesh: Mesh = SINGLE) -> TrainingParts:
    """Build what a training run needs, in its initial state.

    Parameters
    ----------
    mesh : Mesh
        How the work is divided among processes.

    Raises
    ------
    InputError
        If the precision is not possible on the device, ``training.initial_weights`` do not fit,
        ``training.trainable`` names what the model does not have, or the ranks cannot divide the
        optimiser's state.
    """
    # 1. Settings of the process: precision of float32 matrix products, determinism. Ranks that
    # share a sample agree on their memory before anything can fail on one of them.
    precision = config.training.precision
    free = least_free_bytes(device, mesh.dap)
    set_matrix_products(precision, device)
    set_determinism(config.training.deterministic)

    # 2. Operations, what of their results is kept for backward, what is compiled, and the
    # parallelism that the model sees: the ranks that share a sample. All ranks have the same
    # gradient, so all can divide the optimiser's state.
    ops = select_ops(config.training.kernels, device)
    owners = mesh.world if config.parallel.shard_optimiser else ALONE
    checkpointing = choose_checkpointing(config, ops, free, mesh.axis.size, owners.size)
    compiled = choose_compilation(config.training.compile, device)
    assembly = Assembly(ops=ops, axis=mesh.axis, compiled=compiled)

    # 3. The model. Initialised on the CPU from the run's seed: the same weights on every device.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = training_model(config.model, assembly, checkpointing)
    initial = read_initial_weights(config)
    if initial is not None:
        model.load_state_dict(initial)
    model = model.to(device)
    freeze_others(model, config.training.trainable)

    # 4. Parameters into flat float32 master buffers; the trunk's into a bfloat16 working copy.
    gather = select_gather(config.training.kernels, device) or TorchGather
    parameters = FlatParameters(model, narrow_parameters(precision), gather=gather)

    # 5. Optimiser and weight averaging, over the master buffers; each rank has all of their state,
    # or a part, on the device or on the host.
    optimiser = Adam(parameters.master, config.optimiser, compiled)
    average = WeightAverage(parameters.master, config.optimiser)
    _check_divisible(parameters, owners)
    state = TrainingState(parameters, optimiser, average, owners, checkpointing == "offload")
    state.shard()

    # 6. The mean gradient of the ranks: on its way while backward runs, or after a replayed graph.
    graphs = use_graphs(config.training.cuda_graphs, device)
    replicated = model.replicated_modules()
    mean = ClippedMean(parameters, config.optimiser, mesh, replicated, overlap=not graphs)

    # 7. A sample's passes, launched kernel by kernel or captured as CUDA graphs.
    backward = parameters.backward_with_hooks if mean.overlaps else parameters.backward
    plain = SampleGradient(model, backward, config, compiled(loss_and_scores))
    gradient = GraphedSampleGradient(plain) if graphs else plain
    rows = config.model.template.num_rows(config.features.max_templates)
    padded = padded_samples(gradient, mesh.axis.size, rows)

    # 8. The step that ties them together.
    step = TrainingStep(padded, mean, state, mesh)
    return TrainingParts(model, parameters, state, step, checkpointing)


def _check_divisible(parameters: FlatParameters, owners: Ranks) -> None:
    if parameters.master.numel() % owners.size:
        raise InputError(
            "parallel.shard_optimiser is on, but the optimiser's state cannot be divided evenly "
            f"among {owners.size} processes: set it to false, or start a power of two, such as 8"
        )
