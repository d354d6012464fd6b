# Draws the page.
rule report:
    input:
        rules.collect.output,
        behind("page"),
    output:
        page=report(
            RESULTS / "report.html",
            caption="../report/page.rst",
            category="The study",
        ),
        figures=report(
            directory(RESULTS / "figures"),
            patterns=["{name}.svg", "{name}.csv"],
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{name}"},
        ),
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
        "mkdir -p {output.figures:q}; {params.longca} report {params.study:q} --results {params.results:q} > {log:q} 2>&1"


# Judges the study's claims by these records, and draws its figures and tables.
rule paper:
    input:
        rules.collect.output,
        behind("paper"),
    output:
        report(
            RESULTS / "paper/index.html",
            caption="../report/paper.rst",
            category="The study",
        ),
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
