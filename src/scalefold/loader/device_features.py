"""Features of a batch's samples, on the training device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from scalefold.config.schema import FeaturesConfig
from scalefold.features.contract import Features
from scalefold.features.pipeline import features_of
from scalefold.features.raw_features import RawFeatures
from scalefold.loader.prepare import Prepared
from scalefold.loader.tensor_block import TensorBlock


class DeviceFeatures:
    """Makes the features of the passes that are used, on the device.

    On a GPU, copies and transforms are queued on a stream of their own, beside the training step
    that runs meanwhile, and the training stream waits for them on the device. All CUDA calls are
    made by the caller's thread: none can fall into the capture of a graph.
    """

    def __init__(self, config: FeaturesConfig, device: torch.device) -> None:
        self._config, self._device = config, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, blocks: Sequence[TensorBlock], num_passes: int) -> list[list[Features]]:
        """Return each sample's passes, ready for work on the current stream."""
        if self._stream is None:
            return [self._passes(block, num_passes) for block in blocks]
        training = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            samples = [self._passes(block, num_passes) for block in blocks]
        training.wait_stream(self._stream)
        tensors = (t for passes in samples for features in passes for t in features.values())
        for tensor in {id(t): t for t in tensors}.values():
            # Its memory is the side stream's, which must not reuse it before training has.
            tensor.record_stream(training)
        return samples

    def _passes(self, block: TensorBlock, num_passes: int) -> list[Features]:
        prepared: Prepared = block.open(self._device)
        if isinstance(prepared, RawFeatures):
            return features_of(prepared, self._config, num_passes)
        return prepared[:num_passes]
