# The whole study: corpora → masks → kernels and cp → playoff → collect → report. Each stage is one file in workflow/rules.
from snakemake.utils import min_version, validate

min_version("9.27")


configfile: "config/config.yaml"


validate(config, "workflow/schemas/config.schema.json")


include: "workflow/rules/common.smk"
include: "workflow/rules/image.smk"
include: "workflow/rules/corpora.smk"
include: "workflow/rules/masks.smk"
include: "workflow/rules/kernels.smk"
include: "workflow/rules/cp.smk"
include: "workflow/rules/playoff.smk"
include: "workflow/rules/collect.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/left_out.smk"


rule all:
    default_target: True
    input:
        RESULTS / "report.html",
        rules.left_out.output if LEFT_OUT else [],
