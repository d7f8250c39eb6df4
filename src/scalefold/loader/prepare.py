"""One training sample, from its chain key to the inputs of its features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from scalefold.config.schema import FeaturesConfig
from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.features.pipeline import features_of, raw_training_features
from scalefold.features.raw_features import RawFeatures
from scalefold.features.selection import training_selection
from scalefold.shards.records import Sample


class SampleReader(Protocol):
    """Hands out samples by chain key.

    Where worker processes are used it is pickled to them, and asked by several threads at once.
    """

    def sample(self, key: str) -> Sample:
        """Read one sample."""


class SampleTask(NamedTuple):
    """A sample to prepare: the draw and the passes determine all its random numbers."""

    draw: int
    chain_key: str
    num_passes: int

    def __str__(self) -> str:
        """Name the sample in messages."""
        return f"chain {self.chain_key} (draw {self.draw})"


class SampleError(RuntimeError):
    """A training sample could not be prepared; the message names the chain."""


Prepared = RawFeatures | list[Features]
"""The inputs from which a step makes its features; on a CPU, the features."""


@dataclass(frozen=True, eq=False)
class Preparation:
    """How samples are prepared.

    Parameters
    ----------
    make_features : bool
        Make the features too. For training on a CPU, whose other cores would be idle otherwise; a
        GPU makes them itself, and only those of passes that are used.
    """

    reader: SampleReader
    config: FeaturesConfig
    seed: int
    make_features: bool

    def read(self, task: SampleTask) -> RawFeatures:
        """Read a sample and make all decisions about it: mostly waiting for storage.

        Raises
        ------
        InputError
            The sample cannot be used; names the chain.
        SampleError
            Anything else went wrong; names the chain.
        """
        try:
            sample = self.reader.sample(task.chain_key)
            passes = range(task.num_passes)
            selection = training_selection(sample, self.config, self.seed, task.draw, passes)
            return raw_training_features(sample, selection, self.config)
        except InputError as error:
            raise type(error)(f"{task}: {error}") from error
        except Exception as error:
            raise SampleError(f"{task}: {type(error).__name__}: {error}") from error

    def make(self, task: SampleTask, inputs: RawFeatures) -> Prepared:
        """Make the features, if they are to be made here: mostly computing."""
        if not self.make_features:
            return inputs
        try:
            return features_of(inputs, self.config, task.num_passes)
        except Exception as error:
            raise SampleError(f"{task}: {type(error).__name__}: {error}") from error
