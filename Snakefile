# The workflow of this checkout, for `snakemake` in its root; workflow/Snakefile is what other projects deploy.
include: "workflow/Snakefile"


workflow.default_target = "all"  # what is included does not choose it
