# Measures kernels on one device. `device` keeps measuring jobs apart on one machine; clusters do so by their GPUs.
rule kernels:
    input:
        STUDY_FILE,
        rules.masks.output,
    output:
        touch(RESULTS / "shards/{shard}.done"),
    log:
        RESULTS / "logs/{shard}.log",
    wildcard_constraints:
        shard="kernel-.+",
    params:
        longca=LONGCA,
        study=CONFIG.study,
        results=CONFIG.results,
        device=CONFIG.device,
        progress=CONFIG.progress,
        code=source_digest("core", "data", "masks", "kernels", "bench"),
    threads: workflow.cores or 8
    resources:
        device=1,
        gpu=1,
        mem_mb=32000,
        runtime=shard_minutes,
    shell:
        "{params.longca} run {params.study:q} --shard {wildcards.shard} --results {params.results:q}"
        " --device {params.device} --progress {params.progress} --log {log:q}"
