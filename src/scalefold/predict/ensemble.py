"""Several sets of weights as one: models are assembled once, and weights copied into them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import torch

from scalefold.config.schema import Config
from scalefold.features.contract import Features
from scalefold.features.query import Query
from scalefold.predict.features_ahead import ready_features
from scalefold.predict.members import Member
from scalefold.predict.predictor import Prediction, Predictor
from scalefold.predict.shared_chain import LeadingPredictor, SharedPredictors

Key = str
"""Identifies settings: things with the same key are made once."""


class Ensemble:
    """Predicts a chain with each set of weights.

    Sets of weights of one model share its buffers, and with them its captured graphs and compiled
    kernels. They stay in host memory, and are copied when they are needed.
    """

    def __init__(
        self,
        members: Sequence[Member],
        device: torch.device,
        tolerance_angstrom: float,
        predictors: SharedPredictors | None = None,
    ) -> None:
        self._device, self._tolerance_angstrom = device, tolerance_angstrom
        self._make = (predictors or SharedPredictors(device)).make
        self._members = sorted(members, key=lambda member: _model_key(member.config))
        self._predictors: dict[Key, Predictor | LeadingPredictor] = {}
        self._loaded: dict[Key, Member] = {}

    def features(self, query: Query) -> dict[Key, list[Features]]:
        """Features of all passes, for each of the members' settings of features."""
        configs = {_features_key(member.config): member.config for member in self._members}
        return {key: ready_features(query, c, self._device) for key, c in configs.items()}

    def __call__(
        self, features: Mapping[Key, Sequence[Features]]
    ) -> Iterator[tuple[Member, Prediction]]:
        """Yield each member's prediction from what `features` returned."""
        for member in self._members:
            predict = self._with_weights_of(member)
            yield member, predict(features[_features_key(member.config)])

    def _with_weights_of(self, member: Member) -> Predictor | LeadingPredictor:
        key = _model_key(member.config)
        predict = self._predictors.get(key)
        if predict is None:
            weights = member.loaded.weights
            predict = self._make(member.config, weights, self._tolerance_angstrom)
            self._predictors[key] = predict
        elif self._loaded[key] is not member:
            predict.load(member.loaded.weights)
        self._loaded[key] = member
        return predict


def _model_key(config: Config) -> Key:
    """Key of all settings that an assembled model depends on, besides its weights."""
    training = config.training
    how = (training.precision, config.evaluation.precision, training.kernels, training.cuda_graphs)
    return json.dumps([config.model.model_dump(), how, _features_key(config)])


def _features_key(config: Config) -> Key:
    evaluation = config.evaluation
    return json.dumps([config.features.model_dump(), evaluation.recycling, evaluation.seed])
