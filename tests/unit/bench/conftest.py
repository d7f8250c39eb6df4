"""The small model of the unit tests, one sample a step."""

from __future__ import annotations

import pytest

from scalefold.bench.variation import varied
from scalefold.config import Config


@pytest.fixture(scope="session")
def config(micro: Config) -> Config:
    return varied(micro, {"training.global_batch_size": 1, "training.compile": "auto"})
