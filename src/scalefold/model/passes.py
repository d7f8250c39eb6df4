"""The passes over a sample: templates are embedded once, then recycling passes, then the last."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from scalefold.config.model import ModelConfig
from scalefold.features.contract import Features
from scalefold.model.alphafold import AlphaFold
from scalefold.model.contract import Previous, Templates

Result = TypeVar("Result")

Settled = Callable[[Tensor], bool]
"""Told the positions after each recycling pass; says whether the next pass is to be the last."""


def never(positions: Tensor) -> bool:
    """Make all passes."""
    return False


class SamplePasses(ABC, Generic[Result]):
    """The passes of a sample; a subclass decides what the last one returns."""

    def __init__(self, model: AlphaFold, config: ModelConfig) -> None:
        self._model, self._config = model, config

    def __call__(self, passes: Sequence[Features], settled: Settled = never) -> Result:
        """Make the passes, at least one; gradients flow through templates and the last pass."""
        templates = self.embed_templates(passes[-1])
        previous = self.before_first(passes[0])
        for features in passes[:-1]:
            previous = self.recycle(features, previous, templates)
            if settled(previous.positions):
                break
        return self.last(passes[-1], previous, templates)

    @property
    def reads_templates(self) -> bool:
        """Whether the model reads templates at all."""
        return self._model.template_embedder is not None

    def embed_templates(self, features: Features) -> Templates | None:
        """The embedding of the templates, which is the same in all passes.

        Dropout is drawn by the key of the features: pass those of the last pass.
        """
        return self._model.embed_templates(features)

    def before_first(self, features: Features) -> Previous:
        """The input of the first pass."""
        batch, num_res = features["aatype"].shape
        like = self._model.input_embedder.linear_msa_m.weight
        return Previous.zeros(batch, num_res, self._config, like)

    @torch.no_grad()
    def recycle(
        self, features: Features, previous: Previous, templates: Templates | None
    ) -> Previous:
        """Make a pass that only makes the next one's input."""
        return self._model.recycle(features, previous, templates)

    @abstractmethod
    def last(self, features: Features, previous: Previous, templates: Templates | None) -> Result:
        """Make the last pass."""
