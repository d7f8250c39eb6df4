# Structures of given sequences, by the weights that the last training ends with or by given ones. Alignments are
# searched on CPUs, by jobs that wait for no training, so that a GPU never waits for a search.
SEARCHES = searches("predictions", CONFIG.predict)
FASTAS = {
    "predictions": CONFIG.predict.fasta,
    "distilled": CONFIG.distillation.fasta,
}

if CONFIG.search is not None:

    rule search_sequences:
        input:
            lambda wildcards: str(FASTAS[wildcards.purpose]),
        output:
            f"{SEARCHED_SEQUENCES}/rejected-search-{{part}}.tsv",
        log:
            f"{RUN}/logs/search_sequences/{{purpose}}/{{part}}.log",
        benchmark:
            f"{RUN}/benchmarks/search_sequences/{{purpose}}/{{part}}.tsv"
        retries: 2
        conda:
            DATA_ENVIRONMENT
        threads: CONFIG.search.threads
        resources:
            mem_mb=growing(CONFIG.search.job_megabytes),
            runtime=1440,
        params:
            *settings(
                "search.steps", "search.given", "search.query_alone", "search.jobs"
            ),
            config=given_configuration,
            out=lambda wildcards: SEARCHED_SEQUENCES.format(purpose=wildcards.purpose),
        shell:
            "scalefold search {input:q} {params.config} --out {params.out:q}"
            " --part {wildcards.part}/{CONFIG.search.jobs} 2>&1 | tee -i {log:q}"


rule predict:
    # The table and a folder a target lie beside the mark. They are not declared: they stay if a target
    # fails, and a run that was interrupted goes on with what is missing.
    input:
        fasta=lambda wildcards: str(CONFIG.predict.fasta),
        searched=SEARCHES,
        checkpoint=ready_mark,
    output:
        touch(f"{PREDICTIONS}/.predicted"),
    log:
        f"{RUN}/logs/predict/{{key}}/step-{{step}}.log",
    benchmark:
        f"{RUN}/benchmarks/predict/{{key}}/step-{{step}}.tsv"
    conda:
        ENVIRONMENT
    threads: 2
    resources:
        mem_mb=growing(16000),
        runtime=1440,
        gpu=1,
    params:
        options=predict_options,
        checkpoint=f"{TRAINING}/step-{{step}}",
        out=PREDICTIONS,
    shell:
        "scalefold predict {input.fasta:q} {params.options} --weights {params.checkpoint:q}"
        " --out {params.out:q} 2>&1 | tee -i {log:q}"


rule relax:
    # On CPUs, so that no GPU waits for it.
    input:
        f"{PREDICTIONS}/.predicted",
    output:
        touch(f"{RELAXED}/.relaxed"),
    log:
        f"{RUN}/logs/relax/{{key}}/step-{{step}}.log",
    benchmark:
        f"{RUN}/benchmarks/relax/{{key}}/step-{{step}}.tsv"
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
        searched=SEARCHES,
        weights=predict_given_weights,
    output:
        touch(f"{PREDICTIONS_GIVEN}/.predicted"),
    log:
        f"{RUN}/logs/predict/given.log",
    benchmark:
        f"{RUN}/benchmarks/predict/given.tsv"
    params:
        options=predict_given_command,
        settings=predict_given_options,  # if they change, it runs again
        checkpoint=predict_first_weights,
        out=subpath(output[0], parent=True),


use rule relax as relax_given with:
    input:
        f"{PREDICTIONS_GIVEN}/.predicted",
    output:
        touch(f"{RELAXED_GIVEN}/.relaxed"),
    log:
        f"{RUN}/logs/relax/given.log",
    benchmark:
        f"{RUN}/benchmarks/relax/given.tsv"
