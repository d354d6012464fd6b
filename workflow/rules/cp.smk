# Measures context parallelism: one process a rank, all on one node.
rule cp:
    input:
        STUDY_FILE,
        rules.masks.output,
        IMAGE_STAMP,
    output:
        touch(RESULTS / "shards/{shard}.done"),
    log:
        RESULTS / "logs/{shard}.log",
    wildcard_constraints:
        shard="cp-.+",
    container:
        image
    threads: workflow.cores or 8
    resources:
        device=1,
        gpu=lambda wildcards: SHARDS[wildcards.shard].world,
        mem_mb=lambda wildcards: 32000 * SHARDS[wildcards.shard].world,
        runtime=shard_minutes,
    params:
        longca=LONGCA,
        study=CONFIG.study,
        results=CONFIG.results,
        device=CONFIG.device,
        minutes=CONFIG.shard_minutes,
        progress=CONFIG.progress,
        code=source_digest("core", "data", "masks", "kernels", "cp", "bench"),
    shell:
        "{params.longca} run {params.study:q} --shard {wildcards.shard} --shard-minutes {params.minutes}"
        " --results {params.results:q} --device {params.device} --progress {params.progress} --log {log:q}"
