"""A small reader that can misbehave, in a module that worker processes can import."""

import sys
import textwrap

import pytest

from scalefold.config import make_config

READER = '''
"""Made-up samples; chains can be told to fail, die or be slow."""

import datetime
import os
import signal
import time

import numpy as np
import pyarrow as pa

from scalefold.chem.residues import ATOM37_MASK
from scalefold.errors import InputError
from scalefold.loader.prepare import Preparation
from scalefold.shards.records import ChainRecord, MsaRecord, Sample


class Unsendable(Preparation):
    def make(self, task, inputs):
        return inputs if task.chain_key == "1aaa_A" else lambda: inputs


class Reader:
    def __init__(self, keys=("1aaa_A", "1bbb_A", "1ccc_A"), behaviour=None, marks=None):
        self.marks = marks
        self.keys = keys
        self.behaviour = behaviour or {}
        self.index = pa.table({
            "chain_key": list(keys),
            "split": ["train"] * len(keys),
            "length": pa.array([20] * len(keys), pa.int32()),
            "resolution": pa.array([2.0] * len(keys), pa.float64()),
            "cluster_id": list(keys),
            "cluster_size": pa.array([1] * len(keys), pa.int32()),
            "origin": pa.array(["experimental"] * len(keys)),
            "max_single_residue_fraction": pa.array([0.2] * len(keys), pa.float64()),
        })

    def sample(self, key):
        action = self.behaviour.get(key)
        for first in (k for k, what in self.behaviour.items() if what == "held once"):
            # Else a worker that starts sooner could reach a later draw of the same chain.
            while key != first and not (self.marks / first).exists():
                time.sleep(0.01)
        if action and action.endswith(" once"):
            try:
                (self.marks / key).touch(exist_ok=False)
                action = action.removesuffix(" once")
            except FileExistsError:
                action = None
        if action == "bad":
            raise InputError("row 7 is damaged")
        if action == "broken":
            raise KeyError("no such column")
        if action == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "held":
            while not (self.marks / "let go").exists():
                time.sleep(0.01)
        if action == "slow":
            time.sleep(0.2)  # a hundred times what another takes
        if action == "hangs":
            time.sleep(3600)  # longer than a test may take
        generator = np.random.default_rng(self.keys.index(key))
        aatype = generator.integers(0, 20, 20 + self.keys.index(key) % 5).astype(np.uint8)
        mask = ATOM37_MASK[aatype] > 0
        positions = generator.normal(size=(*mask.shape, 3)).astype(np.float32) * mask[..., None]
        chain = ChainRecord(key, "A", "A", bytes(32), "x", "experimental", aatype, positions,
                            mask, 2.0, datetime.date(2020, 1, 1), key)
        msa = generator.integers(0, 22, (12, len(aatype))).astype(np.uint8)
        msa[0] = aatype
        profile = np.full((len(aatype), 22), 1 / 22, np.float32)
        record = MsaRecord(bytes(32), msa, np.zeros(13, np.uint32), np.zeros(0, np.uint16),
                           np.zeros(0, np.uint16), np.zeros(12, np.uint8), profile, 12)
        return Sample(chain, record, (), "train", 1)
'''


@pytest.fixture(scope="session")
def reader_type(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reader")
    (folder / "made_up_reader.py").write_text(textwrap.dedent(READER), "utf-8")
    sys.path.insert(0, str(folder))
    from made_up_reader import Reader

    yield Reader
    sys.path.remove(str(folder))


@pytest.fixture
def loader_config():
    def make(**training):
        settings = {"steps": 20, "global_batch_size": 2, "loader_workers": 0, "prefetch": 3}
        return make_config(
            {
                "seed": 11,
                "preset": "tiny",
                "data": {
                    "chains": "chains.tsv",
                    "mirrors": {"mmcif": ["mirror"], "alignments": ["mirror"]},
                },
                "features": {"crop_size": 16, "max_msa_clusters": 4, "max_extra_msa": 6},
                "training": {**settings, **training},
            }
        )

    return make
