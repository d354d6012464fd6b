# Fails where plug-ins could not be loaded, after the others were measured and the page was made.
rule left_out:
    input:
        RESULTS / "report.html",
    output:
        RESULTS / "left_out",
    log:
        RESULTS / "logs/left_out.log",
    retries: 0
    localrule: True
    container:
        outside
    params:
        reasons=LEFT_OUT,
    shell:
        'printf "left out: %s\\n" {params.reasons:q} | tee {log:q} >&2; exit 1'
