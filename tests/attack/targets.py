"""What is attacked: real files by case, and what reads them.

A case is one set of files in a folder of their own. ``use`` reads them all, and raises an
`AssertionError` where damage has passed for sound data.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gemmi
import numpy as np
import torch
from rich.console import Console
from tests.attack.mirror import OddMirror
from tests.unit.conftest import DEMO, MICRO

from scalefold.chains.clusters import read_entity_clusters
from scalefold.chains.sources import read_sources
from scalefold.chains.tables import MLPERF_COLUMNS
from scalefold.chains.targets import read_validation
from scalefold.checkpoint.early_stopping import TargetReached, read_end
from scalefold.checkpoint.lock import sign_of_life
from scalefold.checkpoint.published import steps_made_from
from scalefold.checkpoint.read import latest, load_training, load_weights
from scalefold.checkpoint.write import save
from scalefold.config import Config, config_to_yaml, load_config, load_stages, make_config
from scalefold.config.load import merge
from scalefold.errors import InputError
from scalefold.fetch.run import fetch
from scalefold.model.alphafold import AlphaFold
from scalefold.raw.a3m import parse_a3m, read_files
from scalefold.raw.alphafold_features import features_to_a3m
from scalefold.raw.chains import read_chains
from scalefold.raw.fasta import read_fasta
from scalefold.raw.hhr import read_hhr
from scalefold.raw.mmcif import read_entry
from scalefold.raw.openfold_database import database_indices, unpack_database
from scalefold.raw.outline import read_outline
from scalefold.raw.rejected import read_rejected
from scalefold.report import write_report
from scalefold.report.content import report_content
from scalefold.report.inputs import read_run
from scalefold.search.ffindex import FFIndex, write_ffindex
from scalefold.search.given_alignments import read_given
from scalefold.shards.pack import pack
from scalefold.shards.pack_index import pack_index
from scalefold.shards.reader import ShardReader
from scalefold.shards.verify import verify
from scalefold.train.sessions import read_sessions
from scalefold.weights import import_weights
from scalefold.weights.alphafold import alphafold_entries
from scalefold.weights.matching import State

Files = Mapping[str, bytes]

ENTRIES: Final = ("3jqh", "3zee", "1a8o")
CHAINS: Final = ("1a8o_A", "5pti_A", "3jqh_A")
REPOSITORY: Final = DEMO.parent
QUIET: Final = Console(quiet=True)


@dataclass(frozen=True)
class Target:
    """Something that reads files; its cases are of files that it reads without complaint."""

    name: str
    cases: Mapping[str, Files]
    use: Callable[[Path], object]


def files_below(folder: Path) -> Files:
    """Return the content of all files of a folder, by path below it."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def only_file(folder: Path) -> Path:
    """Return the file of a case of one file."""
    (path,) = folder.iterdir()
    return path


def raw_file(chain_key: str, kind: str) -> bytes:
    """Return a bundled alignment or list of template hits."""
    folder = DEMO / "mirror/openproteinset/pdb" / chain_key
    return next((folder / kind).iterdir()).read_bytes()


def entry_file(entry: str) -> bytes:
    """Return a bundled entry's mmCIF file, gzipped."""
    return next((DEMO / "mirror").rglob(f"{entry}.cif.gz")).read_bytes()


def sequence_of(chain_key: str) -> str:
    """Return the query's letters of a bundled alignment."""
    return "".join(raw_file(chain_key, "a3m").decode().split(">")[1].split("\n")[1:])


def mmcif(scratch: Path) -> Target:
    """Entries as text."""
    cases = {e: {f"{e}.cif": gzip.decompress(entry_file(e))} for e in ENTRIES}
    return Target("mmcif", cases, lambda folder: read_entry(only_file(folder)))


def mmcif_gz(scratch: Path) -> Target:
    """Entries as the archive has them."""
    cases = {e: {f"{e}.cif.gz": entry_file(e)} for e in ENTRIES}
    return Target("mmcif-gz", cases, lambda folder: read_entry(only_file(folder)))


