"""The defects of the study's released code, what each does to its numbers, and what this project does
instead.

They were found by reading that code, or by running parts of it, at commit 22683e3; "run" marks those that
were shown by running.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Repair:
    """One defect, and its repair."""

    number: int
    name: str
    defect: str
    effect: str
    """on the study's numbers"""
    repair: str
    """what this project does instead"""
    was_run: bool = False
    """True if it was shown by running the released code, not only by reading it"""
    kernel: str = ""
    """the kernel that repeats it, `as_released_…` without the beginning, so that it can be measured; "" if
    none does"""


REPAIRS = (
    Repair(
        1,
        "Window counted on one side",
        "Slices and FLOPs of the sliding window, and the masks of SDPA and Naive, are those of the "
        "causal window; the other kernels run both sides.",
        "FLOPs are counted too low, and two kernels run another mask.",
        "One definition of each mask; area and every kernel's form follow from it.",
        True,
    ),
    Repair(
        2,
        "Global window in three versions",
        "The global columns are a triangle of the last rows, one window wide; FlexAttention and "
        "FlashMask take two windows.",
        "Kernels cannot be compared under this mask; FlexAttention and FlashMask are counted too low.",
        "All kernels run the same mask, checked element by element.",
        True,
    ),
    Repair(
        3,
        "Prefix longer by one",
        "FlexAttention and FlashMask show one key more than the slices count.",
        "An error of one column: small at long lengths.",
        "Kernels' forms are compared with the definition, row by row.",
        True,
    ),
    Repair(
        4,
        "Empty window at 1K",
        "A causal window as long as the sequence reaches FlashMask as −1, which hides every pair.",
        "An empty mask is timed and counted as a causal one.",
        "A result is compared with float64 before it is timed.",
        True,
    ),
    Repair(
        5,
        "Naive builds its mask on the host",
        "An S × S bias is made on the CPU and copied inside the timed call.",
        "The row shows the bus, not the kernel.",
        "Masks are made before the timed call, and their cost is a column of its own.",
        kernel="naive",
    ),
    Repair(
        6,
        "SDPA is held back",
        "An explicit mask together with `enable_gqa` leaves PyTorch its unfused kernel alone, unless it has "
        "a fused one for both.",
        "Memory grows with S², so that SDPA fails early.",
        "KV heads are expanded outside the call where a mask needs it.",
        kernel="sdpa",
    ),
    Repair(
        7,
        "FlexAttention is held back",
        "Block masks are made without a compiler, over the whole S × S; where that fails, a way that "
        "skips nothing is taken in silence.",
        "Out of memory, or a slow row, under the same name.",
        "Block masks are made from rows and blocks; which way ran stands in the record.",
        kernel="flex",
    ),
    Repair(
        8,
        "Block-sparse scripts stop",
        "One of their kernels has no branch, and a row of a failed kernel is too short for its table.",
        "The scripts as released end with an error.",
        "Each outcome is a record with a reason; a failure costs its cell alone.",
        True,
    ),
    Repair(
        9,
        "Another mask for FlashInfer",
        "FlashInfer gets blocks drawn anew instead of those of the others; all are counted with the "
        "share asked for.",
        "Its row has another mask and another area.",
        "All kernels get the same blocks, and FLOPs count them.",
    ),
    Repair(
        10,
        "Backward without a mask",
        "Kernels that cannot run a mask are called before this is asked, with variables that do not exist.",
        "The backward pass under heterogeneous masks ends with an error.",
        "A kernel says whether it runs a cell before it is started.",
    ),
    Repair(
        11,
        "Out of memory or unsupported",
        "Both are written as −1.",
        "A table cannot tell them apart.",
        "Each has a status of its own, with its reason.",
    ),
    Repair(
        12,
        "USP's groups are swapped",
        "The two dimensions of the mesh change places, so that all-to-all runs between nodes.",
        "USP and LoongTrain differ by placement, not by method.",
        "Placement is recorded, and bytes are counted for each rank.",
        True,
    ),
    Repair(
        13,
        "LoongTrain's document table",
        "With more than one window, offsets of documents belong to another rank.",
        "Steps of such a ring are wrong; padding is attended to.",
        "Every rank's result is compared with one device's.",
        True,
    ),
    Repair(
        14,
        "Backward times more than attention",
        "The timed call holds three linear layers' backward and a scatter over the whole input.",
        "Backward rates are too low by an amount that depends on the method.",
        "The timed call is attention alone.",
    ),
    Repair(
        15,
        "Race in the all-gather ring",
        "Gradients of one stream are read on another without waiting.",
        "Results can be wrong, unnoticed.",
        "Gradients are checked, and checked to repeat.",
    ),
    Repair(
        16,
        "LSE is not a number",
        "Rows of padding have LSE −∞, and merging two of them gives NaN.",
        "Outputs of padded rows are lost.",
        "Merging is defined for rows without keys, and tested.",
    ),
    Repair(
        17,
        "Gradients are added up",
        "Gradients are not cleared between calls for some kernels.",
        "An addition is timed and counted in memory for some rows.",
        "Each call has fresh gradients.",
        kernel="fa3",
    ),
    Repair(
        18,
        "A ring that keeps everything",
        "The ring keeps the keys and partial results of every step.",
        "Memory grows with the number of ranks.",
        "Rings of any length keep two buffers; measured as memory above the shards.",
    ),
    Repair(
        19,
        "Out of memory on one rank",
        "A rank that fails leaves the others waiting.",
        "The job hangs.",
        "A rank that fails ends the cell on all ranks, within a bound.",
    ),
    Repair(
        20,
        "SDPA without its mask",
        "Where the mask cannot be made, a line is printed and the call runs without one.",
        "An unmasked call is timed as a masked one.",
        "No timing without a passed check.",
    ),
    Repair(
        21,
        "The clock starts early",
        "The start of a call is taken before the host resets its counters.",
        "Short calls seem longer.",
        "Calls are queued back to back, and waits of known length prove the timer.",
    ),
)
