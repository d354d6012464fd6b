"""The command `longca explain`: support and result of one cell, with reasons."""

from typing import Annotated, Any

import typer

from longca.cli.list import device_type
from longca.cli.options import (
    DirectionFilter,
    Json,
    KernelFilter,
    MaskFilter,
    Results,
    SeqlenFilter,
    StrategyFilter,
    open_study,
    print_json,
    selection,
)
from longca.core.cell import Cell
from longca.core.errors import UserError
from longca.core.record import Record


def command(
    cell: Annotated[str, typer.Argument(help="cell_id, or its first digits; or a study, with filters")],
    study: Annotated[str | None, typer.Option(help="Study that the cell belongs to", show_default=False)] = None,
    kernel: KernelFilter = "",
    strategy: StrategyFilter = "",
    mask: MaskFilter = "",
    direction: DirectionFilter = "",
    seqlen: SeqlenFilter = "",
    results: Results = None,
    as_json: Json = False,
) -> None:
    """Explain one cell: whether it can run, and what came of it."""
    from longca.store.load import load

    filters = selection(kernel, strategy, mask, direction, seqlen)
    by_id = all(digit in "0123456789abcdef" for digit in cell)
    _, chosen, folder = open_study(study if by_id else cell, results=results)
    cells = chosen.cells()
    found = [each for each in cells if each.cell_id.startswith(cell)] if by_id else filters.apply(cells)
    if len(found) != 1:
        raise UserError(f"{len(found)} cells of study '{chosen.name}' fit", todo="Name one by its id (`longca plan --cells`) or by filters")
    record = next((one for one in load(folder).records if one.cell_id == found[0].cell_id), None)
    facts = {**_facts(found[0]), "last result": _result(record) if record else "not measured yet"}
    if as_json:
        print_json({**facts, "record": record.model_dump() if record else None})
        return
    width = max(len(key) for key in facts)
    for key, value in facts.items():
        print(f"{key:>{width}}  {value}")


def _result(record: Record) -> str:
    from longca.store.hardware import Hardware
    from longca.store.view import View

    reason = View(record, Hardware()).reason
    return f"{record.outcome.status}: {reason}" if reason else record.outcome.status


def _facts(cell: Cell) -> dict[str, Any]:
    from longca.bench.run.predict import Predictor
    from longca.store.text import format_bytes

    device = device_type()
    prediction = Predictor(device).predict(cell)
    facts = {
        "cell": cell.title,
        "cell_id": cell.cell_id,
        f"available on this {device}": prediction.unavailable or "yes",
        "supported": prediction.unsupported or "yes",
    }
    if prediction.work is not None:  # a control: no attention
        return facts | {f"one call's {name.replace('_', ' ')}": f"{value:,}"
                        for name, value in prediction.work.model_dump(exclude_none=True).items()}
    return facts | {
        "visible pairs": f"{prediction.density:.2%} of {cell.seqlen:,} × {cell.seqlen:,}",
        "operations": f"{prediction.flops:.3g}",
        "inputs and outputs": format_bytes(prediction.tensor_bytes),
    }