def own(scratch: Path) -> Target:
    """Structures of programs: PDB files, and mmCIF files that state no sequence."""
    structure = gemmi.read_structure(str(next((DEMO / "mirror").rglob("1a8o.cif.gz"))))
    whole = structure.make_pdb_string()
    atoms = "".join(line for line in whole.splitlines(True) if not line.startswith("SEQRES"))
    document = structure.make_mmcif_document()
    for category in ("_entity_poly.", "_entity_poly_seq.", "_chem_comp."):
        document.sole_block().find_mmcif_category(category).erase()
    texts = {"1a8o.pdb": whole, "1a8o.ent": atoms, "1a8o.cif": document.as_string()}
    cases = {path.replace(".", "-"): {path: text.encode()} for path, text in texts.items()}

    def use(folder: Path) -> None:
        entry, outline = read_entry(only_file(folder)), read_outline(only_file(folder))
        assert {c.chain_key for c in entry.chains} <= {c.chain_key for c in outline.chains}

    return Target("own", cases, use)


def sources(scratch: Path) -> Target:
    """What lists of chains are made from."""
    about = {"release_date": "2012-01-01", "resolution": 1.5}
    chain = {"seq": "ACDEF", **about}
    entry = {"chain_ids": ["A", "B"], "seqs": ["ACDEF", "GHIK"], "no_chains": 2, **about}
    alignments = {"db": "0.db", "files": [["uniref90_hits.a3m", 0, 7]]}
    rows = (",".join(MLPERF_COLUMNS), "1abc_A,2012-01-01,1.5,3,ACDEF", "2abc_A,,,-1,GHIK")
    texts = {
        "chains": json.dumps({"1abc_A": chain, "2abc_B": chain}),
        "entries": json.dumps({"1abc": entry, "2abc": entry}),
        "super": json.dumps({"1abc_A": alignments, "1abc_B": alignments}),
        "mlperf": "\n".join(rows) + "\n",
        "seqres": ">1abc_A mol:protein length:5  A\nACDEF\n>2abc_A mol:na length:2  B\nAC\n",
        "identical": "1abc_A 1abc_B 2abc_A\n3abc_A\n",
        "clusters": "1ABC_1 2ABC_1 AF_AFA0_1\n3ABC_1\n",
        "validation": "1abc_A\n7bgg [A]\n",
    }
    readers: Mapping[str, Callable[[Path], object]] = {
        "clusters": read_entity_clusters,
        "validation": lambda path: read_validation(path, ()),
    }

    def use(folder: Path) -> None:
        read = readers.get(folder.name, lambda path: read_sources([path], jobs=1))
        read(only_file(folder))

    return Target("sources", {name: {"x.txt": text.encode()} for name, text in texts.items()}, use)


def converters(scratch: Path) -> Target:
    """Alignments of other codes: OpenFold's database, AlphaFold's features."""
    files = {"files": [["uniref90_hits.a3m", 0, 7], ["pdb70_hits.hhr", 7, 4]], "db": "0.db"}
    database = {
        "super.index": json.dumps({"1abc_A": files, "1abc_B": files}).encode(),
        "0.db": b">q\nMKV\nhits",
    }
    msa = np.array([[0, 1, 2], [20, 21, 3]], np.int32)
    features = {"msa": msa, "deletion_matrix_int": 0 * msa, "num_alignments": np.array([2] * 3)}

    def use(folder: Path) -> None:
        if folder.name == "database":
            list(unpack_database(database_indices(folder), folder.parent / "out"))
        else:
            features_to_a3m(only_file(folder))

    cases = {"database": database, "features": {"features.pkl": pickle.dumps(features)}}
    return Target("converters", cases, use)


def a3m(scratch: Path) -> Target:
    """Alignments."""
    cases = {key: {"x.a3m": raw_file(key, "a3m")} for key in CHAINS}
    return Target("a3m", cases, lambda f: read_files([only_file(f)], sequence_of(f.name)))


