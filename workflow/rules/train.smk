# Training. Its checkpoints stay undeclared: Snakemake deletes the declared outputs of a job that
# failed or runs again, and an interrupted training goes on from its last checkpoint. With other
# settings it has another key, thus another folder; with other data it starts anew, and the earlier
# one is moved to replaced/ in the folder.
rule train:
    input:
        index=f"{SHARDS}/index.arrow",
        manifest=f"{SHARDS}/manifest.json",
    output:
        f"{TRAINING}/training.done",
    log:
        f"{RUN}/logs/train/{KEY}.log",
    benchmark:
        f"{RUN}/benchmarks/train/{KEY}.tsv"
    threads: 8
    resources:
        mem_mb=32000,
        runtime=2880,
        gpu=1,
    params:
        *settings("training"),  # all else that matters is in the key
        shards=literal(SHARDS),
        training=literal(TRAINING),
    shell:
        "{{ scalefold train {CONFIG_OPTIONS} --shards {params.shards:q}"
        " --out {params.training:q} --resume --set-aside && touch {output:q}; }} 2>&1 | tee -i -a {log:q}"
