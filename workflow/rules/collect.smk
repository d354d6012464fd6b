# Gathers the records of all shards into one table.
rule collect:
    input:
        shard_files("kernel"),
        shard_files("cp"),
        playoff_files(),
        rest_of_records,
        behind("tables"),
    output:
        multiext(str(RESULTS / "records"), ".parquet", ".csv", ".json"),
    log:
        RESULTS / "logs/collect.log",
    container:
        image
    resources:
        **CPU_JOB,
        mem_mb=growing(4000),
        runtime=growing(10),
    params:
        longca=LONGCA,
        study=CONFIG.study,
        results=CONFIG.results,
        code=code_of("export"),
        hardware=HARDWARE,
    shell:
        "{params.longca} export {params.study:q} --results {params.results:q} > {log:q} 2>&1"
