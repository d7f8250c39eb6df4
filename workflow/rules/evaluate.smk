# Evaluation, one job a published checkpoint, on the averaged weights.
def published_steps():
    """Steps at which training publishes a checkpoint: 0, every so many, and the last."""
    last, every = CONFIG.training.steps, CONFIG.training.checkpoint_every
    steps = sorted({*range(0, last, every), last})
    kept = CONFIG.training.keep_checkpoints
    return [f"{step:08d}" for step in (steps[-kept:] if kept else steps)]


EVALUATIONS = expand(f"{RUN}/evaluation/step-{{step}}.json", step=published_steps())


rule evaluate:
    input:
        trained=f"{RUN}/training.done",
        manifest=f"{SHARDS}/manifest.json",
        config=ancient(f"{RUN}/config.yaml"),
    output:
        f"{RUN}/evaluation/step-{{step}}.json",
    log:
        f"{RUN}/logs/evaluate/step-{{step}}.log",
    benchmark:
        f"{RUN}/benchmarks/evaluate/step-{{step}}.tsv"
    threads: 1
    resources:
        mem_mb=16000,
        runtime=240,
        gpu=1,
    params:
        settings=settings("evaluation", "features", "model"),
        checkpoint=f"{RUN}/weights/step-{{step}}",
        shards=SHARDS,
    shell:
        "scalefold evaluate {params.checkpoint:q} --config {input.config:q}"
        " --shards {params.shards:q} --out {output:q} 2>&1 | tee {log:q}"
