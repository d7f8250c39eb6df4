# Arrow shards. A bucket's structures; then its alignments and template hits, which are aligned anew
# to the packed structures of all buckets; then the index of all.
SHARDS = f"{RUN}/shards"
PACKING = packing_hash(CONFIG)


def fetched(wildcards):
    """Input function: a bucket's raw structures.

    Where all mirrors are local, their structure files say whether there is anything new, so that
    a new alignment does not pack structures again.
    """
    table = f"{RUN}/raw/fetched-{wildcards.bucket}.tsv"
    is_local = all(local_folder(root) is not None for root in CONFIG.data.mirrors.mmcif)
    return [ancient(table)] if is_local else [table]


rule structures:
    input:
        fetched=fetched,
        structures=mirror_files(".cif.gz"),
        config=ancient(f"{RUN}/config.yaml"),
    output:
        shard=f"{SHARDS}/chain-{{bucket}}.arrow",
        summary=f"{SHARDS}/chain-{{bucket}}.json",
    log:
        f"{RUN}/logs/structures/{{bucket}}.log",
    benchmark:
        f"{RUN}/benchmarks/structures/{{bucket}}.tsv"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=120,
    params:
        chains=chain_table,
        settings=PACKING,
        raw=f"{RUN}/raw",
        shards=SHARDS,
        bucket=lambda wildcards: int(wildcards.bucket),
    shell:
        "scalefold pack --stage structures --config {input.config:q} --raw {params.raw:q}"
        " --out {params.shards:q} --bucket {params.bucket} 2>&1 | tee {log:q}"


rule all_structures:
    # One edge a bucket into `pack` instead of buckets x buckets: any structure may be a template.
    input:
        expand(f"{SHARDS}/chain-{{bucket}}.{{kind}}", bucket=BUCKETS, kind=["arrow", "json"]),
    output:
        touch(f"{RUN}/structures.done"),


rule pack:
    input:
        fetched=f"{RUN}/raw/fetched-{{bucket}}.tsv",
        structures=f"{RUN}/structures.done",
        config=ancient(f"{RUN}/config.yaml"),
    output:
        shard=f"{SHARDS}/msa-{{bucket}}.arrow",
        summary=f"{SHARDS}/msa-{{bucket}}.json",
    log:
        f"{RUN}/logs/pack/{{bucket}}.log",
    benchmark:
        f"{RUN}/benchmarks/pack/{{bucket}}.tsv"
    threads: 1
    resources:
        mem_mb=8000,
        runtime=240,
    params:
        chains=chain_table,
        settings=PACKING,
        raw=f"{RUN}/raw",
        shards=SHARDS,
        bucket=lambda wildcards: int(wildcards.bucket),
    shell:
        "scalefold pack --stage alignments --config {input.config:q} --raw {params.raw:q}"
        " --out {params.shards:q} --bucket {params.bucket} 2>&1 | tee {log:q}"


rule index:
    input:
        shards=expand(
            f"{SHARDS}/{{family}}-{{bucket}}.{{kind}}",
            family=["chain", "msa"],
            bucket=BUCKETS,
            kind=["arrow", "json"],
        ),
        rejected=expand(f"{RUN}/raw/rejected-{{bucket}}.tsv", bucket=BUCKETS),
        config=ancient(f"{RUN}/config.yaml"),
    output:
        index=f"{SHARDS}/index.arrow",
        manifest=f"{SHARDS}/manifest.json",
        rejected=f"{SHARDS}/rejected.tsv",
        copy=f"{RUN}/rejected.tsv",
    log:
        f"{RUN}/logs/index.log",
    benchmark:
        f"{RUN}/benchmarks/index.tsv"
    threads: 1
    resources:
        mem_mb=8000,
        runtime=60,
    params:
        settings=PACKING,
        raw=f"{RUN}/raw",
        shards=SHARDS,
    shell:
        "{{ scalefold pack --stage index --config {input.config:q} --raw {params.raw:q}"
        " --out {params.shards:q} && cp {output.rejected:q} {output.copy:q}; }} 2>&1 | tee {log:q}"


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
    threads: 1
    resources:
        mem_mb=4000,
        runtime=480,
    params:
        shards=SHARDS,
    shell:
        "scalefold verify {params.shards:q} > {output:q} 2> >(tee {log:q} >&2)"
