# Raw files: mmCIF, alignments, template hits, from mirrors to one folder. One job a bucket.
def mirror_files(suffix):
    """Input function: a bucket's files on local mirrors; one that changes is fetched again."""

    def files(wildcards):
        sources = local_sources(CHAINS[int(wildcards.bucket)], CONFIG.data)
        return [path.as_posix() for path in sources if path.name.endswith(suffix)]

    return files


def chain_table(wildcards):
    """A bucket's lines of the list of chains: a changed line concerns its bucket only."""
    return [(c.chain_key, c.split, c.cluster_id) for c in CHAINS[int(wildcards.bucket)]]


rule fetch:
    input:
        structures=mirror_files(".cif.gz"),
        alignments=mirror_files(".a3m"),
        template_hits=mirror_files(".hhr"),
        config=ancient(f"{RUN}/config.yaml"),
    output:
        fetched=f"{RUN}/raw/fetched-{{bucket}}.tsv",
        rejected=f"{RUN}/raw/rejected-{{bucket}}.tsv",
    log:
        f"{RUN}/logs/fetch/{{bucket}}.log",
    benchmark:
        f"{RUN}/benchmarks/fetch/{{bucket}}.tsv"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=240,
    retries: 2
    params:
        chains=chain_table,
        settings=settings("data.mirrors", "data.alignments", "data.template_hits"),
        raw=f"{RUN}/raw",
        bucket=lambda wildcards: int(wildcards.bucket),
    shell:
        "scalefold fetch --config {input.config:q} --out {params.raw:q} --bucket {params.bucket}"
        " 2>&1 | tee {log:q}"
