# Self-distillation: structures of the sequences of `distillation.fasta`, by the weights that a
# training run starts from, become chains that it learns from beside the experimental ones. Nothing asks
# for these rules unless a training run has a share of them.


use rule predict as predict_distilled with:
    input:
        fasta=lambda wildcards: str(CONFIG.distillation.fasta),
        searched=searches("distilled"),
        checkpoint=teacher_mark,
    output:
        "<results>/distilled/{teacher}/predictions/{part}/predictions.tsv",
    log:
        "<logs>/predict_distilled/{teacher}/{part}.log",
    benchmark:
        "<benchmarks>/predict_distilled/{teacher}/{part}.tsv"
    params:
        options=with_model(teacher_options, given_teacher),
        settings=teacher_options,  # if they change, it runs again
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
        index="<results>/distilled/{teacher}/shards/index.arrow",
        manifest="<results>/distilled/{teacher}/shards/manifest.json",
        table="<results>/distilled/{teacher}/shards/distilled.tsv",
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
