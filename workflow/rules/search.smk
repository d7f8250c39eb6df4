# Searches for alignments: of sequences to predict, and of chains that the mirrors have none of.
# Without a section `search` there are no such rules, and nothing else depends on one.
SEARCHED = []
SEARCH_SETTINGS = []

if CONFIG.search is not None:
    # A search for a new chain is no reason to pack the alignments of others again: `index` refuses
    # alignments that have come since their bucket was packed.
    SEARCHED = [ancient(f"{RUN}/searched.done")]
    SEARCH_SETTINGS = settings("search.steps", "search.given", "search.query_alone")

    rule search_sequences:
        # Waits for no training, so that a GPU never waits for a search.
        input:
            lambda wildcards: str(SEQUENCES[wildcards.purpose].fasta),
        output:
            "<results>/{purpose}/searched/rejected-search-{part}.tsv",
        log:
            "<logs>/search_sequences/{purpose}/{part}.log",
        benchmark:
            "<benchmarks>/search_sequences/{purpose}/{part}.tsv"
        retries: 2
        conda:
            DATA_ENVIRONMENT
        threads: CONFIG.search.threads
        resources:
            mem_mb=growing(CONFIG.search.job_megabytes),
            runtime=1440,
        params:
            *SEARCH_SETTINGS,
            *settings("search.jobs"),
            config=given_configuration,
            out=lambda wildcards: f"{RUN}/{wildcards.purpose}/searched",
        shell:
            "scalefold search {input:q} {params.config} --out {params.out:q}"
            " --part {wildcards.part}/{CONFIG.search.jobs} 2>&1 | tee -i {log:q}"

    rule unaligned:
        # One list for all buckets: a sequence may be in several.
        input:
            structures="<results>/structures.done",
            fetched=expand(rules.fetch_alignments.output.fetched, bucket=BUCKETS),
        output:
            "<results>/raw/unaligned.fasta",
        log:
            "<logs>/unaligned.log",
        benchmark:
            "<benchmarks>/unaligned.tsv"
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

    use rule search_sequences as search with:
        input:
            rules.unaligned.output,
        output:
            "<results>/raw/rejected-search-{part}.tsv",
        log:
            "<logs>/search/{part}.log",
        benchmark:
            "<benchmarks>/search/{part}.tsv"
        params:
            out=literal(f"{RUN}/raw"),

    rule searched:
        # One edge into each `pack` instead of one from every search.
        input:
            expand(rules.search.output, part=PARTS),
        output:
            touch("<results>/searched.done"),
        localrule: True
