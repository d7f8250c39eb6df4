# From raw protein data to trained weights and a report. The demo: `snakemake --profile local`;
# a run of your own: `snakemake --profile local --configfile my.yaml`. Without any --configfile,
# config.yaml is used. Settings are checked in workflow/rules/settings.smk.
from snakemake.utils import min_version

min_version("9.27")

if not workflow.overwrite_configfiles:

    configfile: "config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/settings.smk"
include: "workflow/rules/interruption.smk"
include: "workflow/rules/missing.smk"
include: "workflow/rules/elsewhere.smk"
include: "workflow/rules/raw.smk"
include: "workflow/rules/shards.smk"
include: "workflow/rules/launcher.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/published.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        # Also what the report does not ask for once it is there: so it is made again if deleted.
        rules.index.input,
        rules.index.output,
        expand(TRAINED, key=KEYS.values()),
        EVALUATIONS,
        expand(f"{RUN}/report{{of}}.{{kind}}", of=REPORTS, kind=["html", "json"]),
        expand(f"{RUN}/mlperf{{of}}.log", of=REPORTS)
        if CONFIG.preset == "mlperf"
        else [],
        f"{RUN}/config.yaml",
