# The workflow of this checkout, for `snakemake` in its root; other projects deploy workflow/Snakefile.
include: "workflow/Snakefile"


workflow.default_target = "all"  # what is included does not choose it
