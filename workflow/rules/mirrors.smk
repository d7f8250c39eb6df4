# Functions: raw files on local mirrors, which are inputs of what fetches them.
from scalefold.fetch.on_mirrors import check_files, local_sources
from scalefold.fetch.shared_alignments import SharedAlignments


def check_mirrors(kind):
    """Local mirrors must be there, and have what is asked for, until all is fetched."""
    query_alone = CONFIG.search is not None and CONFIG.search.query_alone
    if kind == "alignments" and query_alone and CONFIG.data.template_hits is None:
        return
    try:
        check_files(rows, CONFIG.data, kind)
    except InputError as error:
        fetched = expand(f"{RUN}/raw/fetched-{kind}-{{bucket}}.tsv", bucket=BUCKETS)
        is_searched = kind == "alignments" and CONFIG.search is not None
        if not is_searched and not all(os.path.exists(path) for path in fetched):
            raise WorkflowError(str(error)) from None
        logger.warning(str(error))


if workflow.is_main_process and rows:
    check_mirrors("structures")
    check_mirrors("alignments")


@cache
def shared(kind):
    """Which chains ask for alignments that they share; 4 MB for OpenProteinSet."""
    return SharedAlignments.of(CONFIG.data, rows) if kind == "alignments" else None


def mirror_files(kind):
    """Input function: a bucket's files on local mirrors. One that changes is fetched again."""

    def files(wildcards):
        bucket = CHAINS[int(wildcards.bucket)]
        return map(str, local_sources(bucket, CONFIG.data, kind, shared(kind)))

    return files
