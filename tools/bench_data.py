"""Measure how the data stages scale, and how fast files are packed; one JSON record each.

    python -m tools.bench_data scale --chains 600000 --work FOLDER -o data-scale.json
    python -m tools.bench_data pack RAW -c CONFIG --work FOLDER -o data-pack.json

``scale`` writes what index and workflow need for so many made-up chains, but neither atoms nor
alignments: sequences, summaries, lists, names of raw files, and the template hits of one alignment
in a hundred.
``pack`` times the stages on a raw folder. With ``--peer FOLDER``, the ``openfold`` of a checkout of
mlcommons/hpc, it also times the MLPerf reference's preprocessing of the same structures; that needs
pandas, psutil, pympler, tqdm and biopython 1.81 in the environment.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import platform
import re
import resource
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from rich.console import Console
from tools import synthetic_mirror as made_up

from scalefold.checkpoint.provenance import source_commit
from scalefold.chem.residues import RESTYPE_INDEX
from scalefold.config import load_config
from scalefold.config.identity import packing_hash, packing_settings
from scalefold.config.schema import Config
from scalefold.raw.aligned_hit import AlignedHit
from scalefold.raw.chains import read_chains
from scalefold.shards.bucket_count import with_bucket_count
from scalefold.shards.buckets import bucket_of, filled_buckets
from scalefold.shards.codec import encode_chain
from scalefold.shards.hit_codec import encode_hits
from scalefold.shards.pack import pack_alignments, pack_index, pack_structures
from scalefold.shards.records import ChainRecord
from scalefold.shards.schema import FAMILY_VERSIONS, MANIFEST_FILE, shard_file
from scalefold.shards.source_files import SourceFile
from scalefold.shards.summary import (
    AlignmentFacts,
    BucketHead,
    ChainFacts,
    ChainSummary,
    MsaSummary,
    queries_hash,
    write_summary,
)
from scalefold.shards.writer import ShardFacts, write_shard

QUIET: Final = Console(quiet=True)
ROOT: Final = Path(__file__).parents[1]
REPEATS: Final = 3
FULL_HITS: Final = 100
"""One alignment in so many has hits."""
_PEAK: Final = """
import json, re, sys, time
from pathlib import Path
def peak():  # ru_maxrss would be that of the process that started this one
    found = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())
    return round(int(found[1]) / 1024)
"""
_PEAK_OF: Final = """
import resource, subprocess, sys  # a small process: a child's peak is at least its parent's
done = subprocess.run(sys.argv[1:])
print("peak", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(done.returncode)
"""
_OPEN: Final = """
from scalefold.config import load_config
from scalefold.loader.sampler import TrainingSampler
from scalefold.shards.reader import ShardReader
config = load_config([Path(sys.argv[1])])
before = peak()
times = [(time.perf_counter(), time.process_time())]
reader = ShardReader(Path(sys.argv[2]))
times.append((time.perf_counter(), time.process_time()))
sampler = TrainingSampler(reader.index, config.sampling, config.seed)
times.append((time.perf_counter(), time.process_time()))
(start, start_p), (opened, opened_p), (ready, ready_p) = times
print(json.dumps({
    "index_open_seconds": round(opened - start, 3),
    "index_open_processor_seconds": round(opened_p - start_p, 3),
    "sampler_seconds": round(ready - opened, 3),
    "sampler_processor_seconds": round(ready_p - opened_p, 3),
    "imports_megabytes": before,
    "peak_megabytes": peak(),
    "chains": len(reader), "drawn": len(sampler.probabilities)}))
"""
_INDEX: Final = """
from rich.console import Console
from scalefold.config import load_config
from scalefold.shards.pack import pack_index
start, start_p = time.perf_counter(), time.process_time()
config, raw, out = map(Path, sys.argv[1:])
pack_index(load_config([config]), raw, out, Console(quiet=True))
print(json.dumps({
    "seconds": round(time.perf_counter() - start, 1),
    "processor_seconds": round(time.process_time() - start_p, 1),
    "peak_megabytes": peak()}))
"""


def head(benchmark: str) -> dict[str, Any]:
    """Return what every record begins with."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "benchmark": benchmark,
        "command": shlex.join(["python", "-m", "tools.bench_data", *sys.argv[1:]]),
        "commit": source_commit(),
        "python": platform.python_version(),
        "cpu": model,
        "load_average": round(os.getloadavg()[0], 1),  # of a machine that others use, too
    }


