from collections.abc import Callable

import pytest
import torch
from tests.example import example_features, set_example_weights

from scalefold.config.load import merge, preset_tree
from scalefold.config.model import ModelConfig
from scalefold.features.contract import Features
from scalefold.model import AlphaFold, Assembly, Previous

SIZES = {"B": 2, "N": 12, "S": 6, "E": 4, "T": 2}
ConfigOf = Callable[..., ModelConfig]


@pytest.fixture
def config_of() -> ConfigOf:
    """The model section of a preset, with overrides."""

    def make(preset: str = "tiny", **overrides) -> ModelConfig:
        return ModelConfig.model_validate(merge(preset_tree(preset).get("model", {}), overrides))

    return make


@pytest.fixture
def config(config_of: ConfigOf) -> ModelConfig:
    return config_of()


@pytest.fixture
def assembly() -> Assembly:
    return Assembly()


@pytest.fixture
def features() -> Features:
    return example_features(SIZES)


@pytest.fixture
def zeros(config: ModelConfig) -> Previous:
    return Previous.zeros(SIZES["B"], SIZES["N"], config, like=torch.zeros(1))


@pytest.fixture
def model(config: ModelConfig) -> AlphaFold:
    """A tiny model, no weight zero, dropout off."""
    model = AlphaFold(config)
    set_example_weights(model)
    return model.eval()
