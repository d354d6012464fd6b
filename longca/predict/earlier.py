"""Records of earlier kernels of this project: their times are not those of its present kernels.

It imports nothing of masks, which pages of records do not load.
"""

BANDS = ("band", "band_atomic")
# commits of records of earlier kernels of `band`
EARLIER_RECORDS = ("472f5e6", "7df73e2", "d3404dd", "8337dc1", "50cde0b", "ad40a9a")


def ran_earlier(kernel: str, git_sha: str) -> bool:
    """True if records of a kernel at a commit are of `band` before its present kernels."""
    return kernel in BANDS and git_sha.startswith(EARLIER_RECORDS)
