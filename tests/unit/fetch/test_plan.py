"""What a fetch would bring, before it brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.fetch.test_run import PDB, fill, run, settings, train

from scalefold.config.mirror_roots import local_folder, web_root
from scalefold.errors import InputError
from scalefold.fetch import plan as fetch_plan
from scalefold.fetch.mirrors import Downloader
from scalefold.fetch.plan import plan_fetch

KEYS = ["1abc_A", "1abc_B", "2abc_A", "3abc_A"]


@pytest.fixture
def downloader() -> Iterator[Downloader]:
    with closing(Downloader(attempts=1, timeout_seconds=300.0)) as running:
        yield running


def test_sums_are_those_of_the_fetch(site, downloader: Downloader, tmp_path: Path) -> None:
    fill(site, *KEYS)
    del site.files["/pdb/3abc_A/a3m/second_hits.a3m"]
    chains = [train(key) for key in KEYS]
    data, out = settings(site.url), tmp_path / "raw"
    plan = plan_fetch(chains, data, out, downloader=downloader)
    assert not out.exists()
    assert {kind for _, kind in site.requests} == {"HEAD"}
    assert {k.name: k.num_files for k in plan.kinds} == {
        "structures": 3, "first_hits.a3m": 4, "second_hits.a3m": 4, "pdb70_hits.hhr": 4,
    }  # fmt: skip
    assert [k.share_had for k in plan.kinds] == [1.0, 1.0, 0.75, 1.0]
    assert not any(k.error_bytes for k in plan.kinds)
    plan.check(out)
    summary = run(chains, data, out, downloader=downloader)
    assert plan.num_bytes == summary.num_bytes
    after = plan_fetch(chains, data, out, downloader=downloader)
    assert after.num_bytes == 0
    assert sum(k.num_there for k in after.kinds) == summary.num_files


def test_a_sample_is_asked_where_files_are_many(
    site, downloader: Downloader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_plan, "SAMPLE", 20)
    chains = [train(f"{number:04}_A") for number in range(200)]
    for number, chain in enumerate(chains):
        site.files[f"{PDB}/{chain.entry_id[-3:-1]}/{chain.entry_id}.cif.gz"] = b"x" * number
    truth = sum(range(200))
    plan = plan_fetch(
        chains, settings(site.url), tmp_path, only="structures", downloader=downloader
    )
    (kind,) = plan.kinds
    assert len(site.requests) == 20
    assert 0 < kind.error_bytes < truth
    assert abs(kind.num_bytes - truth) < 4 * kind.error_bytes


def test_no_room_and_no_answer_are_errors(site, downloader: Downloader, tmp_path: Path) -> None:
    fill(site, "1abc_A")
    plan = plan_fetch([train("1abc_A")], settings(site.url), tmp_path, downloader=downloader)
    with pytest.raises(InputError, match="are free"):
        replace(plan, free_bytes=3).check(tmp_path)
    nobody = settings("http://127.0.0.1:9")
    plan = plan_fetch([train("1abc_A")], nobody, tmp_path, downloader=downloader)
    with pytest.raises(InputError, match="could not be asked"):
        plan.check(tmp_path)


def test_an_odd_answer_is_a_failure_of_its_mirror(
    site, downloader: Downloader, tmp_path: Path
) -> None:
    nobody = settings("http://a..b")  # no name that an address can be looked up for
    plan = plan_fetch([train("1abc_A")], nobody, tmp_path, downloader=downloader)
    with pytest.raises(InputError, match=r"http://a\.\.b"):
        plan.check(tmp_path)
    fill(site, "1abc_A")
    both = settings("http://a..b", site.url)
    assert plan_fetch([train("1abc_A")], both, tmp_path, downloader=downloader).num_bytes > 0


def test_local_mirrors_are_looked_into(demo: Path, tmp_path: Path) -> None:
    data = settings(str(demo / "mirror/wwpdb"))
    plan = plan_fetch([train("5pti_A"), train("9non_A")], data, tmp_path, only="structures")
    (path,) = demo.rglob("5pti.cif.gz")
    assert plan.num_bytes == path.stat().st_size


def test_the_archives_new_layout(site, downloader: Downloader, tmp_path: Path) -> None:
    data = settings(site.url)
    path = "entries/{hash}/{extended}/structures/{extended}.cif.gz"
    mirrors = data.mirrors.model_copy(update={"mmcif_path": path})
    data = data.model_copy(update={"mirrors": mirrors})
    site.files["/entries/ab/pdb_00001abc/structures/pdb_00001abc.cif.gz"] = b"12345"
    plan = plan_fetch([train("1abc_A")], data, tmp_path, only="structures", downloader=downloader)
    assert plan.num_bytes == 5


def test_public_buckets_are_asked_by_https() -> None:
    assert local_folder("s3://openfold") is None
    assert web_root("s3://openfold/pdb/") == "https://openfold.s3.amazonaws.com/pdb"
    snapshot = "https://pdbsnapshots.s3.amazonaws.com/20240101"
    assert web_root("s3://pdbsnapshots/20240101") == snapshot
    assert web_root("s3://my.data") == "https://s3.amazonaws.com/my.data"
    assert web_root("https://files.wwpdb.org/") == "https://files.wwpdb.org"
    with pytest.raises(InputError, match="no host"):
        local_folder("s3:///openfold")
