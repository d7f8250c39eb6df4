# Alignments of sequences that the mirrors have none of. Without a section `search` there is no such
# rule, and nothing else depends on one.
SEARCHED = []
SEARCH_SETTINGS = []

if CONFIG.search is not None:
    # A search for a new chain is no reason to pack the alignments of others again: `index` refuses
    # alignments that have come since their bucket was packed.
    SEARCHED = [ancient(f"{RUN}/searched.done")]
    SEARCH_SETTINGS = settings("search.steps", "search.given", "search.query_alone")
    PARTS = [f"{part:05d}" for part in range(CONFIG.search.jobs)]

    localrules:
        searched,

    rule unaligned:
        # One list for all buckets: a sequence may be in several.
        input:
            structures=f"{RUN}/structures.done",
            fetched=expand(
                f"{RUN}/raw/fetched-alignments-{{bucket}}.tsv", bucket=BUCKETS
            ),
        output:
            f"{RUN}/raw/unaligned.fasta",
        log:
            f"{RUN}/logs/unaligned.log",
        benchmark:
            f"{RUN}/benchmarks/unaligned.tsv"
        conda:
            DATA_ENVIRONMENT
        threads: 1
        resources:
            mem_mb=growing(4000),
            runtime=60,
        params:
            *settings("data.alignments"),
            config=given_configuration,
            raw=literal(f"{RUN}/raw"),
            shards=literal(SHARDS),
        shell:
            "scalefold unaligned {params.config} --raw {params.raw:q} --shards {params.shards:q}"
            " --out {output:q} 2>&1 | tee -i {log:q}"

    rule search:
        input:
            f"{RUN}/raw/unaligned.fasta",
        output:
            f"{RUN}/raw/rejected-search-{{part}}.tsv",
        log:
            f"{RUN}/logs/search/{{part}}.log",
        benchmark:
            f"{RUN}/benchmarks/search/{{part}}.tsv"
        retries: 2
        conda:
            DATA_ENVIRONMENT
        threads: CONFIG.search.threads
        resources:
            mem_mb=growing(CONFIG.search.job_megabytes),
            runtime=1440,
        params:
            *SEARCH_SETTINGS,
            config=given_configuration,
            parts=CONFIG.search.jobs,
            raw=literal(f"{RUN}/raw"),
        shell:
            "scalefold search {input:q} {params.config} --out {params.raw:q}"
            " --part {wildcards.part}/{params.parts} 2>&1 | tee -i {log:q}"

    rule searched:
        # One edge into each `pack` instead of one from every search.
        input:
            expand(f"{RUN}/raw/rejected-search-{{part}}.tsv", part=PARTS),
        output:
            touch(f"{RUN}/searched.done"),
