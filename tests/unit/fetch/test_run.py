from __future__ import annotations

import csv
import gzip
import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from scalefold.config.data import DataConfig
from scalefold.errors import InputError
from scalefold.fetch.fetched import update_fetched
from scalefold.fetch.mirrors import Downloader, FetchedFile
from scalefold.fetch.on_mirrors import absent_files, local_sources
from scalefold.fetch.run import fetch
from scalefold.fetch.shared_alignments import SharedAlignments
from scalefold.fetch.summary import FetchSummary
from scalefold.io import case_collisions as case_collisions
from scalefold.io.case_collisions import check_case_collisions
from scalefold.raw.chains import ChainRow, read_chains
from scalefold.raw.rejected import Rejected, read_rejected, write_rejected

CIF = gzip.compress(b"data_x\n")
PDB = "/pub/pdb/data/structures/divided/mmCIF"


@pytest.fixture
def downloader() -> Iterator[Downloader]:
    with closing(Downloader(attempts=2, backoff_seconds=0.001, timeout_seconds=300.0)) as running:
        yield running


def settings(*roots: str, **changes: object) -> DataConfig:
    values: dict[str, object] = {
        "chains": Path("chains.tsv"),
        "mirrors": {"mmcif": list(roots), "alignments": list(roots)},
        "alignments": ["first_hits", "second_hits"],
    }
    return DataConfig.model_validate(values | changes)


def run(chains: list[ChainRow], data: DataConfig, out: Path, **keys: object) -> FetchSummary:
    return fetch(chains, data, out, **keys)


def fetched_table(path: Path) -> dict[str, dict[str, str]]:
    with path.open() as file:
        return {row["path"]: row for row in csv.DictReader(file, delimiter="\t")}


def train(chain_key: str) -> ChainRow:
    return ChainRow(chain_key, "train", None)


def fill(site, *chain_keys: str) -> None:
    for key in chain_keys:
        entry = key.partition("_")[0]
        site.files[f"{PDB}/{entry[-3:-1]}/{entry}.cif.gz"] = CIF
        site.files[f"/pdb/{key}/a3m/first_hits.a3m"] = f">{key}\n".encode()
        site.files[f"/pdb/{key}/a3m/second_hits.a3m"] = b">2\n"
        site.files[f"/pdb/{key}/hhr/pdb70_hits.hhr"] = b"hhr"


