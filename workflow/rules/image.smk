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
        image=IMAGE.wanted if IMAGE else "",
        digest=CONFIG.image_digest,
        key=CONFIG.image_key,
    shell:
        "{params.longca} image get {params.image:q} --digest={params.digest:q} --key={params.key:q} 2>&1 | tee {log:q}"


# a job that has met another image says so in Slurm's log, which is not printed: Snakemake 9.27 stops at the rule's log, that job has none
onerror:
    if IMAGE:
        check_or_exit(IMAGE, CONFIG.image_digest)
