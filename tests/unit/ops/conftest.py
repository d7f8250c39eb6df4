import pytest

from scalefold.config.load import preset_tree
from scalefold.config.model import ModelConfig


@pytest.fixture
def tiny_model_sections() -> ModelConfig:
    return ModelConfig.model_validate(preset_tree("tiny")["model"])
