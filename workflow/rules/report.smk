# The report: one HTML file that opens offline, and the same numbers as JSON.
rule report:
    input:
        evaluations=EVALUATIONS,
        trained=f"{RUN}/training.done",
        manifest=f"{SHARDS}/manifest.json",
    output:
        html=f"{RUN}/report.html",
        json=f"{RUN}/report.json",
    log:
        f"{RUN}/logs/report.log",
    benchmark:
        f"{RUN}/benchmarks/report.tsv"
    threads: 1
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        run=RUN,
    shell:
        "scalefold report {params.run:q} 2>&1 | tee {log:q}"
