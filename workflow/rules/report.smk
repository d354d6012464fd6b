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
        hardware=HARDWARE,
    shell:
        "{params.longca} report {params.study:q} --results {params.results:q} > {log:q} 2>&1"


# Judges the study's claims by these records, and draws its figures and tables.
rule paper:
    input:
        rules.collect.output,
    output:
        RESULTS / "paper/index.html",
    log:
        RESULTS / "logs/paper.log",
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
        folder=RESULTS / "paper",
        code=code_of("paper"),
        hardware=HARDWARE,
    shell:
        "{params.longca} paper {params.study:q} --results {params.results:q} --out {params.folder:q} > {log:q} 2>&1"
