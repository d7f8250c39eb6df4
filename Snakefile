# From raw protein data to trained weights and a report: `snakemake --profile local` runs what
# config.yaml says, `snakemake --profile local --configfile demo/config.yaml` the demo.
# workflow/rules/settings.smk checks the settings.
from snakemake.utils import min_version

min_version("9.27")

if not workflow.overwrite_configfiles:

    configfile: "config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/settings.smk"
include: "workflow/rules/mirrors.smk"
include: "workflow/rules/former.smk"
include: "workflow/rules/raw.smk"
include: "workflow/rules/search.smk"
include: "workflow/rules/shards.smk"
include: "workflow/rules/launcher.smk"
include: "workflow/rules/checkpoints.smk"
include: "workflow/rules/sequences.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/predict.smk"
include: "workflow/rules/distil.smk"


TRAINED_AND_EVALUATED = [
    # Snakemake only makes a deleted file again if it is asked for.
    rules.index.input,
    rules.index.output,
    expand(TRAINED, key=KEYS.values()),
    all_evaluations,
    expand(f"{RUN}/report{{of}}.{{kind}}", of=REPORTS, kind=["html", "json"]),
    expand(f"{RUN}/mlperf{{of}}.log", of=REPORTS) if CONFIG.preset == "mlperf" else [],
]


rule all:
    default_target: True
    input:
        *([] if CONFIG.predict.weights else TRAINED_AND_EVALUATED),
        SEARCHES,
        predictions,
        f"{RUN}/config.yaml",
