# Builds every mask once: its digest is what the measuring jobs must meet.
rule masks:
    input:
        STUDY_FILE,
        rules.corpora.output,
    output:
        RESULTS / "masks.json",
    log:
        RESULTS / "logs/masks.log",
    container:
        image
    resources:
        **CPU_JOB,
        mem_mb=growing(8000),
        runtime=growing(30),
    params:
        longca=LONGCA,
        study=CONFIG.study,
        code=code_of("data", without=("longca.data.build",)),
    shell:
        "{params.longca} data masks {params.study:q} --out {output:q} > {log:q} 2>&1"
