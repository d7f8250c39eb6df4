# The report of each training run: one HTML file that opens offline, and the same numbers as JSON.


STARTED = time.time()


onsuccess:
    # Once for the whole run: the jobs of a cluster have no hooks.
    for html in expand(f"{RUN}/report{{of}}.html", of=REPORTS):
        if os.path.isfile(html) and os.path.getmtime(html) >= STARTED:
            logger.info(f"Report: {html}")


rule report:
    input:
        evaluations=lambda wildcards: evaluations(key_of(wildcards)),
        trained=lambda wildcards: TRAINED.format(key=key_of(wildcards)),
        manifest=training_manifest,
        compared=compared,
    output:
        html=report(
            "<results>/report{of}.html",
            category="Results",
            caption="../report/report.rst",
        ),
        json="<results>/report{of}.json",
    log:
        "<logs>/report{of}.log",
    benchmark:
        "<benchmarks>/report/report{of}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(4000),
        runtime=30,
    params:
        config=given_training,
        run=literal(RUN),
        key=key_of,
        shards=training_shards,
    shell:
        "scalefold report {params.run:q} {params.config} --key {params.key} --shards {params.shards:q}"
        " --out {output.html:q} 2>&1 | tee -i {log:q}"


rule mlperf_log:
    # Part of `all` with the preset mlperf.
    input:
        report=rules.report.output.json,
        manifest=training_manifest,
    output:
        "<results>/mlperf{of}.log",
    log:
        "<logs>/mlperf_log{of}.log",
    benchmark:
        "<benchmarks>/mlperf_log/mlperf{of}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(4000),
        runtime=30,
    params:
        run=literal(RUN),
        key=key_of,
        shards=training_shards,
    shell:
        "scalefold mlperf-log {params.run:q} --key {params.key} --shards {params.shards:q}"
        " --out {output:q} 2>&1 | tee -i {log:q}"
