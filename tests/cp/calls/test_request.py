"""Refusals of `context_parallel` and its calls: in one line, the same on every rank."""

import pytest

from tests.helpers.cp.public_calls import results


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("masks differ", "Argument 'mask' differs between ranks: rank 0 has causal_document of 97 tokens"),
        ("next masks differ", "give the same seed"),
        ("heads differ", "Argument 'num_q_heads' differs between ranks: rank 0 has 4, rank 1 has 8"),
        ("strategy differs", "rank 0 has usp(heads=1), rank 1 has usp(heads=2)"),
        ("no mask", "Argument 'mask' is of type str. Give a longca.Mask"),
        ("two lengths", "masks of 97 and 64 tokens"),
        ("not square", "50 queries and 97 keys"),
        ("one rank alone", "Rank 1: Argument 'head_dim' is 0. Give a whole number"),
        ("uneven heads", "cannot be shared evenly"),
        ("dtype", "Argument 'dtype' is torch.int64. Give torch.bfloat16"),
        ("strategy", "did you mean 'usp'"),
        ("parameter", "did you mean"),
        (
            "does not fit",
            "Strategy 'usp(heads=3)' with kernel 'naive' cannot do this mask on 2 ranks: 2 ranks are no "
            "whole number",
        ),
        ("baseline", "a peer that studies compare with"),
        ("kernel", "Kernel 'band' is unavailable here"),
        (
            "two kernels",
            "Strategy 'usp[heads=1]+band' names kernel 'band', and kernel 'naive' is given. Give strategy "
            "'usp[heads=1]' with the kernel that you want",
        ),
        ("kernel of a way", "Kernel 'band' is unavailable here"),
        ("group", "Argument 'group' is of type int"),
        ("timeout", "Argument 'timeout' is 0"),
        ("messages", "Argument 'messages' is 'mpi'"),
        ("check", "Give 'first' or 'always'"),
        ("backward", "Argument 'backward' is 'no'. Give True or False"),
        ("warm", "Argument 'warm' is 'no'. Give True or False"),
        ("whole", "must have the 97 tokens of the mask"),
        ("unshard", "Give what came from cp.shard"),
        ("uneven shards", "Rank 1: Argument 'q' of attention is of shape 4"),
        ("all tokens", "has all 97 tokens"),
        ("other heads", "tokens of this rank × heads × head dim are"),
        ("no tokens", "Argument 'x' of shard is of type list. Give a tensor"),
        ("no dimension", "Argument 'dim' of unshard is None"),
        ("broken strategy", "'usp(heads=[)': a value in it cannot be read"),
        ("no device", "Argument 'device' is 'foo': torch knows no such"),
        ("timeout in words", "Argument 'timeout' is 'long'. Give seconds"),
        (
            "other dtype",
            "Argument 'q' of attention is torch.float64: the plan is for torch.float32. Convert it with "
            ".to(torch.float32)",
        ),
        (
            "dtype to plan for",
            "Convert it with .to(torch.float32), or give dtype=torch.float16 to context_parallel",
        ),
        (
            "integers",
            "Argument 'q' of attention is torch.int32: the plan is for torch.float32. Convert it with "
            ".to(torch.float32)",
        ),
        ("no tensor", "Argument 'v' of attention is of type NoneType"),
        ("no tensor at all", "Argument 'q' of attention is of type NoneType"),
        ("device", "is on meta: this rank is on cpu"),
        ("another mask", "this context has"),
    ],
)
def test_refusals_are_one_line_and_the_same_on_every_rank(case: str, words: str):
    first, second = (of_rank["refusals"][case] for of_rank in results())
    assert words in first
    assert "\n" not in first
    assert first.partition(": this rank")[0].replace("49", "48") == second.partition(": this rank")[
        0
    ].replace("49", "48")
