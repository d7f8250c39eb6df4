# From raw protein data to trained weights and a report: `snakemake --profile local` runs what
# config.yaml says, `snakemake --profile local --configfile demo/config.yaml` the demo.
from snakemake.utils import min_version

min_version("9.27")

if not workflow.overwrite_configfiles:

    configfile: "config.yaml"


report: "workflow/report/workflow.rst"


# In the order of the data. Each rule calls one command of `scalefold`.
include: "workflow/rules/settings.smk"  # the checked configuration, and what all rules use
include: "workflow/rules/raw.smk"  # fetch: raw files of each bucket of chains
include: "workflow/rules/search.smk"  # search: alignments that nobody has
include: "workflow/rules/shards.smk"  # pack, verify: Arrow shards of the raw files
include: "workflow/rules/checkpoints.smk"  # functions: which checkpoints are there
include: "workflow/rules/launcher.smk"  # functions: how processes of a training start
include: "workflow/rules/train.smk"  # train: weights of each training
include: "workflow/rules/evaluate.smk"  # evaluate: scores of each checkpoint
include: "workflow/rules/report.smk"  # report, mlperf-log
include: "workflow/rules/predict.smk"  # predict, relax: structures of sequences
include: "workflow/rules/distil.smk"  # distil: predicted structures to learn from


TRAINED_AND_EVALUATED = [
    # Snakemake only makes a deleted file again if it is asked for.
    rules.index.input,
    rules.index.output,
    expand(TRAINED, key=TRAININGS),
    all_evaluations,
    expand("<results>/report{of}.{kind}", of=REPORTS, kind=["html", "json"]),
    expand("<results>/mlperf{of}.log", of=REPORTS) if CONFIG.preset == "mlperf" else [],
]


rule all:
    default_target: True
    input:
        *([] if CONFIG.predict.weights else TRAINED_AND_EVALUATED),
        searches("predictions"),
        predictions,
        "<results>/config.yaml",
