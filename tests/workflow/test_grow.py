"""A list of chains that grows, in the real workflow."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
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
    assert former.planned("--forcerun", "fetch_alignments", "--until", "index")["pack"] == 2

    def refused(*arguments: str) -> str:
        """What is said, and nothing is touched: an index of both versions is impossible."""
        before = hashes(former.run / "shards"), manifest.read_bytes()
        code, output = former.outcome(*arguments, "--until", "index")
        assert code != 0
        assert (hashes(former.run / "shards"), manifest.read_bytes()) == before
        return output

    table = former.folder / "chains.tsv"
    whole = table.read_text()
    table.write_text(whole.replace(ADDED, ""))
    output = refused()
    assert "2crb_A" in output
    assert "--forcerun pack" in output
    assert former.planned("--forcerun", "pack", "--until", "index")["pack"] == 2
    table.write_text(whole)

    assert "--forcerun pack" in refused("--forcerun", "index")
    for name in ("wwpdb/**/1a8o.cif.gz", "openproteinset/**/5pti_A/a3m/*.a3m"):
        (source,) = (former.folder / "mirror").glob(name)
        time = source.stat().st_mtime
        os.utime(source)
        output = refused()
        assert source.name in output
        assert "--forcerun pack" in output
        os.utime(source, (time, time))
    (fetched, *_) = (former.run / "raw").glob("fetched-structures-*.tsv")
    fetched.rename(tmp_path / "away")
    assert f"{fetched.name} is gone" in refused()
    (tmp_path / "away").rename(fetched)
    assert former.planned() == {}

    (lost,) = (former.run / "raw").glob("**/5pti_A/a3m/*.a3m")
    lost.unlink()
    output = refused("--forcerun", "pack")
    assert str(lost.name) in output
    assert "--forcerun fetch_alignments" in output
    former.succeed("--forcerun", "fetch_alignments", "--until", "index")
    assert hashes(former.run / "shards") == hashes(workflow.run / "shards")
