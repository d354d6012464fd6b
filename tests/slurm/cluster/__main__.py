"""`python -m tests.slurm.cluster [--nodes N] COMMAND …` runs a command as a plain user on a cluster made for
it."""

import argparse
import subprocess
import sys

from tests.slurm.cluster.cluster import Cluster

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--no-accounting", dest="accounting", action="store_false")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    with Cluster(arguments.nodes, accounting=arguments.accounting) as cluster:
        done = subprocess.run(cluster.space.as_user(arguments.command, cluster.space.home), check=False)
    sys.exit(done.returncode)
