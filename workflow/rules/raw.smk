# Raw files, from mirrors to one folder: structures, and alignments with template hits. One job of
# each kind a bucket.
from scalefold.raw.chain_files import check_files, local_sources
from scalefold.raw.shared_alignments import SharedAlignments


def check_mirrors(kind):
    """Local mirrors must be there, and have what is asked for, until all is fetched."""
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
def shared_alignments():
    """Which chains ask for alignments that they share; 4 MB for OpenProteinSet."""
    return SharedAlignments.of(CONFIG.data, rows)


def mirror_files(kind):
    """Input function: a bucket's files on local mirrors. One that changes is fetched again."""

    def files(wildcards):
        shared = shared_alignments() if kind == "alignments" else None
        bucket = CHAINS[int(wildcards.bucket)]
        return map(str, local_sources(bucket, CONFIG.data, kind, shared))

    return files


rule fetch_structures:
    input:
        mirror_files("structures"),
    output:
        fetched="<results>/raw/fetched-structures-{bucket}.tsv",
        rejected="<results>/raw/rejected-structures-{bucket}.tsv",
    log:
        "<logs>/fetch_structures/{bucket}.log",
    benchmark:
        "<benchmarks>/fetch_structures/{bucket}.tsv"
    retries: 2
    conda:
        DATA_ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=240,
    params:
        *settings("data.mirrors.mmcif", "data.mirrors.mmcif_path"),
        config=given_configuration,
        chains=chain_table,
        raw=literal(f"{RUN}/raw"),
    shell:
        "scalefold fetch --only structures {params.config} --out {params.raw:q}"
        " --bucket {wildcards.bucket} 2>&1 | tee -i {log:q}"


rule fetch_alignments:
    input:
        mirror_files("alignments"),
    output:
        fetched="<results>/raw/fetched-alignments-{bucket}.tsv",
        rejected="<results>/raw/rejected-alignments-{bucket}.tsv",
    log:
        "<logs>/fetch_alignments/{bucket}.log",
    benchmark:
        "<benchmarks>/fetch_alignments/{bucket}.tsv"
    retries: 2
    conda:
        DATA_ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=240,
    params:
        *settings("data.mirrors", "data.alignments", "data.template_hits"),
        config=given_configuration,
        chains=chain_table,
        raw=literal(f"{RUN}/raw"),
    shell:
        "scalefold fetch --only alignments {params.config} --out {params.raw:q}"
        " --bucket {wildcards.bucket} 2>&1 | tee -i {log:q}"
