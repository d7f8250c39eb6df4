"""Sequences without an alignment are searched, if the configuration says so."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from scalefold.shards.reader import ShardReader


def test_only_sequences_without_an_alignment_are_searched(
    new_workflow: Callable[..., Any],
) -> None:
    workflow = new_workflow("local", {"search": {"query_alone": True, "jobs": 2}})
    mirror = workflow.folder / "mirror/openproteinset/pdb"
    shutil.rmtree(mirror / "1lcd_A")
    planned = workflow.planned("--until", "index")
    assert {name: planned[name] for name in ("unaligned", "search")} == {
        "unaligned": 1,
        "search": 2,
    }
    workflow.succeed("--until", "index")
    reader = ShardReader(workflow.run / "shards")
    assert len(reader.msa("1lcd_A").msa) == 1
    assert len(reader.msa("5pti_A").msa) > 1
    assert (workflow.run / "raw/unaligned.fasta").read_text().count(">") == 1
    assert workflow.planned("--until", "index") == {}

    with (workflow.folder / "chains.tsv").open("a") as table:
        table.write("1k1a_A\ttemplate\t\n")
    assert workflow.planned("--until", "index") == {
        "fetch_structures": 1,
        "structures": 1,
        "all_structures": 1,
        "fetch_alignments": 1,
        "unaligned": 1,
        "search": 2,
        "searched": 1,
        "pack": 1,
        "index": 1,
    }


def test_without_a_section_nothing_is_searched(new_workflow: Callable[..., Any]) -> None:
    planned = new_workflow("local", {}).planned("--until", "index")
    assert planned.keys().isdisjoint({"unaligned", "search", "searched"})
