"""A kernel from a file that defines `forward(q, k, v, mask)`, measured by `longca bench` without
registration.

The file may define optional parts:

| name                                                  | timed? | what it is                                                      |
|-------------------------------------------------------|--------|-----------------------------------------------------------------|
| `forward(q, k, v, mask)` → `out` or `(out, lse)`      | yes    | attention                                                       |
| `backward(dout, q, k, v, out, lse, mask)` → dq, dk, dv | yes   | its gradients; without it, autograd goes through `forward`      |
| `prepare(mask, device)`                               | no     | called once; `forward` gets what it returns, instead of the mask |
| `LAYOUT`                                              | –      | order of the axes: "BHTD" (the default), "BTHD", "HTD" or "THD" |

`docs/guide/own-kernel.md` describes shapes, dtypes and devices. User code runs only in the measuring process,
never in the process of the command.
"""  # noqa: E501

from __future__ import annotations

import importlib.util
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from longca.core import CallSpec, refused_signature
from longca.kernels.contract import Forward, Kernel, Prepared, Problem

if TYPE_CHECKING:
    import torch

    from longca.masks import Traits

LAYOUTS = ("BHTD", "BTHD", "HTD", "THD")
CALLS = {
    "forward": ("q", "k", "v", "mask"),
    "backward": ("dout", "q", "k", "v", "out", "lse", "mask"),
    "prepare": ("mask", "device"),
}
"""arguments of each function of the file, in this order"""
PLACE = "at {file}, line {line}, in {function}: {code}"
"""note of an exception: where in the user's file it was raised"""


class OwnFileKernel(Kernel):
    """The kernel in `file`; a sub-class sets the path."""

    label = "Own file"
    family = "both"
    summary = "a function of a user's file"
    file: ClassVar[Path] = Path()

    def supports(self, call: CallSpec, traits: Traits, device_type: str) -> str | None:
        return None

    def prepare(self, problem: Problem) -> OwnFilePrepared:
        return OwnFilePrepared(problem, self.file)


class ResultError(TypeError):
    """A function of the file returned an invalid result."""


class DefinitionError(TypeError):
    """The file defines an invalid function or an unknown layout, so it is not measured."""


