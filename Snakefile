# From raw protein data to trained weights and a report: `snakemake --profile local` runs what
# config.yaml says, `snakemake --profile local --configfile demo/config.yaml` the demo.
from snakemake.utils import min_version

min_version("9.27")

if not workflow.overwrite_configfiles:

    configfile: "config.yaml"


report: "workflow/report/workflow.rst"


# Functions.
include: "workflow/rules/settings.smk"  # the checked configuration, and what all rules use
include: "workflow/rules/mirrors.smk"  # raw files on local mirrors
include: "workflow/rules/checkpoints.smk"  # what a training run learns from, and what it has left
include: "workflow/rules/launcher.smk"  # how the processes of a training run are started
include: "workflow/rules/predictions.smk"  # what `scalefold predict` is given
# Rules, in the order of the data. Each calls one command of `scalefold`.
include: "workflow/rules/raw.smk"  # fetch: raw files, from mirrors to one folder
include: "workflow/rules/search.smk"  # unaligned, search: alignments that no mirror has
include: "workflow/rules/shards.smk"  # structures, pack, index, verify: Arrow shards of raw files
include: "workflow/rules/train.smk"  # train: weights
include: "workflow/rules/evaluate.smk"  # evaluate: scores of checkpoints
include: "workflow/rules/report.smk"  # report, mlperf-log: a page and numbers of each training run
include: "workflow/rules/predict.smk"  # predict, relax: structures of sequences
include: "workflow/rules/distil.smk"  # predict, distil: predicted structures to learn from


TRAINED_AND_EVALUATED = [
    # Snakemake only makes a deleted file again if it is asked for.
    rules.index.input,
    rules.index.output,
    expand(TRAINED, key=TRAININGS),
    *[lambda wildcards, key=key: evaluations(key) for key in TRAININGS],
    expand("<results>/report{of}.{kind}", of=REPORTS, kind=["html", "json"]),
    expand("<results>/mlperf{of}.log", of=REPORTS if CONFIG.preset == "mlperf" else []),
]


rule all:
    default_target: True
    input:
        *([] if CONFIG.predict.weights else TRAINED_AND_EVALUATED),
        searches("predictions"),
        predictions,
        "<results>/config.yaml",
    localrule: True


rule config:
    # The complete configuration, as a record of the run.
    output:
        "<results>/config.yaml",
    log:
        "<logs>/config.log",
    benchmark:
        "<benchmarks>/config.tsv"
    localrule: True
    conda:
        "envs/data.yaml"
    threads: 1
    resources:
        mem_mb=growing(500),
        runtime=5,
    params:
        *settings(*CONFIG.model_dump()),
        config=given_configuration,
    shell:
        "scalefold config show {params.config} > {output:q} 2> {log:q}"
