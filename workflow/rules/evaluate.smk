# Evaluation on the averaged weights. Rule `evaluate` evaluates one checkpoint after training. With
# `evaluation.mode: async`, rule `evaluate_beside` evaluates checkpoints while training goes on, and
# rule `evaluate` those that it has missed.


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


checkpoint evaluate_beside:
    # Has the inputs of the training, so they run beside each other where resources suffice.
    input:
        rules.train.input,
    output:
        touch("<results>/evaluation/{key}/beside.done"),
    log:
        "<logs>/evaluate_beside/{key}.log",
    benchmark:
        "<benchmarks>/evaluate_beside/{key}.tsv"
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
        launcher=launcher_beside,
        shards=training_shards,
        training=TRAINING,
        evaluations=f"{RUN}/evaluation/{{key}}",
        # Always another value: the rule runs whenever a training has not ended.
        asked=lambda wildcards: time.time_ns(),
    shell:
        "{params.launcher} evaluate --follow {params.training:q} {params.config} --strict"
        " --shards {params.shards:q} --out {params.evaluations:q} 2>&1 | tee -i {log:q}"
