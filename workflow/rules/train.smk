# Training. Its checkpoints stay undeclared: Snakemake deletes the declared outputs of a job that
# failed or runs again, and an interrupted training goes on from its last checkpoint. With other
# settings or data it starts anew, and the earlier one is moved to replaced/.
rule train:
    input:
        index=f"{SHARDS}/index.arrow",
        manifest=f"{SHARDS}/manifest.json",
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
        *settings(
            "seed", "features", "sampling", "model", "loss", "optimiser", "training"
        ),
        shards=literal(SHARDS),
        run=literal(RUN),
    shell:
        "{{ scalefold train {CONFIG_OPTIONS} --shards {params.shards:q}"
        " --out {params.run:q} --resume --set-aside && touch {output:q}; }} 2>&1 | tee -i -a {log:q}"
