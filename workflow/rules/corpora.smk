# Draws the documents of every mask that has some.
rule corpora:
    input:
        STUDY_FILE,
        IMAGE_STAMP,
    output:
        RESULTS / "corpora.json",
    log:
        RESULTS / "logs/corpora.log",
    container:
        image
    resources:
        **CPU_JOB,
        mem_mb=growing(2000),
        runtime=growing(10),
    params:
        longca=LONGCA,
        study=CONFIG.study,
        code=code_of("data", without=("longca.data.build",)),
    shell:
        "{params.longca} data sample {params.study:q} --out {output:q} > {log:q} 2>&1"
