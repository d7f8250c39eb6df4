# Evaluation on the averaged weights. One job, rule `evaluate_all`, evaluates the checkpoints of a
# training run that lack an evaluation: when it has ended, or with `evaluation.mode: async` while it goes
# on. Rule `evaluate` evaluates one checkpoint, for what that job has missed.


checkpoint evaluate_all:
    # With the inputs of the training, it runs beside it where resources suffice.
    input:
        rules.train.input if ASYNC else last_mark,
    output:
        touch(EVALUATED),
    log:
        "<logs>/evaluate_all/{key}-{asked}.log",
    benchmark:
        "<benchmarks>/evaluate_all/{key}-{asked}.tsv"
    retries: 2
    conda:
        ENVIRONMENT
    container:
        None  # see in_container
    threads: 1
    resources:
        mem_mb=growing(16000),
        runtime=2880,
        gpu=1,
    params:
        config=given_training,
        launcher=evaluator,
        shards=training_shards,
        training=TRAINING,
        evaluations=EVALUATIONS,
    shell:
        "rm -f {params.evaluations:q}/evaluated-*.done;"
        " {params.launcher} evaluate --follow {params.training:q} {params.config} --strict"
        " --shards {params.shards:q} --out {params.evaluations:q} 2>&1 | tee -i {log:q}"


rule evaluate:
    input:
        checkpoint=ready_mark,
        # Other data have other checkpoints.
        manifest=lambda wildcards: ancient(training_manifest(wildcards)),
    output:
        json="<results>/evaluation/{key}/step-{step}.json",
        table="<results>/evaluation/{key}/step-{step}.tsv",
    log:
        "<logs>/evaluate/{key}/step-{step}.log",
    benchmark:
        "<benchmarks>/evaluate/{key}/step-{step}.tsv"
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
        *training_settings("evaluation", without="evaluation.mode"),
        config=given_training,
        checkpoint=CHECKPOINT,
        shards=training_shards,
    shell:
        "scalefold evaluate {params.checkpoint:q} {params.config} --strict"
        " --shards {params.shards:q} --out {output.json:q} 2>&1 | tee -i {log:q}"
