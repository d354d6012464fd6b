# Measures kernels on one device. `device` keeps measuring jobs apart on one machine; clusters do so by their GPUs.
rule kernels:
    input:
        STUDY_FILE,
        rules.masks.output,
        IMAGE_STAMP,
    output:
        STAMPS / f"{{shard}}{STAMP}",
    log:
        RESULTS / "logs/{shard}.log",
    wildcard_constraints:
        shard="kernel-.+",
    # its controls are the device's: a shard of strategies that comes later on the same device does not measure them again
    priority: 1
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
        code=code_of("run", without=("longca.lab.bench.measure.cp", "longca.cp")),
    shell:
        "{params.longca} run {params.study:q} --shard {wildcards.shard} --shard-minutes {params.minutes}"
        " --retry={resources.retry} --results {params.results:q} --device {params.device} --progress {params.progress} --log {log:q}"
        " --stamp {output:q} --exit-zero --expect-cells {params.num_cells}"
