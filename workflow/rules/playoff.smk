# Times the fastest kernels of each case again, in turn, on one device. On one machine the job that measures all kernels does that itself.
if HAS_PLAYOFF_JOB:

    rule playoff:
        input:
            shard_files("kernel"),
            rules.masks.output,
            IMAGE_STAMP,
        output:
            PLAYOFF_STAMP,
        log:
            RESULTS / "logs/playoff.log",
        container:
            outside
        threads: workflow.resource_settings.cores or SITE.cores_per_gpu
        resources:
            **{name: playing(name) for name in MEASURING_RESOURCES},
            runtime=playoff_runtime,
            retry=lambda wildcards, attempt: "error" if attempt > 1 else "",
            device=1,
        params:
            longca=longca_on_one_device,
            study=CONFIG.study,
            results=CONFIG.results,
            device=CONFIG.device,
            progress=CONFIG.progress,
            code=code_of("run", without=("longca.lab.bench.measure.cp", "longca.cp")),
        shell:
            "{params.longca} run {params.study:q} --playoff-only --retry={resources.retry} --results {params.results:q}"
            " --device {params.device} --progress {params.progress} --log {log:q} --stamp {output:q} --exit-zero"
