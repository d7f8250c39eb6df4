"""The sections `data` and `shards` of the configuration."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import Field, model_validator

from scalefold.config.mirror_roots import local_folder, rsync_module
from scalefold.config.section import Section
from scalefold.config.values import FileName, NonNegative, Positive, Root, WrittenPath, template


class MirrorsConfig(Section):
    """Where raw files come from. Each list is tried in order.

    A mirror is an ``https://`` or ``http://`` root, a public S3 bucket (``s3://openfold``), an
    rsync daemon (``rsync://host:port/module`` or ``host::module``), a ``file://`` URL, or a
    folder's path.
    """

    mmcif: list[Root] = Field(min_length=1, description="Roots of wwPDB archives.")
    mmcif_path: Annotated[
        str | Annotated[list[str], Field(min_length=1)],
        template("entry", "hash", instead="extended"),
    ] = Field(
        "pub/pdb/data/structures/divided/mmCIF/{hash}/{entry}.cif.gz",
        description="Path below a root; {hash} is the 2nd and 3rd last character of the entry id, "
        "{extended} its form with 12 characters, as pdb_00001abc. "
        "The ending says the format: .cif, .pdb or .ent, or gzipped .cif.gz and so on. "
        "A list: each root is asked for each, in order.",
    )
    alignments: list[Root] = Field(min_length=1, description="Roots of OpenProteinSet archives.")
    alignment_path: Annotated[str, template("chain", "name")] = Field(
        "pdb/{chain}/a3m/{name}.a3m", description="Path below a root."
    )
    hhr_path: Annotated[str, template("chain", "name")] = Field(
        "pdb/{chain}/hhr/{name}.hhr", description="Path below a root."
    )

    @property
    def mmcif_paths(self) -> list[str]:
        """`mmcif_path` as a list."""
        return [self.mmcif_path] if isinstance(self.mmcif_path, str) else self.mmcif_path

    @model_validator(mode="after")
    def _one_format(self) -> MirrorsConfig:
        first, *others = self.mmcif_paths
        for other in others:
            if _ending(other) != _ending(first):
                raise ValueError(
                    f"data.mirrors.mmcif_path: {first} and {other} have different endings: all "
                    "structures of a run have one format, so list paths of the same ending"
                )
        return self

    @model_validator(mode="after")
    def _rsync_before_web(self) -> MirrorsConfig:
        for roots in (self.mmcif, self.alignments):
            on_web = [local_folder(r) is None and rsync_module(r) is None for r in roots]
            for number, root in enumerate(roots):
                if rsync_module(root) is not None and any(on_web[:number]):
                    raise ValueError(
                        f"{root} comes after {roots[on_web.index(True)]}: put it before, since "
                        "rsync is asked once, for all files that folders do not have"
                    )
        return self


def _ending(path: str) -> tuple[str, bool]:
    """Return the ending that says the format, and whether it is gzipped."""
    return PurePath(path.removesuffix(".gz")).suffix, path.endswith(".gz")


class DataConfig(Section):
    """Which chains, and their raw files."""

    chains: WrittenPath = Field(description="Table of chains: chain_key, split, cluster_id (TSV).")
    splits: WrittenPath | None = Field(
        None,
        description="A later list of the same chains. Its splits count; chains that it does not "
        "list are templates.",
    )
    mirrors: MirrorsConfig
    alignments: list[FileName] = Field(
        ["uniref90_hits", "bfd_uniclust_hits", "mgnify_hits"],
        min_length=1,
        description="Alignment names, merged in this order; a chain needs at least one of them.",
    )
    template_hits: FileName | None = Field(
        "pdb70_hits", description="Name of the hhr file, or null."
    )
    duplicates: WrittenPath | None = Field(
        None,
        description="OpenProteinSet's duplicate_pdb_chains.txt: alignments that chains share are "
        "then asked for once, by the names of all. null: by the name of each.",
    )
    buckets: Annotated[int, Field(ge=1, le=100_000)] | None = (
        Field(  # five digits in names of files
            None,
            description="Hash buckets: the unit of work of fetch and pack; null: by the number of "
            "chains, at most 400, and kept once the first is packed.",
        )
    )
    download_threads: Positive = 8
    max_download_seconds: Positive = Field(
        3600, description="Longest time for one file from one mirror; then the next is asked."
    )
    max_structure_megabytes: Positive = Field(
        500, description="Larger structures, unpacked, are set aside; the PDB's have up to 300 MB."
    )

    @property
    def num_buckets(self) -> int:
        """`buckets`, once `scalefold.shards.bucket_count` has chosen it."""
        assert self.buckets is not None, "choose data.buckets first: with_bucket_count"
        return self.buckets

    @property
    def max_structure_bytes(self) -> int:
        """`max_structure_megabytes` in bytes."""
        return self.max_structure_megabytes * 1_000_000

    @model_validator(mode="after")
    def _one_file_each(self) -> DataConfig:
        if len(self.alignments) > 1 and "{name}" not in self.mirrors.alignment_path:
            raise ValueError(
                f"data.mirrors.alignment_path is {self.mirrors.alignment_path}, the same file for "
                f"all of data.alignments ({', '.join(self.alignments)}): give it {{name}}, or list "
                "one alignment"
            )
        return self


class MaxRowsConfig(Section):
    """First rows that are taken of each alignment of this name, the query included; null: all.

    AlphaFold2's limits. OpenFold's pipeline, and OpenProteinSet with it, has 5,000 of MGnify.
    """

    uniref90_hits: Positive | None = 10_000
    bfd_uniclust_hits: Positive | None = None
    mgnify_hits: Positive | None = 501
    together: Positive = Field(
        20_000,
        description="Rows kept of the merged alignment: of each source the same share, its first.",
    )


FORMER_MAX_MSA_ROWS = 10_000


class ShardsConfig(Section):
    """How shards are written."""

    compression: Literal["none", "lz4", "zstd"] = "none"
    max_rows: MaxRowsConfig = MaxRowsConfig()
    max_msa_rows: Positive = Field(
        FORMER_MAX_MSA_ROWS,
        description="Earlier versions' name of max_rows.together: counts in its place if it is not "
        "10000.",
    )
    max_template_hits: NonNegative = Field(
        100,
        description="Best hits kept, by sum of probs, of those not newer than the query; more than "
        "features.template_pool, since the margin of dates is judged later.",
    )

    @property
    def max_merged_rows(self) -> int:
        """Rows kept of a merged alignment."""
        is_former = self.max_msa_rows == FORMER_MAX_MSA_ROWS
        return self.max_rows.together if is_former else self.max_msa_rows

    def max_rows_of(self, source: str) -> int | None:
        """Rows taken of the alignment of this name, ``None`` for all."""
        limits: dict[str, int | None] = self.max_rows.model_dump(exclude={"together"})
        return limits.get(source)
