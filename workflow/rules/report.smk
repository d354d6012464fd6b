# Draws the page.
rule report:
    input:
        rules.collect.output,
    output:
        RESULTS / "report.html",
    log:
        RESULTS / "logs/report.log",
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
        code=code_of("report"),
    shell:
        "{params.longca} report {params.study:q} --results {params.results:q} > {log:q} 2>&1"
