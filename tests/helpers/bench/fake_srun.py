"""A stand-in for srun's part in a step, on one machine: `python -m tests.helpers.bench.fake_srun NUM_NODES
TASKS_PER_NODE COMMAND …`.

All tasks at once, with the variables that it sets, and the first failure as exit code. "Nodes" are names
only.
"""

import os
import subprocess
import sys


def main() -> int:
    num_nodes = int(sys.argv[1])
    per_node = int(sys.argv[2])
    command = sys.argv[3:]
    job = {
        "SLURM_JOB_ID": os.environ.get("FAKE_JOB_ID", "417"),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": str(num_nodes * per_node),
        "SLURM_STEP_NODELIST": f"gpu[1-{num_nodes}]",
    }
    tasks = []
    for number in range(num_nodes * per_node):
        place = {
            "SLURM_PROCID": str(number),
            "SLURM_LOCALID": str(number % per_node),
            "SLURMD_NODENAME": f"gpu{number // per_node + 1}",
        }
        tasks.append(subprocess.Popen(command, env={**os.environ, **job, **place}))
        print(f"task {number} is pid {tasks[-1].pid}", file=sys.stderr, flush=True)
    codes = [task.wait() for task in tasks]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
