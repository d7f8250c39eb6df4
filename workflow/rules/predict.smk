# Structures of the sequences of `predict.fasta`, by the weights that the last training ends with
# (`predict`), or by given ones (`predict_given`), and their relaxation.
PREDICTIONS = f"{RUN}/predictions/{{key}}/step-{{step}}"


rule predict:
    # The table and a folder a target lie beside the mark. They are not declared: they stay if a target
    # fails, and a run that was interrupted goes on with what is missing.
    input:
        fasta=lambda wildcards: str(CONFIG.predict.fasta),
        searched=searches("predictions"),
        checkpoint=ready_mark,
    output:
        touch(f"{PREDICTIONS}/.predicted"),
    log:
        "<logs>/predict/{key}/step-{step}.log",
    benchmark:
        "<benchmarks>/predict/{key}/step-{step}.tsv"
    conda:
        ENVIRONMENT
    threads: 2
    resources:
        mem_mb=growing(16000),
        runtime=1440,
        gpu=1,
    params:
        options=predict_options,
        checkpoint=CHECKPOINT,
        out=PREDICTIONS,
    shell:
        "scalefold predict {input.fasta:q} {params.options} --weights {params.checkpoint:q}"
        " --out {params.out:q} 2>&1 | tee -i {log:q}"


rule relax:
    # On CPUs, so that no GPU waits for it.
    input:
        rules.predict.output,
    output:
        touch("<results>/relaxed/{key}/step-{step}/.relaxed"),
    log:
        "<logs>/relax/{key}/step-{step}.log",
    benchmark:
        "<benchmarks>/relax/{key}/step-{step}.tsv"
    conda:
        ENVIRONMENT
    threads: 4
    resources:
        mem_mb=growing(8000),
        runtime=1440,
    params:
        predictions=subpath(input[0], parent=True),
        out=subpath(output[0], parent=True),
    shell:
        "scalefold relax {params.predictions:q} --out {params.out:q} --threads {threads}"
        " 2>&1 | tee -i {log:q}"


use rule predict as predict_given with:
    input:
        fasta=lambda wildcards: str(CONFIG.predict.fasta),
        searched=searches("predictions"),
        weights=predict_weights,
    output:
        touch("<results>/predictions/given/.predicted"),
    log:
        "<logs>/predict/given.log",
    benchmark:
        "<benchmarks>/predict/given.tsv"
    params:
        options=with_model(predict_options, lambda wildcards: CONFIG.predict.weights),
        settings=predict_options,  # if they change, it runs again
        checkpoint=lambda wildcards: CONFIG.predict.weights[0].as_posix(),
        out=subpath(output[0], parent=True),


use rule relax as relax_given with:
    input:
        rules.predict_given.output,
    output:
        touch("<results>/relaxed/given/.relaxed"),
    log:
        "<logs>/relax/given.log",
    benchmark:
        "<benchmarks>/relax/given.tsv"
