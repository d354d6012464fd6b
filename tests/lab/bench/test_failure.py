import pytest
import torch

from longca.lab.bench.measure.failure import LOG_LINES, SOURCE, failure


@pytest.mark.parametrize(
    ("error", "requested_bytes"),
    [
        (
            torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 139 GiB"
            ),
            3 << 29,
        ),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 512 bytes."), 512),
        (
            RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4096 bytes. Error code 12"
            ),
            4096,
        ),
        (RuntimeError("CUDA error: out of memory"), None),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), None),
        (MemoryError("Unable to allocate 8.00 TiB for an array with shape (1024, 1024)"), 1 << 43),
        (MemoryError(), None),
    ],
)
def test_out_of_memory_however_it_is_said(error: Exception, requested_bytes: int | None) -> None:
    outcome = failure(error, "fwd")
    assert (outcome.status, outcome.requested_bytes, outcome.where) == ("oom", requested_bytes, "fwd")


def test_out_of_memory_inside_another_error() -> None:
    """A compiler wraps what it met."""
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")
        except RuntimeError as inner:
            raise ValueError("backend failed") from inner
    except ValueError as error:
        assert failure(error, "prepare").status == "oom"


def test_anything_else_keeps_the_end_of_its_traceback() -> None:
    def deep(level: int) -> None:
        if level:
            deep(level - 1)
        raise KeyError

    try:
        deep(200)
    except KeyError as error:
        outcome = failure(error, "bwd")
    assert (outcome.status, outcome.type, outcome.message) == ("error", "KeyError", "KeyError")
    assert outcome.log.startswith("while at: bwd\n") and outcome.log.endswith("KeyError")
    assert len(outcome.log.splitlines()) <= LOG_LINES + 1


def test_a_traceback_names_files_of_the_project_by_their_place_in_it() -> None:
    try:
        failure("no error", "prepare")  # type: ignore[arg-type]
    except Exception as error:
        log = failure(error, "prepare").log
    assert 'File "longca/lab/bench/measure/failure.py"' in log and str(SOURCE) not in log


def test_a_value_error_about_memory_is_no_lack_of_it() -> None:
    assert failure(ValueError("out of memory blocks in the plan"), "prepare").status == "error"


def test_the_users_own_line_is_named_where_a_library_raised(tmp_path) -> None:
    """The traceback ends in torch; the line to mend is in the plug-in."""
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\ndef forward(x):\n    return torch.nn.functional.linear(x, x.new_zeros(3, 7))\n"
    )
    space: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    try:
        space["forward"](torch.ones(2, 2))
    except RuntimeError as error:
        lines = failure(error, "fwd").log.splitlines()
    assert lines[:2] == ["while at: fwd", f"raised at: {path}:3 in forward"]
