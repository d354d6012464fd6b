"""Measures one cell on the CPU and prints its status and the modules of longca that it has imported, as JSON.

`python -m tests.helpers.bench.measure_one CELL`, where CELL is the cell as JSON. A process of its own: one
that runs tests has imported more.
"""

import json
import sys

import torch

from longca.lab.studies.cell import Cell
from longca.lab.studies.grid import Measure


def main(text: str) -> None:
    cell = Cell.model_validate_json(text)
    measure = Measure.fixed(warmup=1, repeats=3)
    device = torch.device("cpu")
    if cell.kind == "cp":
        from longca.cp.comm.backend import Comm
        from longca.lab.bench.measure.cp import measure_cp

        comm = Comm(0, cell.world, 0, "", "cpu")
        result = measure_cp(cell, measure, device, comm)
        comm.close()
    else:
        from longca.lab.bench.measure.kernel import measure_kernel

        result = measure_kernel(cell, measure, device)
    print(
        json.dumps(
            [result.outcome.status, sorted(name for name in sys.modules if name.startswith("longca."))]
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
