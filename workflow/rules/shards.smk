# Arrow shards.
#   structures: `scalefold pack --stage structures`, a bucket's structures
#   pack: `scalefold pack --stage alignments`, a bucket's alignments and template hits
#   index: `scalefold pack --stage index`, the index of all buckets, with the templates of the hits
#   verify: `scalefold verify`, only if asked for


rule structures:
    input:
        rules.fetch_structures.output.fetched,
    output:
        shard="<results>/shards/chain-{bucket}.arrow",
        summary="<results>/shards/chain-{bucket}.json",
    log:
        "<logs>/structures/{bucket}.log",
    benchmark:
        "<benchmarks>/structures/{bucket}.tsv"
    conda:
        DATA_ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(4000),
        runtime=120,
    params:
        *PACKING,
        config=given_configuration,
        chains=chain_table,
        raw=literal(f"{RUN}/raw"),
        shards=literal(SHARDS),
    shell:
        "scalefold pack --stage structures {params.config} --raw {params.raw:q}"
        " --out {params.shards:q} --bucket {wildcards.bucket} 2>&1 | tee -i {log:q}"


rule all_structures:
    # One edge a bucket into `unaligned`, which asks for the structures of all.
    input:
        expand(rules.structures.output, bucket=BUCKETS),
    output:
        touch("<results>/structures.done"),
    localrule: True


rule pack:
    input:
        fetched=rules.fetch_alignments.output.fetched,
        structures=rules.structures.output,
        searched=SEARCHED,
    output:
        shard="<results>/shards/msa-{bucket}.arrow",
        hits="<results>/shards/hits-{bucket}.arrow",
        summary="<results>/shards/msa-{bucket}.json",
    log:
        "<logs>/pack/{bucket}.log",
    benchmark:
        "<benchmarks>/pack/{bucket}.tsv"
    conda:
        DATA_ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(8000),
        runtime=240,
    params:
        *PACKING,
        *SEARCH_SETTINGS,
        config=given_configuration,
        chains=chain_table,
        raw=literal(f"{RUN}/raw"),
        shards=literal(SHARDS),
    shell:
        "scalefold pack --stage alignments {params.config} --raw {params.raw:q}"
        " --out {params.shards:q} --bucket {wildcards.bucket} 2>&1 | tee -i {log:q}"


rule index:
    input:
        of_this_version,
        expand([*rules.structures.output, *rules.pack.output], bucket=BUCKETS),
        expand(
            "<results>/raw/rejected-{kind}-{bucket}.tsv",
            kind=["structures", "alignments"],
            bucket=BUCKETS,
        ),
    output:
        index="<results>/shards/index.arrow",
        manifest="<results>/shards/manifest.json",
        rejected="<results>/shards/rejected.tsv",
        templates=expand("<results>/shards/templates-{bucket}.arrow", bucket=BUCKETS),
        summary=report(
            "<results>/rejected.tsv", category="Data", caption="../report/rejected.rst"
        ),
    log:
        "<logs>/index.log",
    benchmark:
        "<benchmarks>/index.tsv"
    conda:
        DATA_ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(4000),
        runtime=60,
    params:
        *PACKING,
        *([] if CONFIG.data.splits is None else [hashed(tuple(LISTED))]),
        config=given_configuration,
        raw=literal(f"{RUN}/raw"),
        shards=literal(SHARDS),
    shell:
        "{{ scalefold pack --stage index {params.config} --raw {params.raw:q}"
        " --out {params.shards:q} && cp {output.rejected:q} {output.summary:q}; }} 2>&1 | tee -i {log:q}"


rule verify:
    # Not part of `all`, since it reads everything: `snakemake --profile local verify`.
    input:
        index=rules.index.output.index,
        manifest=rules.index.output.manifest,
    output:
        "<results>/verified.txt",
    log:
        "<logs>/verify.log",
    benchmark:
        "<benchmarks>/verify.tsv"
    conda:
        DATA_ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(4000),
        runtime=480,
    params:
        shards=literal(SHARDS),
        # Always another value: the rule runs whenever it is asked for, since a disk's decay leaves no date.
        asked=lambda wildcards: time.time_ns(),
    shell:
        "scalefold verify {params.shards:q} > {output:q} 2> >(tee -i {log:q} >&2)"
