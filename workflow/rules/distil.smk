# Self-distillation: structures of the sequences of `distillation.fasta`, by the weights that a
# training starts from, become chains that it learns from beside the experimental ones. Nothing asks
# for these rules unless a training has a share of them.


def teacher_weights(wildcards):
    """The averaged weights that a training ends with, or given ones."""
    if wildcards.teacher == GIVEN:
        given = CONFIG.distillation.weights or CONFIG.training.initial_weights
        return given.as_posix()
    steps = TRAININGS[wildcards.teacher].training.steps
    return f"{TRAINING.format(key=wildcards.teacher)}/step-{steps:08d}"


def teacher_mark(wildcards):
    """The file whose presence says that a teacher's weights are there."""
    weights = teacher_weights(wildcards)
    if wildcards.teacher == GIVEN:
        return weights
    return mark_of(wildcards.teacher, weights.rpartition("step-")[2])


def teacher_settings(wildcards):
    """Options of `scalefold predict`, but for the weights, which the rule names."""
    config = TRAININGS.get(wildcards.teacher, CONFIG)
    words = alignment_options("distilled")
    words += evaluation_options(config.evaluation, CONFIG.distillation.max_length)
    words += ["--part", f"{wildcards.part}/{CONFIG.distillation.jobs}"]
    return shlex.join(words)


def teacher_options(wildcards, threads):
    given = [Path(teacher_weights(wildcards))] if wildcards.teacher == GIVEN else []
    return teacher_settings(wildcards) + configuration_of_model(
        given, wildcards, threads
    )


use rule predict as predict_distilled with:
    input:
        fasta=lambda wildcards: str(CONFIG.distillation.fasta),
        searched=searches("distilled"),
        checkpoint=teacher_mark,
    output:
        f"{DISTILLED}/predictions/{{part}}/predictions.tsv",
    log:
        "<logs>/predict_distilled/{teacher}/{part}.log",
    benchmark:
        "<benchmarks>/predict_distilled/{teacher}/{part}.tsv"
    params:
        options=teacher_options,
        settings=teacher_settings,  # if they change, it runs again
        checkpoint=teacher_weights,
        out=subpath(output[0], parent=True),


rule distil:
    # The shards of the experimental chains are linked, those of predicted structures are beside them.
    input:
        index=rules.index.output.index,
        manifest=rules.index.output.manifest,
        predictions=expand(
            rules.predict_distilled.output,
            part=[f"{part:05d}" for part in range(CONFIG.distillation.jobs)],
            allow_missing=True,
        ),
    output:
        index=f"{DISTILLED}/shards/index.arrow",
        manifest=f"{DISTILLED}/shards/manifest.json",
        table=f"{DISTILLED}/shards/distilled.tsv",
    log:
        "<logs>/distil/{teacher}.log",
    benchmark:
        "<benchmarks>/distil/{teacher}.tsv"
    conda:
        ENVIRONMENT
    threads: 4
    resources:
        mem_mb=growing(16000),
        runtime=1440,
    params:
        *settings(
            "distillation.min_length",
            "distillation.max_length",
            "distillation.min_alignment_rows",
            "distillation.min_mean_plddt",
            "features.distilled.min_plddt",
            "shards",
        ),
        config=given_configuration,
        alignments=shlex.join(alignment_options("distilled")),
        predictions=lambda wildcards, input: [
            os.path.dirname(table) for table in input.predictions
        ],
        shards=literal(SHARDS),
        out=subpath(output.table, parent=True),
    shell:
        "scalefold distil {params.predictions:q} {params.config} {params.alignments}"
        " --shards {params.shards:q} --out {params.out:q} --jobs {threads} 2>&1 | tee -i {log:q}"
