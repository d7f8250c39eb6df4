"""Predict whole chains: the recycling loop without gradients.

On a GPU chains are padded to a few lengths, so that kernels are compiled for few shapes. Short
chains are replayed as CUDA graphs, because their launches would take longer than their work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from scalefold.config.schema import Config, ModelConfig
from scalefold.engine.cuda_graphs import CapturedPasses
from scalefold.engine.precision import Precision, narrow_model, set_matrix_products
from scalefold.features.contract import INPUT_FEATURES, Features
from scalefold.model import AlphaFold, Outputs, Previous, Templates
from scalefold.model.assembly import Assembly
from scalefold.model.passes import SamplePasses
from scalefold.ops import select_ops
from scalefold.weights import State

LENGTH_STEP: Final = 64
"""On a GPU chains are padded to multiples of this."""
LONGEST_GRAPHED: Final = 384
"""Longer chains keep a GPU busy without graphs, and their graphs would take much memory."""


class Prediction(NamedTuple):
    """What is scored of a chain, on the CPU.

    Attributes
    ----------
    positions : Tensor, shape (N, 37, 3), float32
        Å.
    position_mask : Tensor, shape (N, 37)
    plddt_logits : Tensor, shape (N, bins), float32
    """

    positions: Tensor
    position_mask: Tensor
    plddt_logits: Tensor


class Predictor:
    """A model that predicts whole chains.

    Parameters
    ----------
    model : AlphaFold
        On its device, in evaluation mode.
    config : ModelConfig
        Of the model.
    length_step : int
        Chains are padded to multiples of this; 1: not at all.
    graphs : bool
        Replay short chains as CUDA graphs. Only those of the last length are kept, so pass chains
        in the order of their length.
    """

    def __init__(
        self, model: AlphaFold, config: ModelConfig, *, length_step: int, graphs: bool
    ) -> None:
        self._passes = _Inference(model, config)
        self._length_step, self._graphs = length_step, graphs
        self._captured: tuple[int, CapturedPasses[Outputs]] | None = None

    @torch.inference_mode()
    def __call__(self, passes: Sequence[Features]) -> Prediction:
        """Run all recycling passes of one chain.

        Parameters
        ----------
        passes : sequence of dict
            Features of each pass, B = 1, on the model's device; at least one.
        """
        length = passes[0]["aatype"].shape[1]
        padded = -(-length // self._length_step) * self._length_step
        inputs = [_padded_inputs(features, padded) for features in passes]
        outputs = self._outputs(inputs, padded)
        return Prediction(
            *(
                value[0, :length].cpu()
                for value in (outputs.positions, outputs.position_mask, outputs.plddt_logits)
            )
        )

    def _outputs(self, passes: list[Features], length: int) -> Outputs:
        if not self._graphs or length > LONGEST_GRAPHED:
            self._captured = None  # a long chain may need the memory
            return self._passes(passes)
        if self._captured is None or self._captured[0] != length:
            self._captured = None
            pool = torch.cuda.graph_pool_handle()
            self._captured = length, CapturedPasses(self._passes, passes[0], pool)
        return self._captured[1](passes)


class _Inference(SamplePasses[Outputs]):
    def last(self, features: Features, previous: Previous, templates: Templates | None) -> Outputs:
        return self._model(features, previous, templates)[0]


def predictor(config: Config, weights: State, device: torch.device) -> Predictor:
    """Assemble a model for inference; on a GPU with kernels and graphs as training is configured.

    Parameters
    ----------
    config : Config
        ``model``, ``evaluation.precision``, ``training.kernels``, ``training.cuda_graphs`` are
        used.
    weights : dict
        Of all parameters of the model.
    device : torch.device
    """
    precision, on_gpu = choose_precision(config, device), device.type == "cuda"
    set_matrix_products(precision, device)
    ops = select_ops(config.training.kernels if on_gpu else "torch", device)
    model = AlphaFold(config.model, Assembly(ops=ops))
    model.load_state_dict(weights)
    model = model.to(device).eval().requires_grad_(False)
    narrow_model(model, precision)
    return Predictor(
        model,
        config.model,
        length_step=LENGTH_STEP if on_gpu else 1,
        graphs=on_gpu and config.training.cuda_graphs is not False,
    )


def choose_precision(config: Config, device: torch.device) -> Precision:
    """Decide on ``evaluation.precision``; auto is training's on a GPU, and float32 on a CPU."""
    if config.evaluation.precision != "auto":
        return config.evaluation.precision
    return config.training.precision if device.type == "cuda" else "fp32"


def _padded_inputs(features: Features, length: int) -> Features:
    """The features that the model reads, padded with masked residues."""
    padded = {}
    for name, spec in INPUT_FEATURES.items():
        tensor = features[name]
        widths: list[int] = []
        for dim, size in zip(spec.dims, tensor.shape, strict=True):
            widths[:0] = (0, length - size if dim == "N" else 0)
        padded[name] = functional.pad(tensor, widths) if any(widths) else tensor
    return padded
