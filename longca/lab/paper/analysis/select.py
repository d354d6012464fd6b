"""The parts of a table that the study's exhibits show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from longca.core import format_length
from longca.lab.claims import STUDY_GPU
from longca.lab.report.content.earlier import is_earlier
from longca.lab.report.look import join
from longca.lab.report.rates import RATE
from longca.lab.report.series import attention, labelled, points, rankable, with_beside
from longca.lab.store.text import plural

if TYPE_CHECKING:
    import pandas as pd

# query and KV heads of the study
GQA = (64, 8)
MHA = (64, 64)


def kernels(
    table: pd.DataFrame, *, sparse: bool, heads: tuple[int, int] | None = None, direction: str | None = None
) -> pd.DataFrame:
    """Attention of one device that was tried, under static or under block-sparse masks, labelled, with the
    rows of its play-offs. An earlier `band` is left out where the same GPU ran the present one."""
    rows = attention(table, "kernel", direction, every=True)
    earlier = is_earlier(rows)
    present = set(zip(rows.device[~earlier], rows.kernel[~earlier], strict=True))
    places = zip(rows.device, rows.kernel, strict=True)
    rows = rows.loc[[not old or key not in present for old, key in zip(earlier, places, strict=True)]]
    rows = rows.loc[(rows.mask_family == "block-sparse") == sparse]
    if heads is not None:
        rows = rows.loc[(rows.num_q_heads == heads[0]) & (rows.num_kv_heads == heads[1])]
    return with_beside(labelled(rankable(rows)))


def earlier_strategies(table: pd.DataFrame) -> str:
    """Tells on which devices strategies ran an earlier `band`: "on NVIDIA H200 band in strategies is of its
    earlier kernels (412 cells)"; "" where none did."""
    rows = attention(table, "cp")
    counts = rows.loc[is_earlier(rows)].groupby("device").cell_id.nunique()
    parts = [
        f"on {device} band in strategies is of its earlier kernels ({plural(int(count), 'cell')})"
        for device, count in counts.items()
    ]
    return "; ".join(parts)


def main_heads(table: pd.DataFrame) -> tuple[int, int]:
    """The heads of the study's main figures, 64:8; where nothing ran with them, those that most records of
    one device have."""
    alone = table.loc[(table.kind == "kernel") & ~table.is_control.astype(bool)]
    counts = alone.groupby(["num_q_heads", "num_kv_heads"]).size()
    if GQA in counts.index or not len(counts):
        return GQA
    most: Any = counts.idxmax()
    return int(most[0]), int(most[1])


def parallel(table: pd.DataFrame) -> pd.DataFrame:
    """Context parallelism that was tried, labelled."""
    return labelled(attention(table, "cp"))


def block_panels(rows: pd.DataFrame) -> pd.DataFrame:
    """Block-sparse rows with `detail` that names block, density, heads and device, in their order."""
    detail = [
        join(variant, f"{density:g} computed", heads, device)
        for variant, density, heads, device in zip(
            rows.mask_variant, rows.mask_density_asked, rows.heads, rows.device_choice, strict=True
        )
    ]
    return rows.assign(detail=detail)


def rates(rows: pd.DataFrame, *by: str) -> pd.DataFrame:
    """Throughput of each device: one row for each combination of `by` (`longca.lab.report.series.points`)."""
    return points(rows, list(by), *RATE, unit="TFLOP/s")


def settings(data: pd.DataFrame) -> dict[tuple[int, int, str], str]:
    """Each (ranks, tokens of a rank, direction) that occurs, in order, with its heading in a table."""
    keys = set(zip(data.world, data.tokens, data.direction, strict=True))
    return {
        (world, tokens, direction): f"{world} × {format_length(int(tokens))} {direction}"
        for world, tokens, direction in sorted(keys, key=lambda key: (*key[:2], key[2] == "bwd"))
    }


def of_one_device(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of one device, labelled: of the study's GPU, or else of that with most of them."""
    names = sorted(set(rows.device), key=lambda name: (STUDY_GPU in name, int((rows.device == name).sum())))
    return labelled(rows.loc[rows.device == names[-1]]) if len(names) > 1 else rows


def devices(table: pd.DataFrame) -> tuple[str, ...]:
    """The devices of a table, each once."""
    return tuple(sorted({str(device) for device in table.device.dropna()} - {""}))


def devices_apart(data: pd.DataFrame) -> list[str]:
    """The column of a table that tells its devices apart; none where there is one device."""
    return ["device"] if data.device.nunique() > 1 else []
