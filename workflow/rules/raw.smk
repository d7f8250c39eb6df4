# Raw files, from mirrors to one folder: structures, and alignments with template hits. One job of
# each kind a bucket.
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