def hhr(scratch: Path) -> Target:
    """Template hits."""
    cases = {key: {"x.hhr": raw_file(key, "hhr")} for key in CHAINS}
    return Target("hhr", cases, lambda f: read_hhr(only_file(f), sequence_of(f.name)))


def fasta(scratch: Path) -> Target:
    """Sequences."""
    records = "".join(f">{key}\n{sequence_of(key)}\n" for key in CHAINS)
    cases = {"fasta": {"my.fasta": records.encode()}}
    return Target("fasta", cases, lambda folder: read_fasta(only_file(folder)))


def stockholm(scratch: Path) -> Target:
    """Alignments that are given to a search."""
    rows = "".join(f"{name} {sequence_of('5pti_A')}\n" for name in ("query", "hit/1-58"))
    content = f"# STOCKHOLM 1.0\n\n{rows}#=GC RF {'x' * 58}\n//\n".encode()
    return Target(
        "stockholm",
        {"5pti_A": {"5pti_A.sto": content}},
        lambda folder: parse_a3m(
            read_given(only_file(folder)), sequence_of("5pti_A"), str(only_file(folder))
        ),
    )


def ffindex(scratch: Path) -> Target:
    """A database of alignments."""
    write_ffindex(scratch / "db", ((key, raw_file(key, "a3m")) for key in CHAINS))

    def use(folder: Path) -> None:
        index = FFIndex(folder / "db")
        for name in index:
            index[name]

    return Target("ffindex", {"alignments": files_below(scratch)}, use)


def chains(scratch: Path) -> Target:
    """Lists of chains, and the table of what was set aside."""
    rejected = b"chain_key\tstage\treason\n4bad_A\tfetch\tnot a gzip file\n"
    listed = {"chains.tsv": (DEMO / "chains.tsv").read_bytes(), "rejected.tsv": rejected}

    def use(folder: Path) -> None:
        read_rejected(folder / "rejected.tsv")
        read_chains(folder / "chains.tsv")

    return Target("chains", {"tables": listed}, use)


def config(scratch: Path) -> Target:
    """Configurations, with stages and without."""
    paths = [REPOSITORY / "config.yaml", *sorted((REPOSITORY / "demo").glob("*.yaml"))]
    whole = (path for path in paths if b"\ndata:" in path.read_bytes())  # others are laid over them
    cases = {path.stem: {"config.yaml": path.read_bytes()} for path in whole}
    staged = paths[0].read_text() + "\nstages:\n  one: {}\n  two: {training: {steps: 9}}\n"
    cases["stages"] = {"config.yaml": staged.replace("stages: {}\n", "").encode()}

    def use(folder: Path) -> None:
        for stage in load_stages([only_file(folder)]).values():
            assert make_config(stage.model_dump(mode="json")) == stage
            (folder / "again.yaml").write_text(config_to_yaml(stage), "utf-8")
            assert load_config([folder / "again.yaml"]) == stage

    return Target("config", cases, use)


def mirror(scratch: Path) -> Target:
    """Answers of an HTTP server before a mirror that has the file."""
    odd = OddMirror(scratch / "sound")
    return Target("mirror", odd.cases(), odd.use)


def _settings(folder: Path) -> Config:
    """A run with the files of a folder: its list of chains, its raw files."""
    names = {"chains": str(folder / "chains.tsv"), "buckets": 1, "alignments": ["swissprot_hits"]}
    mirrors = {"mmcif": [str(DEMO / "mirror/wwpdb")]}
    mirrors["alignments"] = [str(DEMO / "mirror/openproteinset")]
    return make_config(merge(MICRO, {"data": names | {"mirrors": mirrors}}))


