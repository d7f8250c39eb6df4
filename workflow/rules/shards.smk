# Arrow shards. A bucket's structures; then its alignments and template hits; then the index of all
# buckets, with the templates that the hits lead to.
import time


rule structures:
    input:
        f"{RUN}/raw/fetched-structures-{{bucket}}.tsv",
    output:
        shard=f"{SHARDS}/chain-{{bucket}}.arrow",
        summary=f"{SHARDS}/chain-{{bucket}}.json",
    log:
        f"{RUN}/logs/structures/{{bucket}}.log",
    benchmark:
        f"{RUN}/benchmarks/structures/{{bucket}}.tsv"
    conda:
        DATA_ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(4000),
        runtime=120,
    params:
        *packing_params(),
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
        expand(
            f"{SHARDS}/chain-{{bucket}}.{{kind}}",
            bucket=BUCKETS,
            kind=["arrow", "json"],
        ),
    output:
        touch(f"{RUN}/structures.done"),


rule pack:
    input:
        fetched=f"{RUN}/raw/fetched-alignments-{{bucket}}.tsv",
        structures=queries,
        searched=SEARCHED,
    output:
        shard=f"{SHARDS}/msa-{{bucket}}.arrow",
        hits=f"{SHARDS}/hits-{{bucket}}.arrow",
        summary=f"{SHARDS}/msa-{{bucket}}.json",
    log:
        f"{RUN}/logs/pack/{{bucket}}.log",
    benchmark:
        f"{RUN}/benchmarks/pack/{{bucket}}.tsv"
    conda:
        DATA_ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(8000),
        runtime=240,
    params:
        *packing_params(),
        *SEARCH_SETTINGS,
        config=given_configuration,
        chains=chain_table,
        raw=literal(f"{RUN}/raw"),
        shards=literal(SHARDS),
    shell:
        "scalefold pack --stage alignments {params.config} --raw {params.raw:q}"
        " --out {params.shards:q} --bucket {wildcards.bucket} 2>&1 | tee -i {log:q}"


rule index:
    # Its templates-*.arrow are not declared: shards of schema version 1 have none, and stay valid.
    input:
        shards=expand(
            f"{SHARDS}/{{family}}-{{bucket}}.{{kind}}",
            family=["chain", "msa"],
            bucket=BUCKETS,
            kind=["arrow", "json"],
        ),
        hits=packed_hits,
        rejected=expand(
            f"{RUN}/raw/rejected-{{kind}}-{{bucket}}.tsv",
            kind=["structures", "alignments"],
            bucket=BUCKETS,
        ),
    output:
        index=f"{SHARDS}/index.arrow",
        manifest=f"{SHARDS}/manifest.json",
        rejected=f"{SHARDS}/rejected.tsv",
        summary=report(
            f"{RUN}/rejected.tsv", category="Data", caption="../report/rejected.rst"
        ),
    log:
        f"{RUN}/logs/index.log",
    benchmark:
        f"{RUN}/benchmarks/index.tsv"
    conda:
        DATA_ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(4000),
        runtime=60,
    params:
        *packing_params(),
        *split_list(),
        config=given_configuration,
        raw=literal(f"{RUN}/raw"),
        shards=literal(SHARDS),
    shell:
        "{{ scalefold pack --stage index {params.config} --raw {params.raw:q}"
        " --out {params.shards:q} && cp {output.rejected:q} {output.summary:q}; }} 2>&1 | tee -i {log:q}"


rule verify:
    # Not part of `all`, since it reads everything: `snakemake --profile local verify`.
    input:
        index=f"{SHARDS}/index.arrow",
        manifest=f"{SHARDS}/manifest.json",
    output:
        f"{RUN}/verified.txt",
    log:
        f"{RUN}/logs/verify.log",
    benchmark:
        f"{RUN}/benchmarks/verify.tsv"
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
