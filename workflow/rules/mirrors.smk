# Raw files on local mirrors.
from scalefold.fetch.on_mirrors import check_files, local_sources
from scalefold.fetch.shared_alignments import SharedAlignments


@cache
def shared_alignments():
    """Which chains ask for alignments that they share; 4 MB for OpenProteinSet."""
    try:
        return SharedAlignments.of(CONFIG.data, rows)
    except InputError as error:
        raise WorkflowError(str(error)) from None


def check_mirrors(kind):
    """Local mirrors must be there, and have what is asked for, until all is fetched."""
    fetched = expand(f"{RUN}/raw/fetched-{kind}-{{bucket}}.tsv", bucket=BUCKETS)
    try:
        check_files(rows, CONFIG.data, kind)
    except InputError as error:
        is_searched = kind == "alignments" and CONFIG.search is not None
        if not is_searched and not all(os.path.exists(path) for path in fetched):
            raise WorkflowError(str(error)) from None
        logger.warning(str(error))


def mirror_files(kind):
    """Input function: a bucket's files on local mirrors. One that changes is fetched again."""

    def files(wildcards):
        shared = shared_alignments() if kind == "alignments" else None
        bucket = CHAINS[int(wildcards.bucket)]
        sources = local_sources(bucket, CONFIG.data, kind, shared)
        return [path.as_posix() for path in sources]

    return files


if workflow.is_main_process and rows:
    check_mirrors("structures")
    check_mirrors("alignments")
