# Training. Its checkpoints stay undeclared: Snakemake deletes the declared outputs of a job that
# failed or runs again, and an interrupted training goes on from its last checkpoint.
rule train:
    input:
        index=f"{SHARDS}/index.arrow",
        manifest=f"{SHARDS}/manifest.json",
        config=ancient(f"{RUN}/config.yaml"),
    output:
        f"{RUN}/training.done",
    log:
        f"{RUN}/logs/train.log",
    benchmark:
        f"{RUN}/benchmarks/train.tsv"
    threads: 8
    resources:
        mem_mb=32000,
        runtime=2880,
        gpu=1,
    params:
        settings=settings(
            "seed", "features", "sampling", "model", "loss", "optimiser", "training"
        ),
        shards=SHARDS,
        run=RUN,
    shell:
        "{{ scalefold train --config {input.config:q} --shards {params.shards:q}"
        " --out {params.run:q} --resume && touch {output:q}; }} 2>&1 | tee -a {log:q}"
