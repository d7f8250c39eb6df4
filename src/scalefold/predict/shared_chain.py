"""Processes that share each chain they predict: the first leads, and the others follow it.

The first reads, decides and writes, as a single process does. When it uses the model, the others
get its weights and features, and compute their share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scalefold.config.load import make_config
from scalefold.config.schema import Config
from scalefold.errors import ElsewhereError
from scalefold.features.contract import INPUT_FEATURES, Features
from scalefold.parallel import SINGLE, Mesh, Ranks
from scalefold.predict.predictor import Prediction, Predictor, predictor
from scalefold.weights import State


@dataclass(frozen=True)
class _Assemble:
    config: dict[str, Any]
    tolerance_angstrom: float


@dataclass(frozen=True)
class _Load:
    number: int


@dataclass(frozen=True)
class _Predict:
    number: int
    passes: int


@dataclass(frozen=True)
class _Finish:
    failed: bool


class LeadingPredictor:
    """A `Predictor` on the first of the processes that share a chain; see there."""

    def __init__(self, own: Predictor, number: int, mesh: Mesh, device: torch.device) -> None:
        self._own, self._number, self._mesh, self._device = own, number, mesh, device

    def load(self, weights: State) -> None:
        """See `Predictor.load`."""
        self._mesh.dap.broadcast_on_host(_Load(self._number))
        _send(self._mesh.dap, weights, self._device)
        self._own.load(weights)

    def __call__(self, passes: Sequence[Features]) -> Prediction:
        """See `Predictor`.

        Raises
        ------
        RuntimeError
            If this process lacks memory: the others are in the middle of the chain.
        """
        self._mesh.dap.broadcast_on_host(_Predict(self._number, len(passes)))
        for features in passes:
            _send(self._mesh.dap, {name: features[name] for name in INPUT_FEATURES}, self._device)
        try:
            return self._own(passes)
        except torch.OutOfMemoryError as error:
            raise RuntimeError(f"a process that shares a chain lacks memory: {error}") from error


class SharedPredictors:
    """Makes predictors for the processes of a mesh, all of which share each chain.

    Parameters
    ----------
    device : torch.device
        Of this process.
    """

    def __init__(self, device: torch.device, mesh: Mesh = SINGLE) -> None:
        self.device, self._mesh, self._number = device, mesh, 0

    def make(
        self, config: Config, weights: State, tolerance_angstrom: float = 0.0
    ) -> Predictor | LeadingPredictor:
        """Assemble a model on all processes; called on the first, see `predictor`."""
        ranks = self._mesh.dap
        if ranks.size == 1:
            return predictor(config, weights, self.device, tolerance_angstrom)
        ranks.broadcast_on_host(_Assemble(config.model_dump(mode="json"), tolerance_angstrom))
        _send(ranks, weights, self.device)
        own = predictor(config, weights, self.device, tolerance_angstrom, self._mesh)
        self._number += 1
        return LeadingPredictor(own, self._number - 1, self._mesh, self.device)

    @contextlib.contextmanager
    def led(self) -> Iterator[None]:
        """Tell the other processes when the first has ended, and how: a context around its work."""
        try:
            yield
        except BaseException:
            self._mesh.dap.broadcast_on_host(_Finish(failed=True))
            raise
        self._mesh.dap.broadcast_on_host(_Finish(failed=False))

    def follow(self) -> None:
        """Follow the first process, on the others, until it ends.

        Raises
        ------
        ElsewhereError
            If it failed.
        """
        ranks, device, made = self._mesh.dap, self.device, list[Predictor]()
        while True:
            told: _Assemble | _Load | _Predict | _Finish = ranks.broadcast_on_host(None)
            match told:
                case _Assemble(tree, tolerance):
                    config = make_config(tree, source="the first process")
                    weights = _receive(ranks, device)
                    made.append(predictor(config, weights, device, tolerance, self._mesh))
                case _Load(number):
                    made[number].load(_receive(ranks, device))
                case _Predict(number, passes):
                    made[number]([_receive(ranks, device) for _ in range(passes)])
                case _Finish(failed):
                    if failed:
                        raise ElsewhereError("the first process failed")
                    return


def _send(ranks: Ranks, tensors: Mapping[str, Tensor], device: torch.device) -> None:
    specs = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    ranks.broadcast_on_host(specs)
    for tensor in tensors.values():
        ranks.broadcast(tensor.to(device))


def _receive(ranks: Ranks, device: torch.device) -> dict[str, Tensor]:
    specs: dict[str, tuple[torch.Size, torch.dtype]] = ranks.broadcast_on_host(None)
    tensors = {}
    for name, (shape, dtype) in specs.items():
        tensors[name] = torch.empty(shape, dtype=dtype, device=device)
        ranks.broadcast(tensors[name])
    return tensors
