"""What one sample costs on its way to a step: on a processor, and on the device."""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any

import numpy as np
import torch

from scalefold.bench.trace import gpu_work
from scalefold.config.schema import Config
from scalefold.loader.device_features import DeviceFeatures
from scalefold.loader.prepare import Preparation, SampleTask
from scalefold.loader.sampler import TrainingSampler
from scalefold.loader.tensor_block import TensorBlock
from scalefold.shards.reader import ShardReader


def processor_seconds(config: Config, reader: ShardReader, samples: int = 40) -> dict[str, float]:
    """Processor time of a sample on one core: read, decide, pack; the copy into a pipe excluded."""
    sampler = TrainingSampler(reader.index, config.sampling, config.seed)
    preparation = Preparation(reader, config.features, config.seed, make_features=False)
    passes = config.training.max_recycling + 1
    seconds = []
    for draw in range(samples + 5):
        task = SampleTask(draw, sampler.key(draw), passes)
        started = time.thread_time()
        block = TensorBlock.pack(preparation.make(task, preparation.read(task)))
        seconds.append(time.thread_time() - started)
    last = seconds[5:]
    return {
        "p50": round(statistics.median(last), 5),
        "p99": round(float(np.quantile(last, 0.99)), 5),
        "megabytes": round(block.header.num_bytes / 1e6, 2),
    }


def device_costs(config: Config, reader: ShardReader, device: torch.device) -> list[dict[str, Any]]:
    """What a GPU and its host do for the features of one sample, for one pass and for two."""
    task = SampleTask(0, TrainingSampler(reader.index, config.sampling, config.seed).key(0), 2)
    preparation = Preparation(reader, config.features, config.seed, make_features=False)
    block = TensorBlock.pack(preparation.make(task, preparation.read(task)))
    make = DeviceFeatures(config.features, device)
    rows = []
    for num_passes in (1, 2):
        work = functools.partial(make, [block], num_passes)
        host_seconds = []
        for _ in range(10):
            torch.cuda.synchronize(device)
            started = time.perf_counter()
            work()
            host_seconds.append(time.perf_counter() - started)
        found = gpu_work(work, device)
        rows.append(
            {
                "passes": num_passes,
                "launches": len(found.work),
                "device_seconds": round(found.busy_seconds, 6),
                "host_seconds": round(statistics.median(host_seconds), 6),
            }
        )
    return rows
