"""The command `longca explain`: support and results of cells, with reasons."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longca.core import UserError
from longca.lab.cli.list import device_type
from longca.lab.cli.options import (
    DirectionFilter,
    Json,
    KernelFilter,
    MaskFilter,
    NewTokensFilter,
    Results,
    SeedFilter,
    SeqlenFilter,
    StrategyFilter,
    WorldFilter,
    line_width,
    open_study,
    print_json,
    selection,
)
from longca.lab.studies import Cell, Failed, Record

if TYPE_CHECKING:
    from longca.lab.bench import Prediction
    from longca.lab.store import View

MOST_WHOLE = 3  # cells that are shown with all facts; of more those of which the same is said stand together


def command(
    cell: Annotated[str, typer.Argument(help="cell_id, or its first digits; or a study, with filters")],
    study: Annotated[
        str | None, typer.Option(help="Study that the cell belongs to", show_default=False)
    ] = None,
    kernel: KernelFilter = "",
    strategy: StrategyFilter = "",
    mask: MaskFilter = "",
    direction: DirectionFilter = "",
    seqlen: SeqlenFilter = "",
    new_tokens: NewTokensFilter = "",
    heads: Annotated[str, typer.Option(help="Only these heads: '64:8'")] = "",
    world: WorldFilter = "",
    seed: SeedFilter = "",
    log: Annotated[
        bool, typer.Option("--log", help="Print the traceback, or the last output, of cells that failed")
    ] = False,
    results: Results = None,
    as_json: Json = False,
) -> None:
    """Explain cells: can they run here, and what came of them?"""
    from longca.lab.bench import Predictor

    by_id = all(digit in "0123456789abcdef" for digit in cell)
    _, chosen, folder = open_study(study if by_id else cell, results=results)
    cells = selection(kernel, strategy, mask, direction, seqlen, world, seed, heads, new_tokens).apply(
        chosen.cells()
    )
    if by_id:
        cells = [each for each in cells if each.cell_id.startswith(cell)]
    if not cells:
        raise UserError(
            f"No cell of study '{chosen.name}' begins with '{cell}'",
            todo="`longca plan --cells` shows their ids",
        )
    predictor = Predictor(device_type())
    records = _records(folder, cells)
    predictions = [predictor.predict(each) for each in cells]
    if as_json:
        print_json([_facts(prediction, records.get(prediction.cell.cell_id)) for prediction in predictions])
        return
    print(textwrap.fill(_summary(predictions, records), line_width()))
    groups: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        cell_id = prediction.cell.cell_id
        groups.setdefault(
            cell_id if len(cells) <= MOST_WHOLE or cell_id in records else _state(prediction), []
        ).append(prediction)
    for group in groups.values():
        print()
        record = records.get(group[0].cell.cell_id)
        if len(cells) <= MOST_WHOLE:
            _print_whole(group[0], record)
        else:
            _print_short(group, record)
        if record and isinstance(record.outcome, Failed):
            print(textwrap.indent(record.outcome.log, "    ") if log else "  `--log` shows its traceback")


def _records(folder: Path, cells: list[Cell]) -> dict[str, Record]:
    """The records of these cells; only their files are read where each has one."""
    from longca.lab.store import CellStore
    from longca.lab.store.load import load

    store = CellStore(folder)
    if not store.cells.is_dir():
        return {record.cell_id: record for record in load(folder).records}
    records = (store.read(cell.cell_id) for cell in cells)
    return {record.cell_id: record for record in records if isinstance(record, Record)}


def _summary(predictions: list["Prediction"], records: dict[str, Record]) -> str:
    """ "2 of 12 cells cannot run here; 8 are measured: 7 ok, 1 incorrect"."""
    from collections import Counter

    from longca.lab.store.text import plural

    refused = [prediction for prediction in predictions if _refusal(prediction)]
    total = plural(len(predictions), "cell")
    counts = Counter(
        records[prediction.cell.cell_id].outcome.status
        for prediction in predictions
        if prediction.cell.cell_id in records
    )
    if len(predictions) == 1:
        record = records.get(predictions[0].cell.cell_id)
        here = f"cannot run here: {_refusal(predictions[0])}" if refused else "can run here"
        return (
            f"{predictions[0].cell.title} {here}; "
            f"{f'measured: {_result(record)}' if record else 'not measured yet'}."
        )
    runs = f"all {total} can run here" if not refused else f"{len(refused)} of {total} cannot run here"
    measured = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return (
        f"{runs[0].upper()}{runs[1:]}; "
        f"{f'{counts.total()} measured: {measured}' if counts else 'none is measured yet'}."
    )


def _refusal(prediction: "Prediction") -> str | None:
    return prediction.unavailable or prediction.unsupported


def _view(record: Record) -> "View":
    from longca.core import Hardware
    from longca.lab.store import View

    return View(record, Hardware())


def _result(record: Record) -> str:
    """Time and rate, or the status and why."""
    from longca.lab.store.text import number, rate_scale

    view = _view(record)
    if view.median_ms is None:
        return f"{record.outcome.status}: {view.reason}" if view.reason else record.outcome.status
    rate = view.per_device(view.median_ms)
    time = f"{record.outcome.status}: {number(view.median_ms)} ms"
    if rate is None:
        return time
    factor, unit = rate_scale(rate)
    return f"{time}, {number(factor * rate)} {unit} of a device"


def _state(prediction: "Prediction") -> str:
    refusal = _refusal(prediction)
    return f"cannot run here: {refusal}" if refusal else "can run here"


def _print_short(group: list["Prediction"], record: Record | None) -> None:
    """A measured cell with its result; or cells that are not measured and of which the same is said.

    Args:
        record: of the one cell; None for cells without one.
    """
    from longca.lab.store.text import plural

    if record is None:
        print(
            textwrap.fill(f"{plural(len(group), 'cell')} not measured yet: {_state(group[0])}", line_width())
        )
    for prediction in group:
        print(
            textwrap.fill(
                f"{prediction.cell.cell_id} {prediction.cell.title}",
                line_width(),
                initial_indent="" if record else "  ",
                subsequent_indent=" " * 17,
            )
        )
    if record is not None:
        print(
            textwrap.fill(
                f"{_state(group[0])}; {_result(record)}",
                line_width(),
                initial_indent="  ",
                subsequent_indent="  ",
            )
        )


def _print_whole(prediction: "Prediction", record: Record | None) -> None:
    from longca.lab.store.text import format_bytes

    cell = prediction.cell
    device = device_type()
    facts = {
        "cell": cell.title,
        "cell_id": cell.cell_id,
        f"available on this {device}": prediction.unavailable or "yes",
        "supported": prediction.unsupported or "yes",
    }
    if prediction.work is not None:  # a control: no attention
        facts |= {
            f"one call's {name.replace('_', ' ')}": f"{value:,}"
            for name, value in prediction.work.model_dump(exclude_none=True).items()
        }
    else:
        facts |= {
            "visible pairs": f"{prediction.density:.2%} of {cell.num_queries:,} × {cell.seqlen:,}",
            "operations": f"{prediction.flops:.3g}",
            "inputs and outputs": format_bytes(prediction.tensor_bytes),
        }
    facts |= {"last result": _result(record) if record else "not measured yet"}
    if record and (error := _view(record).error_text):
        facts |= {"error / budget": error}
    width = max(len(key) for key in facts)
    for key, value in facts.items():
        print(textwrap.fill(f"{key:>{width}}  {value}", line_width(), subsequent_indent=" " * (width + 2)))


def _facts(prediction: "Prediction", record: Record | None) -> dict[str, Any]:
    """One cell as data: numbers are numbers, None where they do not apply."""
    cell = prediction.cell
    is_control = prediction.work is not None
    return {
        "cell_id": cell.cell_id,
        "title": cell.title,
        "cell": cell.model_dump(),
        "device": device_type(),
        "available": prediction.unavailable is None,
        "unavailable_reason": prediction.unavailable,
        "supported": prediction.unsupported is None,
        "unsupported_reason": prediction.unsupported,
        "density": None if is_control else prediction.density,
        "visible_pairs": None if is_control else round(prediction.density * cell.num_pairs),
        "flops": None if is_control else prediction.flops,
        "tensor_bytes": None if is_control else prediction.tensor_bytes,
        "work": prediction.work.model_dump(exclude_none=True) if prediction.work else None,
        "record": record.model_dump(mode="json") if record else None,
    }
