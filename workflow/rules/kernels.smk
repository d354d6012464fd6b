# Measures kernels on one device. `device` keeps measuring jobs apart on one machine; clusters do so by their GPUs.
rule kernels:
    input:
        STUDY_FILE,
        rules.masks.output,
        IMAGE_STAMP,
    output:
        touch(RESULTS / "shards/{shard}.done"),
    log:
        RESULTS / "logs/{shard}.log",
    wildcard_constraints:
        shard="kernel-.+",
    container:
        image
    threads: workflow.cores or 8
    resources:
        device=1,
        gpu=1,
        mem_mb=32000,
        runtime=shard_minutes,
    params:
        longca=LONGCA,
        study=CONFIG.study,
        results=CONFIG.results,
        device=CONFIG.device,
        minutes=CONFIG.shard_minutes,
        progress=CONFIG.progress,
        code=source_digest("core", "data", "masks", "kernels", "bench"),
    shell:
        "{params.longca} run {params.study:q} --shard {wildcards.shard} --shard-minutes {params.minutes}"
        " --results {params.results:q} --device {params.device} --progress {params.progress} --log {log:q}"
