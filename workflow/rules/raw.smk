# Raw files, from mirrors to one folder: structures, and alignments with template hits. One job of
# each kind a bucket.
def mirror_files(kind):
    """Input function: a bucket's files on local mirrors; one that changes is fetched again."""

    def files(wildcards):
        sources = local_sources(CHAINS[int(wildcards.bucket)], CONFIG.data, kind)
        return [path.as_posix() for path in sources]

    return files


def chain_table(wildcards):
    """A bucket's lines of the list of chains: a changed line concerns its bucket only."""
    return [(c.chain_key, c.split, c.cluster_id) for c in CHAINS[int(wildcards.bucket)]]


rule fetch_structures:
    input:
        mirror_files("structures"),
    output:
        fetched=f"{RUN}/raw/fetched-structures-{{bucket}}.tsv",
        rejected=f"{RUN}/raw/rejected-structures-{{bucket}}.tsv",
    log:
        f"{RUN}/logs/fetch_structures/{{bucket}}.log",
    benchmark:
        f"{RUN}/benchmarks/fetch_structures/{{bucket}}.tsv"
    retries: 2
    threads: 1
    resources:
        mem_mb=1000,
        runtime=240,
    params:
        *settings("data.mirrors.mmcif", "data.mirrors.mmcif_path"),
        chains=chain_table,
        raw=f"{RUN}/raw",
        bucket=lambda wildcards: int(wildcards.bucket),
    shell:
        "scalefold fetch --only structures {CONFIG_OPTIONS} --out {params.raw:q}"
        " --bucket {params.bucket} 2>&1 | tee {log:q}"


rule fetch_alignments:
    input:
        mirror_files("alignments"),
    output:
        fetched=f"{RUN}/raw/fetched-alignments-{{bucket}}.tsv",
        rejected=f"{RUN}/raw/rejected-alignments-{{bucket}}.tsv",
    log:
        f"{RUN}/logs/fetch_alignments/{{bucket}}.log",
    benchmark:
        f"{RUN}/benchmarks/fetch_alignments/{{bucket}}.tsv"
    retries: 2
    threads: 1
    resources:
        mem_mb=1000,
        runtime=240,
    params:
        *settings("data.mirrors", "data.alignments", "data.template_hits"),
        chains=chain_table,
        raw=f"{RUN}/raw",
        bucket=lambda wildcards: int(wildcards.bucket),
    shell:
        "scalefold fetch --only alignments {CONFIG_OPTIONS} --out {params.raw:q}"
        " --bucket {params.bucket} 2>&1 | tee {log:q}"
