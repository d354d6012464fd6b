# Measures context parallelism: one process a rank. A job on one node starts its ranks itself, one on several by srun.
# On one machine the same job measures all kernels, too.
rule cp:
    input:
        STUDY_FILE,
        rules.masks.output,
        IMAGE_STAMP,
    output:
        STAMPS / f"{{shard}}{STAMP}",
    log:
        RESULTS / "logs/{shard}.log",
    wildcard_constraints:
        shard="(cp|all)-.+",
    container:
        outside
    threads: workflow.resource_settings.cores or SITE.cores_per_gpu
    resources:
        **MEASURING_JOB,
        device=1,
    params:
        longca=longca_measuring,
        study=CONFIG.study,
        results=CONFIG.results,
        device=CONFIG.device,
        minutes=CONFIG.shard_minutes,
        progress=CONFIG.progress,
        num_cells=num_cells,
        code=code_of("run"),
    shell:
        "{params.longca} run {params.study:q} --shard {wildcards.shard} --shard-minutes {params.minutes}"
        " --retry={resources.retry} --results {params.results:q} --device {params.device} --progress {params.progress} --log {log:q}"
        " --stamp {output:q} --exit-zero --expect-cells {params.num_cells}"
