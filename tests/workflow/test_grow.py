"""A list of chains that grows, in the real workflow."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalefold.shards.sealed_json import sealed

HEADER = "chain_key\tsplit\tcluster_id\n"
ADDED = "2crb_A\ttemplate\t2crb_A\n"


def hashes(folder: Path) -> dict[str, str]:
    """Of all but the reasons of rejected chains, which name the mirror's folder."""
    paths = [*folder.glob("*.arrow"), *folder.glob("*-*.json")]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_a_new_chain_packs_its_bucket_and_the_index(
    new_workflow: Callable[..., Any], finished: tuple[Any, str]
) -> None:
    workflow = new_workflow("local", {})
    table = workflow.folder / "chains.tsv"
    whole = table.read_text()
    assert ADDED in whole
    table.write_text(whole.replace(ADDED, ""))
    workflow.succeed("--until", "index")
    table.write_text(whole)
    planned = workflow.planned("--until", "index")
    assert planned == {
        "fetch_structures": 1,
        "structures": 1,
        "fetch_alignments": 1,
        "pack": 1,
        "index": 1,
    }
    workflow.succeed("--until", "index")
    assert workflow.planned("--until", "index") == {}
    # As from scratch, to the last bit.
    packed = hashes(workflow.run / "shards")
    assert packed == hashes(finished[0].run / "shards")
    # Another split is the index's alone.
    (workflow.folder / "splits.tsv").write_text(HEADER + "5pti_A\tvalidation\t5pti_A\n")
    splits = ("--config", "data={splits: splits.tsv}", "--until", "index")
    assert workflow.planned(*splits) == {"index": 1}
    workflow.succeed(*splits)
    assert workflow.planned(*splits) == {}
    changed = {name for name, sha in hashes(workflow.run / "shards").items() if sha != packed[name]}
    assert "index.arrow" in changed
    assert all(name.startswith(("index", "templates")) for name in changed)


def test_shards_of_the_former_version_are_refused_until_they_are_packed_again(
    workflow: Any, tmp_path: Path
) -> None:
    former = dataclasses.replace(workflow, folder=tmp_path / "copy")
    shutil.copytree(
        workflow.folder,
        former.folder,
        symlinks=True,
        ignore=shutil.ignore_patterns(".snakemake", "hits-*", "templates-*"),
    )
    manifest = former.run / "shards/manifest.json"
    tree = json.loads(manifest.read_text())
    del tree["sha256"]
    manifest.write_bytes(sealed({**tree, "schema_version": 1}))
    shutil.copystat(workflow.run / "shards/manifest.json", manifest)
    before = hashes(former.run / "shards"), manifest.read_bytes()
    for arguments in ((), ("--dry-run",), ("--forcerun", "pack"), ("--until", "train")):
        code, output = former.outcome(*arguments)
        assert code != 0
        (said,) = [line for line in output.splitlines() if "schema version 1" in line]
        assert "--forcerun fetch_alignments" in said
    assert (hashes(former.run / "shards"), manifest.read_bytes()) == before
    former.succeed("--lint")

    again = ("--forcerun", "fetch_alignments", "--until", "index")
    assert former.planned(*again) == {"fetch_alignments": 2, "pack": 2, "index": 1}
    # Packing that fails midway leaves shards of both versions, and the same command packs all.
    former.succeed(*again[:2], "--until", "pack")
    next((former.run / "shards").glob("msa-*.arrow")).unlink()
    assert "schema version 1" in former.outcome()[1]
    former.succeed(*again)
    assert hashes(former.run / "shards") == hashes(workflow.run / "shards")
    assert former.planned("--until", "index") == {}