def _fetched(folder: Path) -> Config:
    """Fetch three chains into ``folder/raw``."""
    folder.mkdir()
    rows = [("chain_key", "split", "cluster_id"), *((key, "train", key) for key in CHAINS)]
    (folder / "chains.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    settings = _settings(folder)
    fetch(read_chains(settings.data.chains), settings.data, folder / "raw")
    return settings


def packing(scratch: Path) -> Target:
    """Raw folders: packing sets aside what is damaged, and its shards are sound."""
    _fetched(scratch / "raw-folder")

    def use(folder: Path) -> None:
        pack(_settings(folder), folder / "raw", folder / "shards", console=QUIET)
        assert not verify(folder / "shards")
        _read_all(folder / "shards")

    fetched = files_below(scratch / "raw-folder")
    by_hand = {path: fetched[path] for path in fetched if not path.startswith("raw/fetched")}
    return Target("packing", {"fetched": fetched, "by hand": by_hand}, use)


def shards(scratch: Path) -> Target:
    """Shard folders: `verify` finds any change."""
    folder = scratch / "packed"
    settings = _fetched(folder)
    pack(settings, folder / "raw", folder / "shards", console=QUIET)

    def use(folder: Path) -> None:
        with contextlib.suppress(InputError):
            _read_all(folder)
        assert verify(folder), "verify finds nothing wrong"
        raise InputError(f"{folder}: found")

    return Target("shards", {"folder": files_below(folder / "shards")}, use)


def index(scratch: Path) -> Target:
    """Summaries and manifest before the index is made: it is the same, or they are refused."""
    packed = scratch / "to-index"
    settings = _fetched(packed)
    pack(settings, packed / "raw", packed / "shards", console=QUIET)
    everything = files_below(packed)
    attacked = {path: everything[path] for path in everything if path.endswith(".json")}
    made = ("shards/index.arrow", "shards/manifest.json")
    expected = {path: (packed / path).read_bytes() for path in made}

    def use(folder: Path) -> None:
        for path in everything.keys() - attacked.keys():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(everything[path])
        pack_index(_settings(folder), folder / "raw", folder / "shards", QUIET)
        for path, content in expected.items():
            assert (folder / path).read_bytes() == content, f"{path}: another one"

    return Target("index", {"folder": attacked}, use)


def _read_all(folder: Path) -> None:
    reader = ShardReader(folder)
    for key in reader.index["chain_key"].to_pylist():
        for hit, chain in reader.sample(key).templates:
            assert len(chain) > hit.t_idx.max(initial=-1)


def _micro_state() -> State:
    torch.manual_seed(0)
    model = AlphaFold(make_config(merge(MICRO, {"data": _NO_DATA})).model)
    return {name: torch.randn_like(value) for name, value in model.state_dict().items()}


_TARGET: Final = {"mode": "async", "target_lddt": 0.5}
_NO_DATA: Final = {"chains": "-", "mirrors": {"mmcif": ["-"], "alignments": ["-"]}}


def _torch_bytes(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def weights(scratch: Path) -> Target:
    """Weight files of other codes: what is read is what was written."""
    model = make_config(merge(MICRO, {"data": _NO_DATA})).model
    state = _micro_state()
    arrays = {}
    for entry in alphafold_entries(model):
        blocks = [state[name].T if state[name].ndim == 2 else state[name] for name in entry.names]
        arrays[entry.key] = np.stack([b.numpy() for b in blocks][: None if entry.stacked else 1])
        if not entry.stacked:
            arrays[entry.key] = arrays[entry.key][0]
    npz = io.BytesIO()
    np.savez(npz, **arrays)
    cases: dict[str, Files] = {
        "openfold": {"weights.pt": _torch_bytes({"ema": {"params": state}})},
        "mlperf": {"weights.pt": _torch_bytes({"alphafold_state_dict": state, "iteration": 7})},
        "alphafold": {"weights.npz": npz.getvalue()},
    }

    def use(folder: Path) -> None:
        found = import_weights(only_file(folder), folder.name, model)
        _assert_same(found, state)

    return Target("weights", cases, use)


def _assert_same(found: object, expected: object) -> None:
    """Compare trees of tensors and numbers, to the last bit."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor)
        assert torch.equal(found, expected), "damaged numbers are taken"
    elif isinstance(expected, dict):
        assert isinstance(found, dict)
        assert list(found) == list(expected)
        for key in expected:
            _assert_same(found[key], expected[key])
    else:
        assert found == expected


def checkpoint(scratch: Path) -> Target:
    """A training's folder: what is read of it is what was written."""
    state, training = _micro_state(), {"optimiser": {"updates": 2}, "random": torch.arange(5)}
    settings = make_config(merge(MICRO, {"data": _NO_DATA, "evaluation": _TARGET}))
    description: dict[str, Any] = {
        "config": settings.model_dump(mode="json"),
        "config_hash": "0" * 12,
        "data_manifest_sha256": "0" * 64,
        "scalefold_version": "0.1.0",
        "commit": None,
        "initial_weights_sha256": None,
    }
    small = dict(list(state.items())[:9])
    written = save(
        scratch / "training",
        step=2,
        weights=small,
        averaged=small,
        training=training,
        description=description,
    )
    TargetReached(2, "validation", 0.7, "0" * 64).write(written.parent)
    start = {"event": "start", "step": 0, "time": 1.0, "processes": 1}
    (written.parent / "sessions.jsonl").write_text(json.dumps(start) + "\n")
    (written.parent / "lock").mkdir()
    (written.parent / "lock/1").write_text("process 1 on here, since now\nthere name\n123 \n")

    def use(folder: Path) -> None:
        sign_of_life(folder)
        read_sessions(folder, [])
        read_end(folder, settings.evaluation, "0" * 64)
        steps_made_from(folder, "0" * 64, None)
        found = latest(folder)
        assert found is not None
        for which in ("weights", "averaged"):
            _assert_same(load_weights(found, which), small)
        _assert_same(load_training(found), training)

    return Target("checkpoint", {"training": files_below(written.parent)}, use)


def _run_files() -> Files:
    run = files_below(REPOSITORY / "tests/data/a3f069b/run")
    head = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time\n"
    row = "163.2\t0:02:43\t812.5\t1\t1\t1\t0\t0\t98\t160\n"
    ladder = {"benchmark": "ladder", **_WHERE, "rungs": [_RUNG]}
    read = {path: content for path, content in run.items() if not path.endswith((".pt", ".arrow"))}
    more = {"benchmarks/train.tsv": head + row, "ladder.json": json.dumps(ladder)}
    return read | {path: text.encode() for path, text in more.items()}


_WHERE: Final = {"device": "Some GPU", "torch": "2.11", "commit": None}
_RUNG: Final = {
    "rung": "baseline",
    "title": "plain PyTorch",
    "step_seconds_by_recycling": [1.5, 2.5],
    "mean_step_seconds": 2.0,
    "launches_by_recycling": [40000, 50000],
    "gpu_busy_seconds_by_recycling": [1.4, 2.4],
    "peak_memory_gib": 20.25,
    "flop_utilisation": 0.05,
}


def report(scratch: Path) -> Target:
    """A run's folder: all numbers of the report, which says what is left out."""

    def use(folder: Path) -> None:
        content = report_content(folder.name, read_run(folder, None, folder / "shards"))
        json.dumps(content, allow_nan=False)

    return Target("report", {"run": _run_files()}, use)


def report_page(scratch: Path) -> Target:
    """A run's folder: the whole report, with its figures, which take a hundred times as long."""
    return Target("report-page", {"run": _run_files()}, write_report)


TARGETS: Final[Mapping[str, Callable[[Path], Target]]] = {
    "mmcif": mmcif,
    "mmcif-gz": mmcif_gz,
    "own": own,
    "sources": sources,
    "converters": converters,
    "a3m": a3m,
    "hhr": hhr,
    "fasta": fasta,
    "stockholm": stockholm,
    "ffindex": ffindex,
    "chains": chains,
    "config": config,
    "mirror": mirror,
    "packing": packing,
    "shards": shards,
    "index": index,
    "weights": weights,
    "checkpoint": checkpoint,
    "report": report,
    "report-page": report_page,
}
"""How to prepare each target; the folder is for files that it needs all the time."""