class OwnFilePrepared(Prepared):
    """The file's functions, with tensors in its own layout. Exceptions get a note with the line of the file
    that raised them."""

    def __init__(self, problem: Problem, file: Path) -> None:
        super().__init__(problem)
        self._file = file
        with self._noting_place():
            module = _load(file)
        _check_definitions(module)
        with self._noting_place():
            self._forward: Callable[..., Any] = module.forward
            self._backward: Callable[..., Any] | None = getattr(module, "backward", None)
            prepare = getattr(module, "prepare", None)
            self._mask = problem.mask if prepare is None else prepare(problem.mask, problem.device)
        self._layout: str = getattr(module, "LAYOUT", LAYOUTS[0])
        self._uses_autograd = problem.needs_backward and self._backward is None

    def to_layout(self, x_THD: torch.Tensor) -> torch.Tensor:
        axes = self._layout.removeprefix("B")
        x = x_THD.permute(["THD".index(axis) for axis in axes]).contiguous()
        return x.unsqueeze(0) if self._layout.startswith("B") else x

    def from_layout(self, x: torch.Tensor) -> torch.Tensor:
        axes = self._layout.removeprefix("B")
        return (x.squeeze(0) if self._layout.startswith("B") else x).permute(
            [axes.index(axis) for axis in "THD"]
        )

    def lse_from_layout(self, lse: torch.Tensor) -> torch.Tensor:
        return lse.reshape(self.problem.num_q_heads, self.problem.mask.seqlen_q).T.float()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Forward:
        import torch

        inputs = tuple(x.detach().requires_grad_() for x in (q, k, v)) if self._uses_autograd else (q, k, v)
        with (
            self._noting_place(),
            torch.set_grad_enabled(self._uses_autograd),
            _kept_for_backward(self._uses_autograd),
        ):
            result: Any = self._forward(*inputs, self._mask)
        out: Any
        lse: Any
        out, lse = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        self._check("forward", "out", out, q)
        if lse is not None and (
            not isinstance(lse, torch.Tensor) or lse.numel() != out.numel() // out.shape[-1]
        ):
            heads = self.problem.num_q_heads
            tokens = self.problem.mask.seqlen_q
            raise ResultError(
                f"forward returned an lse that is {_described(lse)}; it must be a tensor of ({heads}, "
                f"{tokens}) or (1, {heads}, {tokens})"
            )
        if self._uses_autograd and not out.requires_grad:
            raise ResultError(
                "forward's out has no gradient: define backward(dout, q, k, v, out, lse, mask), or measure "
                "with -d fwd"
            )
        return Forward(out.detach(), None if lse is None else lse.detach(), saved=(*inputs, out, lse))

    def backward(
        self, forward: Forward, dout: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        import torch

        q, k, v, out, lse = forward.saved
        with self._noting_place():
            if self._backward is None:
                grads = torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
            else:
                with torch.no_grad():
                    grads = self._backward(dout, q, k, v, out, lse, self._mask)
        if not isinstance(grads, (tuple, list)) or len(grads) != 3:
            raise ResultError(f"backward returned {_described(grads)}; it must return (dq, dk, dv)")
        for name, grad, like in zip(("dq", "dk", "dv"), grads, (q, k, v), strict=True):
            self._check("backward", name, grad, like)
        return grads[0], grads[1], grads[2]

    def _check(self, function: str, name: str, value: Any, like: torch.Tensor) -> None:
        import torch

        if not isinstance(value, torch.Tensor) or (value.shape, value.dtype, value.device) != (
            like.shape,
            like.dtype,
            like.device,
        ):
            raise ResultError(
                f"{function} returned {name} that is {_described(value)}; it must be {_described(like)} "
                f"(LAYOUT {self._layout})"
            )

    @contextmanager
    def _noting_place(self) -> Iterator[None]:
        """Add to an exception the line of the file that raised it."""
        try:
            yield
        except Exception as error:
            frames = []
            step = error.__traceback__
            while step is not None:
                if step.tb_frame.f_code.co_filename == str(self._file):
                    frames.append((step.tb_lineno, step.tb_frame.f_code.co_name))
                step = step.tb_next
            if isinstance(error, SyntaxError) and error.filename == str(self._file):
                frames.append((error.lineno or 1, "<module>"))
            if frames:
                line, function = frames[-1]
                error.add_note(
                    PLACE.format(
                        file=self._file.name,
                        line=line,
                        function=function,
                        code=linecache.getline(str(self._file), line).strip(),
                    )
                )
            raise


def _check_definitions(module: ModuleType) -> None:
    """Raise DefinitionError for functions with an incompatible signature, and for an unknown layout."""
    for name, arguments in CALLS.items():
        function = getattr(module, name, None)
        if function is None and name != "forward":
            continue
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise DefinitionError(
                f"{name} is of type {type(function).__name__}; it must be a function "
                f"{name}({', '.join(arguments)})"
            )
        if (given := refused_signature(function, len(arguments))) is not None:
            raise DefinitionError(f"{name}{given} is called as {name}({', '.join(arguments)})")
    layout = getattr(module, "LAYOUT", LAYOUTS[0])
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise DefinitionError(f"LAYOUT is {layout!r}; it must be one of {', '.join(LAYOUTS)}")


def _described(value: Any) -> str:
    """A short description of a value, for messages."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")
    return f"a {str(value.dtype).removeprefix('torch.')} tensor of {tuple(shape)} on {value.device}"


def _kept_for_backward(is_needed: bool) -> AbstractContextManager[object]:
    """A context in which functions compiled by torch.compile keep all inputs of backward, since backward is
    called many times on one forward."""
    if not is_needed:
        return nullcontext()
    from torch._functorch import config

    return config.patch(donated_buffer=False)


def _load(file: Path) -> ModuleType:
    """The file as a module, imported once per process.

    It can import files from its folder, which come after installed modules on the path, since one of them may
    be called `random.py`.
    """
    name = f"longca_own_{file.stem}"
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(file):
        return loaded
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    # for any suffix
    spec = importlib.util.spec_from_file_location(name, file, loader=SourceFileLoader(name, str(file)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
