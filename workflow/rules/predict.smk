# Structures of the sequences of `predict.fasta`, by the weights that the last training ends with
# (`predict`), or by given ones (`predict_given`), and their relaxation.
PREDICTIONS = f"{RUN}/predictions/{{key}}/step-{{step}}"


def predictions(wildcards):
    """What `all` asks for: nothing without sequences."""
    if CONFIG.predict.fasta is None:
        return []
    result = (
        "relaxed/{}/.relaxed" if CONFIG.predict.relax else "predictions/{}/.predicted"
    )
    if CONFIG.predict.weights:
        return f"{RUN}/{result}".format("given")
    key, config = list(TRAININGS.items())[-1]
    # With an evaluation beside it, a training may end early.
    step = published_at_end(key)[-1] if ASYNC else config.training.steps
    return f"{RUN}/{result}".format(f"{key}/step-{step:08d}")


def evaluation_options(evaluation, max_length):
    """Passes, precision and seed as in evaluations."""
    used = {**evaluation.model_dump(mode="json"), "max_length": max_length}
    names = ("recycling", "precision", "max_length", "seed")
    return [w for name in names for w in ("--set", f"evaluation.{name}={used[name]}")]


def predict_options(wildcards):
    """Options of `scalefold predict`, but for the first weights, which the rule names."""
    trained = wildcards.get("key")
    settings = (TRAININGS[trained] if trained else CONFIG).evaluation
    words = ["--early-stop", str(CONFIG.predict.early_stop_angstrom)]
    words += alignment_options("predictions")
    words += evaluation_options(settings, settings.max_length)
    for path in CONFIG.predict.weights[1:]:
        words += ["--weights", path.as_posix()]
    return shlex.join(words)


def configuration_of_model(weights, wildcards, threads):
    """The configuration, unless all given weights say which model they are of."""
    from scalefold.predict.members import says_model

    if all(says_model(path) for path in weights):
        return ""
    return f" {given_configuration(wildcards, threads)}"


def predict_given_options(wildcards, threads):
    weights = CONFIG.predict.weights
    return predict_options(wildcards) + configuration_of_model(
        weights, wildcards, threads
    )


def predict_given_weights(wildcards):
    """Without them Snakemake would take predictions that are there for up to date."""
    for path in CONFIG.predict.weights:
        if not path.exists():
            raise WorkflowError(
                f"predict.weights: {path}: no such weight file or checkpoint folder. Correct the path"
            )
    return [path.as_posix() for path in CONFIG.predict.weights]


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
        checkpoint=f"{TRAINING}/step-{{step}}",
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
        weights=predict_given_weights,
    output:
        touch("<results>/predictions/given/.predicted"),
    log:
        "<logs>/predict/given.log",
    benchmark:
        "<benchmarks>/predict/given.tsv"
    params:
        options=predict_given_options,
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
