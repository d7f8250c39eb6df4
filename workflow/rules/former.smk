# Shards of schema version 1: they stay as they are, until the alignments of all buckets are packed
# again. Snakemake deletes what a job makes before the job begins, so what would pack a part of them
# is refused here, while the files are still there.
from types import SimpleNamespace

from scalefold.fetch.fetched import first_lost
from scalefold.shards.manifest import is_former
from scalefold.shards.packed_settings import other_chains
from scalefold.shards.repack_hint import PACK_ALIGNMENTS_AGAIN

DATA_RULES = {"fetch_structures", "structures", "all_structures", "index"}


def forced():
    """Rules and files that --forcerun names; a job's own process has no such settings."""
    return set(workflow.dag_settings.forcerun)


@cache
def stays_former():
    """Their alignments were made of other inputs, which must not count as changed."""
    asked_for = (
        workflow.dag_settings.forceall or {"pack", "fetch_alignments"} & forced()
    )
    return is_former(Path(SHARDS)) and not asked_for


def queries(wildcards):
    """What a bucket's alignments are of: its chains."""
    if stays_former():
        return ancient(f"{RUN}/structures.done")
    return expand(f"{SHARDS}/chain-{wildcards.bucket}.{{kind}}", kind=["arrow", "json"])


def packed_hits(wildcards):
    """Template hits of all buckets. Shards of schema version 1 have none."""
    if stays_former():
        if changed := changed_since():
            raise WorkflowError(
                f"{SHARDS} holds shards of schema version 1, and {changed}. Undo that, or have "
                f"shards of this version. {PACK_ALIGNMENTS_AGAIN}"
            )
        return []
    if is_former(Path(SHARDS)) and "fetch_alignments" not in forced():
        refuse_lost_files()
    return expand(f"{SHARDS}/hits-{{bucket}}.arrow", bucket=BUCKETS)


def refuse_lost_files():
    """A job that packs refuses them too, when the shards that it replaces are gone."""
    for bucket in BUCKETS:
        if lost := first_lost(Path(f"{RUN}/raw/fetched-alignments-{bucket}.tsv")):
            raise WorkflowError(
                f"{lost} was fetched and is gone, and {SHARDS} holds shards of schema version 1, "
                "which are packed again as a whole or not at all. Give the same snakemake command "
                "with --forcerun fetch_alignments"
            )


def changed_since():
    """What would have Snakemake make a part of the shards again, or nothing."""
    if rows_changed := other_chains(Path(SHARDS), LISTED):
        return (
            f"{len(rows_changed)} lines of {CONFIG.data.chains} have changed since, that of "
            f"{min(rows_changed)} for one"
        )
    if named := sorted(DATA_RULES & forced()):
        return f"--forcerun {' '.join(named)} would make a part of them again"
    return next((text for bucket in BUCKETS for text in stale_files(bucket)), "")


def stale_files(bucket):
    """Which files of a bucket are gone, or newer than what was made of them."""
    ends = [
        f"{SHARDS}/{name}" for name in ("index.arrow", "manifest.json", "rejected.tsv")
    ]
    for kind, family in (("structures", "chain"), ("alignments", "msa")):
        sources = mirror_files(kind)(SimpleNamespace(bucket=bucket))
        tables = [
            f"{RUN}/raw/{name}-{kind}-{bucket}.tsv" for name in ("fetched", "rejected")
        ]
        shards = [
            f"{SHARDS}/{family}-{bucket}.{ending}" for ending in ("arrow", "json")
        ]
        if gone := [path for path in (*tables, *shards) if not os.path.exists(path)]:
            yield f"{gone[0]} is gone"
            continue
        for used, made in ((sources, tables), (tables[:1], shards), (shards, ends)):
            oldest = min(made, key=os.path.getmtime)
            for path in filter(os.path.exists, used):
                if os.path.getmtime(path) > os.path.getmtime(oldest):
                    yield f"{path} is newer than {oldest}"
