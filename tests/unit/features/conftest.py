"""A real chain of the demo data, and made-up samples."""

import datetime
from pathlib import Path

import numpy as np
import pytest
import torch

from scalefold.chem.residues import ATOM37_MASK
from scalefold.raw.mmcif import read_entry
from scalefold.shards.records import ChainRecord, MsaRecord, Sample, TemplateHit

MMCIF = Path(__file__).parents[3] / "demo/mirror/wwpdb/pub/pdb/data/structures/divided/mmCIF"


@pytest.fixture(scope="session")
def bpti():
    """5pti_A: 58 residues, no missing atoms."""
    return read_entry(MMCIF / "pt/5pti.cif.gz").chain("5pti_A")


@pytest.fixture(scope="session")
def tensors(bpti):
    """Types, positions and mask of 5pti_A, as transforms of structures take them."""
    return (
        torch.from_numpy(bpti.aatype).long(),
        torch.from_numpy(bpti.positions),
        torch.from_numpy(bpti.atom_mask).float(),
    )


@pytest.fixture(scope="session")
def make_chain():
    def make(key="1abc_A", length=40, seed=0, date=datetime.date(2020, 6, 1), aatype=None):
        generator = np.random.default_rng(seed)
        if aatype is None:
            aatype = generator.integers(0, 20, length)
        aatype = np.asarray(aatype, np.uint8)
        mask = ATOM37_MASK[aatype] > 0
        mask &= generator.random(mask.shape) < 0.95
        positions = generator.normal(scale=10, size=(len(aatype), 37, 3)).astype(np.float32)
        return ChainRecord(
            chain_key=key,
            label_asym_id="A",
            auth_asym_id="A",
            seq_id=bytes(32),
            method="x-ray diffraction",
            origin="experimental",
            aatype=aatype,
            positions=positions * mask[..., None],
            atom_mask=mask,
            resolution=2.0,
            release_date=date,
        )

    return make


@pytest.fixture(scope="session")
def make_msa():
    def make(chain, rows=30, seed=1):
        generator = np.random.default_rng(seed)
        width = len(chain)
        msa = generator.integers(0, 22, (rows, width))
        msa = np.where(generator.random((rows, width)) < 0.4, chain.aatype, msa).astype(np.uint8)
        msa[0] = chain.aatype
        counts = generator.integers(0, 5, rows)
        counts[0] = 0
        columns = [np.sort(generator.choice(width, n, replace=False)) for n in counts]
        del_col = np.concatenate(columns).astype(np.uint16)
        return MsaRecord(
            seq_id=chain.seq_id,
            msa=msa,
            del_ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32),
            del_col=del_col,
            del_val=generator.integers(1, 30, len(del_col)).astype(np.uint16),
            row_source=np.zeros(rows, np.uint8),
            profile=np.stack([(msa == s).mean(0) for s in range(22)], -1).astype(np.float32),
            num_seq_full=rows,
        )

    return make


@pytest.fixture(scope="session")
def make_sample(make_chain, make_msa):
    def make(length=40, rows=30, templates=6, seed=0):
        chain = make_chain(length=length, seed=seed)
        pairs = []
        for i in range(templates):
            key = f"{i + 2}tem_A"
            template = make_chain(key, length + 5, 100 + i, datetime.date(2010, 1, 1))
            q_idx = np.arange(i, length - 4, dtype=np.int32)
            q_idx = q_idx[q_idx % 7 != 3]
            hit = TemplateHit(key, 50.0 - i, 99.0, q_idx, (q_idx + 2).astype(np.int32))
            pairs.append((hit, template))
        return Sample(chain, make_msa(chain, rows, seed + 1), tuple(pairs), "train", 1)

    return make


@pytest.fixture(scope="session")
def dense_deletions():
    def dense(msa):
        matrix = np.zeros(msa.msa.shape, np.int64)
        for row in range(len(msa.msa)):
            for k in range(msa.del_ptr[row], msa.del_ptr[row + 1]):
                matrix[row, msa.del_col[k]] = msa.del_val[k]
        return matrix

    return dense
