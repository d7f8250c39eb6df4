"""The next chain's features are made while the model works on this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from scalefold.config.schema import Config
from scalefold.features.contract import Features
from scalefold.features.pipeline import prediction_features
from scalefold.features.query import Query

Item = TypeVar("Item")
Made = TypeVar("Made")


def made_ahead(
    make: Callable[[Item], Made], items: Iterable[Item]
) -> Iterator[tuple[Item, Future[Made]]]:
    """Yield each item with its result; the next result is computed meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        before: tuple[Item, Future[Made]] | None = None
        for item in items:
            coming = item, pool.submit(make, item)
            if before is not None:
                yield before
            before = coming
        if before is not None:
            yield before


def ready_features(query: Query, config: Config, device: torch.device) -> list[Features]:
    """Features of all passes, ready on the device.

    Parameters
    ----------
    config : Config
        ``features``, ``evaluation.recycling`` and ``evaluation.seed`` are used.
    """
    passes, seed = config.evaluation.recycling + 1, config.evaluation.seed
    if device.type != "cuda":
        return prediction_features(query, config.features, seed, passes, device)
    # On a stream of its own, beside the model's work; finished when it returns.
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        features = prediction_features(query, config.features, seed, passes, device)
    stream.synchronize()
    return features
