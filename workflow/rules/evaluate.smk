# Evaluation, one job a published checkpoint, on the averaged weights.
rule evaluate:
    input:
        checkpoint=ready_mark,
        manifest=ancient(f"{SHARDS}/manifest.json"),  # other data have other checkpoints
    output:
        json=f"{RUN}/evaluation/{{key}}/step-{{step}}.json",
        table=f"{RUN}/evaluation/{{key}}/step-{{step}}.tsv",
    log:
        f"{RUN}/logs/evaluate/{{key}}/step-{{step}}.log",
    benchmark:
        f"{RUN}/benchmarks/evaluate/{{key}}/step-{{step}}.tsv"
    retries: 2
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        mem_mb=growing(16000),
        runtime=240,
        gpu=1,
    params:
        # The mode says when, not what.
        *training_settings("evaluation", without=["evaluation.mode"]),
        config=given_training,
        checkpoint=f"{TRAINING}/step-{{step}}",
        shards=literal(SHARDS),
    shell:
        "scalefold evaluate {params.checkpoint:q} {params.config}"
        " --shards {params.shards:q} --out {output.json:q} 2>&1 | tee -i {log:q}"
