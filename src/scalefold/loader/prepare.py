"""One training sample, from its chain key to its features."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from scalefold.config.schema import FeaturesConfig
from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.features.pipeline import training_features
from scalefold.shards.records import Sample


class SampleReader(Protocol):
    """Hands out samples by chain key. Picklable where worker processes are used."""

    def sample(self, key: str) -> Sample:
        """Read one sample."""


class SampleTask(NamedTuple):
    """A sample to prepare: the draw and the passes fix all that is random about it."""

    draw: int
    chain_key: str
    num_passes: int

    def __str__(self) -> str:
        """Name the sample in messages."""
        return f"chain {self.chain_key} (draw {self.draw})"


class SampleError(RuntimeError):
    """A training sample could not be prepared; the message names the chain."""


def prepare(
    reader: SampleReader, config: FeaturesConfig, seed: int, task: SampleTask
) -> list[Features]:
    """Read a sample and make the features of its passes, on the CPU.

    Raises
    ------
    InputError
        The sample cannot be used; names the chain.
    SampleError
        Anything else went wrong; names the chain.
    """
    try:
        sample = reader.sample(task.chain_key)
        return training_features(sample, config, seed, task.draw, range(task.num_passes))
    except InputError as error:
        raise type(error)(f"{task}: {error}") from error
    except Exception as error:
        raise SampleError(f"{task}: {type(error).__name__}: {error}") from error
