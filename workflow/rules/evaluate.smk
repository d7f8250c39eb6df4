# Evaluation, one job a published checkpoint, on the averaged weights.
STEPS = [f"{step:08d}" for step in CONFIG.training.published_steps()]
EVALUATIONS = expand(f"{RUN}/evaluation/{KEY}/step-{{step}}.json", step=STEPS)


rule evaluate:
    input:
        trained=f"{TRAINING}/training.done",
        manifest=f"{SHARDS}/manifest.json",
    output:
        json=f"{RUN}/evaluation/{KEY}/step-{{step}}.json",
        table=f"{RUN}/evaluation/{KEY}/step-{{step}}.tsv",
    log:
        f"{RUN}/logs/evaluate/{KEY}/step-{{step}}.log",
    benchmark:
        f"{RUN}/benchmarks/evaluate/{KEY}/step-{{step}}.tsv"
    threads: 1
    resources:
        mem_mb=16000,
        runtime=240,
        gpu=1,
    params:
        *settings("evaluation"),
        checkpoint=f"{TRAINING}/step-{{step}}",
        shards=literal(SHARDS),
    shell:
        "scalefold evaluate {params.checkpoint:q} {CONFIG_OPTIONS}"
        " --shards {params.shards:q} --out {output.json:q} 2>&1 | tee -i {log:q}"