def scale(work: Path, num_chains: int) -> dict[str, Any]:
    """Measure index, opening, sampler and dry run for a list of so many chains."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / "chains.tsv").open("w") as table:
        table.writelines(made_up.chain_list(num_chains))
    settings = {
        "run_name": "scale",
        "results": str(work / "results"),
        "data": {
            "chains": str(work / "chains.tsv"),
            "mirrors": {
                "mmcif": ["https://files.wwpdb.org"],
                "alignments": ["s3://openfold"],
            },
        },
    }
    path = work / "scale.yaml"
    path.write_text(yaml.safe_dump(settings))
    dry_run = _dry_run(path)
    out, raw = work / "shards", work / "raw"
    raw.mkdir(exist_ok=True)
    (raw / "fetched-structures-00000.tsv").write_text("")
    out.mkdir(exist_ok=True)
    config = with_bucket_count(load_config([path]), out, read_chains(work / "chains.tsv"))
    if not (out / MANIFEST_FILE).is_file():  # a folder that is complete is measured again
        _write_shards(config, out, num_chains)
    index = _child(_INDEX, path, raw, out)
    opened = _child(_OPEN, path, out)
    counts = json.loads((out / MANIFEST_FILE).read_text())["counts"]
    hits = {name: number for name, number in counts.items() if name.startswith("template hits")}
    return {
        "shape": {"chains": num_chains, "buckets": config.data.buckets, **hits},
        "dry_run": dry_run,
        "index": index,
        "open": opened,
    }


def _child(code: str, *arguments: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", _PEAK + code, *map(str, arguments)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def _dry_run(config: Path) -> dict[str, Any]:
    options = ["--profile", "local", "--configfile", str(config), "-n", "-q", "rules"]
    command = [sys.executable, "-S", "-c", _PEAK_OF, sys.executable, "-m", "snakemake", *options]
    start = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = re.search(r"^total +(\d+)", done.stdout + done.stderr, re.MULTILINE)
    peak = re.search(r"^peak (\d+)", done.stdout, re.MULTILINE)
    return {
        "seconds": round(seconds, 1),
        "processor_seconds": round(used.ru_utime + used.ru_stime, 1),
        "jobs": int(total[1]) if total else None,
        "peak_megabytes": round(int(peak[1]) / 1024) if peak else None,
    }


def _write_shards(config: Config, out: Path, num_chains: int) -> None:
    """Write shards and summaries of all buckets, without atoms and alignments."""
    buckets = config.data.num_buckets
    members: dict[int, list[int]] = defaultdict(list)
    for number in range(num_chains):
        members[bucket_of(made_up.entry_name(number), buckets)].append(number)
    num_sequences = -(-num_chains // made_up.CHAINS_OF_A_SEQUENCE)
    for bucket, numbers in members.items():
        with write_shard(out / shard_file("chain", bucket), "chain") as shard:
            facts = []
            for row, number in enumerate(numbers):
                record, fact = _chain(number, row)
                shard.add_batch(encode_chain(record))
                facts.append(fact)
        files = [_source(f"mmcif/{n}/{n}.cif.gz") for n in map(made_up.entry_name, numbers)]
        chains = ChainSummary(_head(config, "chain", bucket, shard.facts, files), tuple(facts))
        write_summary(out, chains)
        rows: list[AlignmentFacts] = []
        files = []
        with (
            write_shard(out / shard_file("msa", bucket), "msa") as msa,
            write_shard(out / shard_file("hits", bucket), "hits") as hits,
        ):
            for number, fact in zip(numbers, facts, strict=True):
                if number % made_up.CHAINS_OF_A_SEQUENCE == 0:
                    sequence = made_up.sequence_number(number)
                    found = [] if sequence % FULL_HITS else _hits(sequence, num_sequences)
                    hits.add_batch(encode_hits(bytes.fromhex(fact.seq_id), found))
                    rows.append(AlignmentFacts(len(rows), fact.seq_id, fact.origin, fact.chain_key))
                    names = ["pdb70_hits.hhr", *(f"{name}.a3m" for name in made_up.DEPTHS)]
                    files += [_source(f"alignments/{fact.chain_key}/{name}") for name in names]
        write_summary(
            out,
            MsaSummary(
                _head(config, "msa", bucket, msa.facts, files),
                rows=tuple(rows),
                template_hits={},
                structures=queries_hash(chains),
                chains=tuple(sorted(fact.chain_key for fact in facts)),
                hits=hits.facts,
            ),
        )


def _source(path: str) -> SourceFile:
    return SourceFile(path, len(path), hashlib.sha256(path.encode()).hexdigest())


def _head(
    config: Config, family: str, bucket: int, facts: ShardFacts, sources: list[SourceFile]
) -> BucketHead:
    return BucketHead(
        family=family,
        bucket=bucket,
        schema_version=FAMILY_VERSIONS[family],
        config_hash=packing_hash(config),
        settings=packing_settings(config),
        shard=facts,
        rejected=(),
        sources=tuple(sources),
    )


def _chain(number: int, row: int) -> tuple[ChainRecord, ChainFacts]:
    sequence = made_up.sequence_of(made_up.sequence_number(number)).tobytes().decode()
    aatype = np.array([RESTYPE_INDEX[letter] for letter in sequence], np.uint8)
    record = ChainRecord(
        chain_key=f"{made_up.entry_name(number)}_A",
        label_asym_id="A",
        auth_asym_id="A",
        seq_id=hashlib.sha256(sequence.encode()).digest(),
        method="made up",
        origin="experimental",
        aatype=aatype,
        positions=np.zeros((len(aatype), 37, 3), np.float32),
        atom_mask=np.zeros((len(aatype), 37), np.bool_),
        resolution=2.0,
        cluster_id=str(made_up.sequence_number(number) // 3),
    )
    return record, ChainFacts(
        chain_key=record.chain_key,
        row=row,
        seq_id=record.seq_id.hex(),
        origin=record.origin,
        length=len(aatype),
        resolution=2.0,
        release_date=made_up.release_date(number),
        cluster_id=record.cluster_id,
        max_single_residue_fraction=float(np.bincount(aatype).max() / len(aatype)),
    )


def _hits(sequence: int, num_sequences: int) -> list[AlignedHit]:
    query = made_up.sequence_of(sequence).tobytes().decode()
    found: list[AlignedHit] = []
    for chain, first, start, columns in made_up.hits_of(sequence, num_sequences):
        template = made_up.sequence_of(made_up.sequence_number(chain)).tobytes().decode()
        found.append(
            AlignedHit(
                chain_key=f"{made_up.entry_name(chain)}_A",
                probability=99.0,
                sum_probs=500.0 - len(found) / 2,
                query_start=first,
                template_start=start,
                query_aligned=query[first : first + columns],
                template_aligned=template[start : start + columns],
            )
        )
    return found


def pack_rate(raw: Path, configuration: Path, work: Path) -> dict[str, Any]:
    """Time the stages of packing on a raw folder, in one process.

    One more chain takes ``one bucket`` and ``index``.
    """
    loaded = load_config([configuration])
    chains = read_chains(loaded.data.chains)
    config = with_bucket_count(loaded, work, chains)
    buckets = filled_buckets(chains, config.data.num_buckets)
    stages = {"structures": pack_structures, "alignments": pack_alignments}
    seconds = {
        name: _timed(lambda stage=stage: [stage(config, raw, work, b, QUIET) for b in buckets])
        for name, stage in stages.items()
    }
    seconds["one bucket"] = _timed(
        lambda: [stage(config, raw, work, buckets[0], QUIET) for stage in stages.values()]
    )
    seconds["index"] = _timed(lambda: pack_index(config, raw, work, QUIET))
    manifest = json.loads((work / "manifest.json").read_text())
    files = {
        "structures": list(raw.glob("mmcif/**/*.*")),
        "alignments": list(raw.glob("alignments/**/*.a3m")),
        "template hits": list(raw.glob("alignments/**/*.hhr")),
    }
    packed: dict[str, int] = defaultdict(int)
    for facts in manifest["files"]:
        packed[facts["file"].partition("-")[0]] += facts["bytes"]
    return {
        "shape": {
            "chains": len(chains),
            "buckets": len(buckets),
            "alignments": manifest["counts"]["alignments"],
            "raw_bytes": {n: sum(p.stat().st_size for p in paths) for n, paths in files.items()},
            "shard_bytes": dict(packed),
        },
        "processor_seconds": {name: round(value, 3) for name, value in seconds.items()},
        "peak_megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "counts": manifest["counts"],
    }


def peer_rate(peer: Path, raw: Path, work: Path) -> dict[str, Any]:
    """Time the MLPerf reference's preprocessing of the structures in a raw folder."""
    sys.path[:0] = [str(peer), str(peer / "scripts")]
    reference = importlib.import_module("preprocess_pdb_mmcif")
    work.mkdir(parents=True, exist_ok=True)
    folders = sorted({path.parent for path in raw.glob("mmcif/**/*.cif.gz")})

    def preprocess() -> list[Any]:
        return [reference.create_mmcif_dicts(folder, work, force=True) for folder in folders]

    errors = [error for logs in preprocess() for error in logs["error"].dropna()]
    chains = [reference.create_mmcif_chains(work / folder.name, {}) for folder in folders]
    return {
        "chains": sum(map(len, chains)),
        "entries_refused": len(errors),
        "processor_seconds": round(_timed(preprocess), 3),
    }


def _timed(work: Callable[[], object]) -> float:
    """Return processor seconds, the least of some calls: the first imports and fills caches."""
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    for name in ("scale", "pack"):
        kind = kinds.add_parser(name)
        kind.add_argument("--work", type=Path, required=True)
        kind.add_argument("-o", "--out", type=Path, required=True)
    kinds.choices["scale"].add_argument("--chains", type=int, default=600_000)
    kinds.choices["pack"].add_argument("raw", type=Path)
    kinds.choices["pack"].add_argument("-c", "--config", type=Path, required=True)
    kinds.choices["pack"].add_argument("--peer", type=Path)
    given = parser.parse_args()
    record = head(f"data-{given.kind}") | (
        scale(given.work, given.chains)
        if given.kind == "scale"
        else pack_rate(given.raw, given.config, given.work)
    )
    if given.kind == "pack" and given.peer:
        record["mlperf_reference"] = peer_rate(given.peer, given.raw, given.work / "peer")
    given.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
