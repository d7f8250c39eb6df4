# The report of each training: one HTML file that opens offline, and the same numbers as JSON.
rule report:
    input:
        evaluations=lambda wildcards: evaluations(REPORTS[wildcards.of]),
        trained=lambda wildcards: TRAINED.format(key=REPORTS[wildcards.of]),
        manifest=lambda wildcards: f"{shards_of(REPORTS[wildcards.of])}/manifest.json",
        against=lambda wildcards: [
            path.as_posix() for path in OF_KEY[REPORTS[wildcards.of]][1].report.against
        ],
        beside=lambda wildcards: [
            path.as_posix()
            for path in [OF_KEY[REPORTS[wildcards.of]][1].report.beside]
            if path
        ],
    output:
        html=report(
            f"{RUN}/report{{of}}.html",
            category="Results",
            caption="../report/report.rst",
        ),
        json=f"{RUN}/report{{of}}.json",
    log:
        f"{RUN}/logs/report{{of}}.log",
    benchmark:
        f"{RUN}/benchmarks/report/report{{of}}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(4000),
        runtime=30,
    params:
        config=given_training,
        run=literal(RUN),
        key=lambda wildcards: REPORTS[wildcards.of],
        shards=lambda wildcards: shards_of(REPORTS[wildcards.of]),
    shell:
        "scalefold report {params.run:q} {params.config} --key {params.key} --shards {params.shards:q}"
        " --out {output.html:q} 2>&1 | tee -i {log:q}"


rule mlperf_log:
    # Part of `all` with the preset mlperf.
    input:
        report=f"{RUN}/report{{of}}.json",
        manifest=lambda wildcards: f"{shards_of(REPORTS[wildcards.of])}/manifest.json",
    output:
        f"{RUN}/mlperf{{of}}.log",
    log:
        f"{RUN}/logs/mlperf_log{{of}}.log",
    benchmark:
        f"{RUN}/benchmarks/mlperf_log/mlperf{{of}}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(4000),
        runtime=30,
    params:
        run=literal(RUN),
        key=lambda wildcards: REPORTS[wildcards.of],
        shards=lambda wildcards: shards_of(REPORTS[wildcards.of]),
    shell:
        "scalefold mlperf-log {params.run:q} --key {params.key} --shards {params.shards:q}"
        " --out {output:q} 2>&1 | tee -i {log:q}"


rule config:
    # The complete configuration, as a record of the run.
    output:
        f"{RUN}/config.yaml",
    log:
        f"{RUN}/logs/config.log",
    benchmark:
        f"{RUN}/benchmarks/config.tsv"
    conda:
        DATA_ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(500),
        runtime=5,
    params:
        *settings(*CONFIG.model_dump()),
        config=given_configuration,
    shell:
        "scalefold config show {params.config} > {output:q} 2> {log:q}"
