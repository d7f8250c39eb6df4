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
    assert hashes(workflow.run / "shards") == hashes(finished[0].run / "shards")


def test_shards_of_the_former_version_stay_until_packing_is_asked_for(
    workflow: Any, tmp_path: Path
) -> None:
    """Without Snakemake's record, whose inputs would be those of this version."""
    former = dataclasses.replace(workflow, folder=tmp_path / "copy")
    shutil.copytree(
        workflow.folder,
        former.folder,
        symlinks=True,
        ignore=shutil.ignore_patterns(".snakemake", "hits-*", "templates-*"),
    )
    (former.run / "structures.done").touch()
    manifest = former.run / "shards/manifest.json"
    tree = json.loads(manifest.read_text())
    del tree["sha256"]
    manifest.write_bytes(sealed({**tree, "schema_version": 1}))
    shutil.copystat(workflow.run / "shards/manifest.json", manifest)
    assert former.planned() == {}
    planned = former.planned("--forcerun", "pack", "--until", "index")
    assert planned == {"pack": 2, "index": 1}
    # Refused before anything is touched: to make an index of both versions is impossible.
    before = hashes(former.run / "shards"), manifest.read_bytes()
    table = former.folder / "chains.tsv"
    table.write_text(table.read_text().replace(ADDED, ""))
    code, output = former.outcome("--until", "index")
    assert code != 0
    assert "2crb_A" in output
    assert "--forcerun pack" in output
    assert (hashes(former.run / "shards"), manifest.read_bytes()) == before
    assert former.planned("--forcerun", "pack", "--until", "index")["pack"] == 2
