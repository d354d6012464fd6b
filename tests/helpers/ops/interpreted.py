"""Kernels in Triton's interpreter, on a CPU, against the definition. The switch is global, so they get a
process of their own.

    TRITON_INTERPRET=1 python -m tests.helpers.ops.interpreted few|whole PART...

Every part is tried, whatever becomes of those before it, and each that is right is named.
"""

import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from triton import language as tl
from triton.runtime import interpreter

from tests.helpers.kernels import flashmask_interpreted
from tests.helpers.ops import band_interpreted, parts_interpreted

PARTS = {
    part.__name__: part
    for module in (band_interpreted, parts_interpreted, flashmask_interpreted)
    for part in module.PARTS
}


def let_loops_run() -> None:
    """Triton 3.6 makes a loop's bound an int in a way that NumPy 2.4 no longer allows."""
    patch = interpreter._patch_lang_tensor

    def patch_with_index(tensor: type, scope: interpreter._LangPatchScope) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_with_index


def keep_what_is_made_anew() -> None:
    """The interpreter makes Triton's language its own at each call of a function, and types that nobody asks
    for at each operation."""
    patch = interpreter._patch_lang
    type_of = interpreter._get_np_dtype
    known = (tl, tl.core)
    done = set()
    types = {}
    make_tuple = tl.core.tuple.__init__
    tuple_type = cached_property(lambda self: tl.core._type_for_tuple_values(self.values))

    def patch_once(fn: Callable[..., Any]) -> interpreter._LangPatchScope:
        seen = tuple(any(value is module for value in fn.__globals__.values()) for module in known)
        if seen not in done:
            done.add(seen)
            patch(fn)
        return (
            interpreter._LangPatchScope()
        )  # nothing to restore: this process has no other use for the language

    def known_type(kind: tl.dtype) -> np.dtype:
        name = kind.scalar.name
        if name not in types:
            types[name] = type_of(kind)
        return types[name]

    def tuple_of(self: tl.core.tuple, args: Sequence[Any], type: Any = None) -> None:
        if type is None:
            self.values = list(args)
        else:
            make_tuple(self, args, type)

    interpreter._patch_lang = patch_once
    interpreter._get_np_dtype = known_type
    tl.core.tuple.__init__ = tuple_of
    tuple_type.__set_name__(tl.core.tuple, "type")
    vars(tl.core)["tuple"].type = tuple_type


def check_overflow_once() -> None:
    """The first launch of each kernel checks that no sum or product overflows, which takes a third of the
    time of all others."""
    run = interpreter.InterpretedFunction.run

    def run_checked(self: interpreter.InterpretedFunction, *args: Any, **named: Any) -> None:
        interpreter.interpreter_builder.options = interpreter.InterpreterOptions(
            sanitize_overflow=self.fn not in self.rewritten_fn
        )
        run(self, *args, **named)

    interpreter.InterpretedFunction.run = run_checked


def main(cases: str, *parts: str) -> int:
    let_loops_run()
    keep_what_is_made_anew()
    if cases == "few":
        check_overflow_once()
    np.seterr(all="ignore")  # the interpreter computes −inf − −inf where a kernel then selects
    wrong = 0
    for part in parts:
        try:
            PARTS[part](cases == "whole")
            print(f"right: {part}", flush=True)
        except Exception:
            traceback.print_exc()
            wrong += 1
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
