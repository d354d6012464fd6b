"""Numbers in prose: each follows from committed records, or docs/values.yaml says why it may stand.

    python -m tools.values            writes the numbers of the pages again; part of `make docs`
    python -m tools.values --check    names every number that is wrong, or for which nothing accounts
    python -m tools.values --suggest  prints entries for docs/values.yaml, to which a reason is to be added

A page holds a number that is a result (a rate, a ratio, a share, a time, a size, a count of cells) in one of
three ways: inside a block that a tool writes, in a sentence that docs/values.yaml computes, or in one that it
lists with a reason.
"""