def test_bundled_mirror(demo: Path, tmp_path: Path) -> None:
    chains = read_chains(demo / "chains.tsv")
    data = DataConfig.model_validate(
        {
            "chains": demo / "chains.tsv",
            "mirrors": {
                "mmcif": [str(demo / "mirror/wwpdb")],
                "alignments": [(demo / "mirror/openproteinset").as_uri()],
            },
            "alignments": ["swissprot_hits"],
        }
    )
    summary = run(chains, data, tmp_path)
    assert set(summary.complete) == {row.chain_key for row in chains}
    assert summary.rejected == ()
    assert (summary.absent, summary.num_searched) == ({}, 17)
    files = [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".tsv"]
    assert len(files) == summary.num_files == 21 + 2 * 17
    table = fetched_table(tmp_path / "fetched.tsv")
    assert len(table) == len(files)
    for path in files:
        row = table[path.relative_to(tmp_path).as_posix()]
        assert row["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert int(row["bytes"]) == path.stat().st_size
    assert (tmp_path / "mmcif/pt/5pti.cif.gz").exists()
    assert not (tmp_path / "alignments/1aki_A").exists()  # split "template"


def test_shared_mirror_has_another_path_below_its_root(shared_mirror: Path, tmp_path: Path) -> None:
    data = settings(str(shared_mirror / "openproteinset")).model_copy(
        update={
            "mirrors": settings(str(shared_mirror / "openproteinset")).mirrors.model_copy(
                update={
                    "mmcif": [str(shared_mirror / "wwpdb")],
                    "mmcif_path": "pdb/data/structures/divided/mmCIF/{hash}/{entry}.cif.gz",
                }
            ),
            "alignments": ["uniref100_hits", "colabfold_hits"],
        }
    )
    summary = run([train("102m_A"), train("7zzx_B"), train("1a3p_A")], data, tmp_path)
    assert set(summary.complete) == {"102m_A", "7zzx_B"}
    assert summary.absent["pdb70_hits.hhr"] == summary.complete
    assert [r.chain_key for r in summary.rejected] == ["1a3p_A"]  # its mmCIF is not there


def test_mirrors_of_both_layouts_stand_beside_each_other(
    site, downloader: Downloader, tmp_path: Path
) -> None:
    """A folder in the archive's new layout before a site in the old one; an entry by both names."""
    new = tmp_path / "new/ab/pdb_00001abc/structures/pdb_00001abc.cif.gz"
    new.parent.mkdir(parents=True)
    new.write_bytes(CIF)
    fill(site, "2abc_A", "1abc_A")
    paths = [
        "{hash}/{extended}/structures/{extended}.cif.gz",
        "pub/pdb/data/structures/divided/mmCIF/{hash}/{entry}.cif.gz",
    ]
    mirrors = {"mmcif": [str(tmp_path / "new"), site.url], "alignments": [site.url]}
    data = settings(mirrors={**mirrors, "mmcif_path": paths})
    table = tmp_path / "chains.tsv"
    lines = ["1abc_A\ttrain\t", "pdb_00001abc_B\ttrain\t", "2abc_A\ttrain\t"]
    table.write_text("\n".join(["chain_key\tsplit\tcluster_id", *lines]))
    raw = tmp_path / "raw"
    chains = read_chains(table)
    run(chains, data, raw, only="structures", downloader=downloader)
    fetched = {
        path: row["source"] for path, row in fetched_table(raw / "fetched-structures.tsv").items()
    }
    assert fetched.keys() == {"mmcif/ab/1abc.cif.gz", "mmcif/ab/2abc.cif.gz"}
    assert fetched["mmcif/ab/1abc.cif.gz"].endswith(new.name)
    assert fetched["mmcif/ab/2abc.cif.gz"].startswith(site.url)
    assert local_sources(chains, data, "structures") == [new]


@pytest.mark.parametrize("suffix", [".pdb", ".ent.gz", ".cif"])
def test_own_structures_keep_the_ending_of_their_path(tmp_path: Path, suffix: str) -> None:
    content = b"ATOM\n" if suffix != ".ent.gz" else gzip.compress(b"ATOM\n")
    (tmp_path / f"mine{suffix}").write_bytes(content)
    data = settings(str(tmp_path))
    mirrors = data.mirrors.model_copy(update={"mmcif_path": f"{{entry}}{suffix}"})
    data = data.model_copy(update={"mirrors": mirrors})
    rows = [train("mine_A"), train("lost_A")]
    with pytest.raises(InputError, match="lost"):
        run([rows[1]], data, tmp_path / "raw", only="structures")
    summary = run(rows, data, tmp_path / "raw", only="structures")
    assert (summary.complete, [r.chain_key for r in summary.rejected]) == (("mine_A",), ["lost_A"])
    assert (tmp_path / f"raw/mmcif/in/mine{suffix}").read_bytes() == content


def test_a_structure_in_another_format_is_named(tmp_path: Path) -> None:
    for name in ("1abc.cif", "2abc.pdb"):
        (tmp_path / name).write_bytes(b"ATOM\n")
    data = settings(str(tmp_path))
    mirrors = data.mirrors.model_copy(update={"mmcif_path": "{entry}.cif"})
    data = data.model_copy(update={"mirrors": mirrors})
    summary = run([train("1abc_A"), train("2abc_A")], data, tmp_path / "raw", only="structures")
    (rejected,) = summary.rejected
    assert rejected.chain_key == "2abc_A"
    assert str(tmp_path / "2abc.cif") in rejected.reason
    assert "2abc.pdb" in rejected.reason


def test_two_chains_of_an_entry_share_one_download(
    site, downloader: Downloader, tmp_path: Path
) -> None:
    fill(site, "1abc_A", "1abc_B")
    chains = [train("1abc_A"), train("1abc_B")]
    run(chains, settings(site.url), tmp_path, downloader=downloader)
    assert len(site.requests) == 1 + 2 * 3
    run(chains, settings(site.url), tmp_path, downloader=downloader)
    assert len(site.requests) == 1 + 2 * 3  # nothing again


def test_missing_files_reject_their_chain_only(
    site, downloader: Downloader, tmp_path: Path
) -> None:
    fill(site, "1abc_A", "2abc_A", "3abc_A", "4abc_A", "5abc_A")
    del site.files["/pdb/1abc_A/a3m/second_hits.a3m"]  # optional
    del site.files[f"{PDB}/ab/2abc.cif.gz"]
    del site.files["/pdb/3abc_A/a3m/first_hits.a3m"]
    del site.files["/pdb/3abc_A/a3m/second_hits.a3m"]
    del site.files["/pdb/4abc_A/hhr/pdb70_hits.hhr"]  # optional
    site.faults["/pdb/5abc_A/a3m/second_hits.a3m"] = [500, 500]  # may come later
    chains = [train(f"{i}abc_A") for i in range(1, 6)]
    summary = run(chains, settings(site.url), tmp_path, downloader=downloader)
    assert summary.complete == ("1abc_A", "4abc_A")
    assert summary.absent == {
        "second_hits.a3m": ("1abc_A", "3abc_A"),
        "first_hits.a3m": ("3abc_A",),
        "pdb70_hits.hhr": ("4abc_A",),
    }
    there = [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".tsv"]
    assert (summary.num_asked, summary.num_files) == (5 * 4, len(there))
    assert summary.num_bytes == sum(path.stat().st_size for path in there)
    reasons = {r.chain_key: r.reason for r in summary.rejected}
    assert reasons["2abc_A"].startswith("HTTP 404 (")
    assert "2abc.cif.gz)" in reasons["2abc_A"]
    assert reasons["3abc_A"].startswith("no alignment: ")
    assert "HTTP 500 (after 2 tries)" in reasons["5abc_A"]
    assert read_rejected(tmp_path / "rejected.tsv") == list(summary.rejected)
    # A second run gets what failed for the time being, and takes the chain off the list.
    again = run(chains, settings(site.url), tmp_path, downloader=downloader)
    assert again.complete == ("1abc_A", "4abc_A", "5abc_A")
    assert {r.chain_key for r in read_rejected(tmp_path / "rejected.tsv")} == {"2abc_A", "3abc_A"}


def test_other_rows_of_the_tables_stay(site, downloader: Downloader, tmp_path: Path) -> None:
    fill(site, "1abc_A", "2xyz_A")
    others = [Rejected("1abc_A", "pack", "x"), Rejected("9zzz_A", "fetch", "y")]
    write_rejected(tmp_path / "rejected.tsv", [*others, Rejected("1abc_A", "fetch", "old")])
    run([train("1abc_A")], settings(site.url), tmp_path, downloader=downloader)
    assert read_rejected(tmp_path / "rejected.tsv") == others
    run([train("2xyz_A")], settings(site.url), tmp_path, downloader=downloader)
    table = fetched_table(tmp_path / "fetched.tsv")
    assert {"mmcif/ab/1abc.cif.gz", "mmcif/xy/2xyz.cif.gz"} <= set(table)


def test_the_table_goes_on_saying_where_a_file_came_from(
    site, downloader: Downloader, tmp_path: Path
) -> None:
    """The first mirror lacks it; a second run finds the file there, and asks nobody."""
    fill(site, "1abc_A")
    data = settings(f"{site.url}/other", site.url)
    tables = []
    for _ in range(2):
        run([train("1abc_A")], data, tmp_path, downloader=downloader)
        tables.append(fetched_table(tmp_path / "fetched.tsv"))
    assert tables[0] == tables[1]
    assert tables[0]["mmcif/ab/1abc.cif.gz"]["source"] == f"{site.url}{PDB}/ab/1abc.cif.gz"


def test_mirrors_that_gave_way_to_others_are_named(site, downloader, tmp_path: Path) -> None:
    """A damaged structure on the first of two; its alignments it merely lacks."""
    first = tmp_path / "first"
    for entry, content in (("1abc", CIF[:-6]), ("2abc", b"data_2ABC\n"), ("3abc", CIF)):
        path = first / PDB[1:] / f"ab/{entry}.cif.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    chains = [train(f"{number}abc_A") for number in (1, 2, 3)]
    fill(site, *(row.chain_key for row in chains))
    data = settings(str(first), site.url)
    for _ in range(2):  # what is there already does not hide it
        summary = run(chains, data, tmp_path / "raw", downloader=downloader)
        assert len(summary.complete) == 3
        ((root, reasons),) = summary.failures.items()
        assert root == str(first)
        truncated, plain = sorted(reasons)
        assert "1abc.cif.gz: is a truncated gzip file" in truncated
        assert "2abc.cif.gz: is not gzipped" in plain


def test_a_file_that_changed_has_a_new_row(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    for file in (FetchedFile(1, "11", "first"), FetchedFile(1, "22", "second")):
        update_fetched(tmp_path / "fetched.tsv", {tmp_path / "a": file})
        assert fetched_table(tmp_path / "fetched.tsv")["a"]["source"] == file.source


def test_buckets_have_their_own_tables(site, tmp_path: Path) -> None:
    fill(site, "1abc_A")
    run([train("1abc_A")], settings(site.url), tmp_path, bucket=7)
    tables = sorted(p.name for p in tmp_path.iterdir() if p.is_file())
    assert tables == ["fetched-00007.tsv", "rejected-00007.tsv"]


def test_nothing_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="1abc_A"):
        run([train("1abc_A")], settings(str(tmp_path)), tmp_path / "out")
    assert len(read_rejected(tmp_path / "out/rejected.tsv")) == 1


def test_nothing_at_all_names_the_commonest_cause(tmp_path: Path) -> None:
    """All lack the misspelt alignment; the first, which is listed for its mmCIF, more."""
    pdb = tmp_path / f"mirror{PDB}/ab"
    pdb.mkdir(parents=True)
    for entry in ("2abc", "3abc"):
        (pdb / f"{entry}.cif.gz").write_bytes(gzip.compress(b"data_x\n"))
    chains = [train(f"{i}abc_A") for i in range(1, 4)]
    with pytest.raises(InputError) as caught:
        run(chains, settings(str(tmp_path / "mirror")), tmp_path / "out")
    message = str(caught.value)
    cause = "no mirror has first_hits.a3m or second_hits.a3m for 3 of 3 chains, as for 1abc_A: "
    assert message.startswith(f"none of 3 chains could be fetched; {cause}")
    assert message.endswith("data.mirrors or data.alignments.")  # no network that was down
    assert "1abc.cif.gz" in read_rejected(tmp_path / "out/rejected.tsv")[0].reason


def test_a_server_that_fails_may_be_tried_again(site, downloader: Downloader, tmp_path) -> None:
    fill(site, "1abc_A")
    site.faults["/pdb/1abc_A/a3m/second_hits.a3m"] = [500, 500]
    with pytest.raises(InputError, match=r"second_hits\.a3m"):
        run([train("1abc_A")], settings(site.url), tmp_path, downloader=downloader)


def test_an_interruption_keeps_what_is_complete(
    site, downloader: Downloader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"{i}abc_A" for i in range(1, 9)]
    fill(site, *keys)
    chains = [train(key) for key in keys]
    data = settings(site.url, download_threads=1)
    real_get, calls = downloader.get, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real_get(*args)

    monkeypatch.setattr(downloader, "get", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(chains, data, tmp_path, downloader=downloader)
    table = fetched_table(tmp_path / "fetched.tsv")
    assert 5 <= len(table) <= 6  # one more may have been on its way
    assert all((tmp_path / path).exists() for path in table)
    with closing(Downloader(attempts=1)) as fresh:
        assert len(run(chains, data, tmp_path, downloader=fresh).complete) == 8
    asked = Counter(path for path, _ in site.requests)
    for row in table.values():
        assert asked[row["source"].removeprefix(site.url)] == 1


def test_an_output_that_cannot_be_written_stops_the_run(
    site, downloader: Downloader, tmp_path: Path
) -> None:
    fill(site, "1abc_A")
    (tmp_path / "alignments").write_text("in the way")
    with pytest.raises(InputError, match="cannot be written"):
        run([train("1abc_A")], settings(site.url), tmp_path, downloader=downloader)
    assert (tmp_path / "fetched.tsv").exists()


def test_chains_that_the_file_system_takes_for_one_are_refused_before_the_work(
    site, downloader: Downloader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(site, "1abc_A", "1abc_a")
    chains = [train("1abc_A"), train("1abc_a")]
    assert len(run(chains, settings(site.url), tmp_path, downloader=downloader).complete) == 2
    monkeypatch.setattr(Path, "exists", lambda path: True)  # as of names in other letters
    with pytest.raises(InputError, match=r"1abc_A/a3m/\S+ .*/1abc_a/a3m/\S+"):
        run(chains, settings(site.url), tmp_path / "new" / "raw", downloader=downloader)
    assert not (tmp_path / "new").is_dir()
    run(chains[:1], settings(site.url), tmp_path, downloader=downloader)


def test_the_file_system_is_asked_at_most_once_whether_it_tells_the_case_of_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def is_blind(raw: Path) -> bool:
        asked.append(raw)
        return False

    monkeypatch.setattr(case_collisions, "_is_blind_to_case", is_blind)
    different = [tmp_path / "1abc_A", tmp_path / "1abc_B"]
    check_case_collisions(different, tmp_path)
    assert asked == []
    check_case_collisions([*different, tmp_path / "1abc_a", tmp_path / "1abc_b"], tmp_path)
    assert asked == [tmp_path]


def test_bucket_of_damaged_local_files_is_set_aside(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    path = mirror / PDB[1:] / "ab/1abc.cif.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(CIF[:-6])
    chains = [ChainRow("1abc_A", "template", None)]
    summary = run(chains, settings(str(mirror)), tmp_path / "raw", bucket=3)
    assert [r.chain_key for r in summary.rejected] == ["1abc_A"]
    assert "1abc.cif.gz" in read_rejected(tmp_path / "raw/rejected-00003.tsv")[0].reason
    with pytest.raises(InputError, match=r"1abc\.cif\.gz"):
        run(chains, settings(str(mirror)), tmp_path / "raw")


def test_bucket_that_no_server_gives_is_an_error(site, downloader, tmp_path: Path) -> None:
    fill(site, "1abc_A")
    site.files[f"{PDB}/ab/1abc.cif.gz"] = CIF[:-6]  # a later try may bring the whole file
    with pytest.raises(InputError, match=r"1abc\.cif\.gz"):
        run([train("1abc_A")], settings(site.url), tmp_path, bucket=3, downloader=downloader)


def test_local_sources_are_what_fetch_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    second = tmp_path / "second"
    for root in (Path("first"), second):
        path = root / PDB[1:] / "ab/1abc.cif.gz"
        path.parent.mkdir(parents=True)
        path.write_bytes(CIF)
    alignment = second / "pdb/1abc_A/a3m/second_hits.a3m"
    alignment.parent.mkdir(parents=True)
    alignment.write_text(">1abc_A\nA\n")
    data = settings("https://unused.example", "first", second.as_uri())
    chains = [train("1abc_A"), train("1abc_B")]
    assert local_sources(chains, data, "structures") == [Path("first") / PDB[1:] / "ab/1abc.cif.gz"]
    assert local_sources(chains, data, "alignments") == [alignment]


def test_structures_and_alignments_apart(site, tmp_path: Path) -> None:
    fill(site, "1abc_A")
    chains = [train("1abc_A"), ChainRow("2abc_A", "template", None)]
    first = run(chains, settings(site.url), tmp_path, only="structures", bucket=7)
    assert [r.chain_key for r in first.rejected] == ["2abc_A"]
    assert not (tmp_path / "alignments").exists()
    second = run(chains, settings(site.url), tmp_path, only="alignments", bucket=7)
    assert not second.rejected
    assert sorted(path.name for path in tmp_path.glob("*.tsv")) == [
        "fetched-alignments-00007.tsv",
        "fetched-structures-00007.tsv",
        "rejected-alignments-00007.tsv",
        "rejected-structures-00007.tsv",
    ]


def test_bucket_without_chains(tmp_path: Path) -> None:
    data = settings("https://unused.example")
    assert run([], data, tmp_path, bucket=1) == FetchSummary((), (), {}, {}, 0, 0, 0, 0)


def test_absent_are_kinds_of_files_that_no_chain_has(tmp_path: Path) -> None:
    """One chain is enough; and mirrors that cannot be looked into here may have them."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    there = second / "pdb/3abc_B/a3m/second_hits.a3m"
    there.parent.mkdir(parents=True)
    there.touch()
    chains = [ChainRow("1abc_A", "template", None), train("2abc_A"), train("3abc_B")]
    data = settings(str(first), second.as_uri())
    assert absent_files(chains, data, "structures") == [first / PDB[1:] / "ab/1abc.cif.gz"]
    assert absent_files(chains, data, "alignments") == [
        first / "pdb/2abc_A/a3m/first_hits.a3m",
        first / "pdb/2abc_A/hhr/pdb70_hits.hhr",
    ]
    without = settings(str(second), alignments=["second_hits"], template_hits=None)
    assert absent_files(chains, without, "alignments") == []
    for elsewhere in ("https://mirror.example", str(tmp_path / "not there")):
        assert absent_files(chains, settings(str(first), elsewhere), "alignments") == []


def test_a_shared_alignment_is_asked_for_once(site, downloader: Downloader, tmp_path: Path) -> None:
    chains = [train(key) for key in ("1aaa_A", "2bbb_A", "2bbb_B", "3ccc_A")]
    fill(site, *(row.chain_key for row in chains))
    for key in ("1aaa_A", "2bbb_A", "2bbb_B"):  # the alignment is under a name that is not listed
        for name in ("a3m/first_hits.a3m", "a3m/second_hits.a3m", "hhr/pdb70_hits.hhr"):
            content = site.files.pop(f"/pdb/{key}/{name}")
            site.files[f"/pdb/9zzz_Z/{name}"] = content
    duplicates = tmp_path / "duplicates.txt"
    duplicates.write_text("9zzz_Z 2bbb_B ../../x 1aaa_A 2bbb_A\n3ccc_A\n")
    data = settings(site.url, duplicates=duplicates)
    shared = SharedAlignments.of(data, chains)
    parts = ([chains[0], chains[3]], chains[1:3])  # as of two buckets
    for bucket, rows in enumerate(parts):
        out = tmp_path / "raw"
        summary = run(
            rows, data, out, bucket=bucket, shared=shared, downloader=downloader, only="alignments"
        )
        assert summary.rejected == ()
    asked = [path for path, _ in site.requests]
    assert len(asked) == len(set(asked)) == 6
    folders = {path.parents[1].name for path in (tmp_path / "raw").rglob("*_hits.*")}
    assert folders == {"2bbb_B", "3ccc_A"}
    mirror = tmp_path / "mirror"
    for path, content in site.files.items():
        (mirror / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (mirror / path[1:]).write_bytes(content)
    data = settings(str(mirror), duplicates=duplicates)
    assert absent_files(chains, data, "alignments") == []
    sources = local_sources(chains, data, "alignments", shared)
    assert {path.parents[1].name for path in sources} == {"9zzz_Z", "3ccc_A"}
