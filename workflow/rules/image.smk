# Obtains the container once, by building or pulling it, and notes its digest. Without `--sdm apptainer` there is none.
rule image:
    output:
        IMAGE.stamp if IMAGE else "images/none",
    log:
        RESULTS / "logs/image.log",
    localrule: True
    container:
        outside
    params:
        longca=f"{sys.executable} -m longca",
        image=CONFIG.image,
        digest=CONFIG.image_digest,
    shell:
        "{params.longca} image get {params.image:q} --digest={params.digest:q} 2>&1 | tee {log:q}"
