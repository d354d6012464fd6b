"""The study: YAML grids of cells, and measurement settings."""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from longca.core import (
    LARGEST_INT,
    BrokenPlugin,
    Frozen,
    Registry,
    UserError,
    as_broken,
    nearest,
    parse,
    raise_all,
    read_yaml,
    say_left_out,
    unknown,
)
from longca.core.reading import CELLS
from longca.core.secrets import without_secrets
from longca.lab.studies.cell import Cell
from longca.lab.studies.checkout import studies_folder
from longca.lab.studies.grid import (
    LONGEST_NAME,
    MOST_GRIDS,
    Grid,
    Measure,
    _expand,
    _names_in,
    _num_cells,
    _one_name_each,
    _wrong_in_grids,
    _wrong_names,
    _wrong_params,
)
from longca.lab.studies.playoff.repeats import RepeatRules
from longca.lab.studies.playoff.rules import PlayoffRules

STUDIES = Path("config/studies")
MOST_OFFERED = 3  # names in place of a wrong one


class Study(Frozen):
    """A named list of grids."""

    name: str = ""
    """name of the results folder; the file name if empty"""
    title: Annotated[str, AfterValidator(without_secrets)] = ""
    """title of the page"""
    seed: int = Field(default=0, ge=0, le=LARGEST_INT)
    """order of measurement"""
    measure: Measure = Measure()
    """measurement settings"""
    playoff: PlayoffRules | None = PlayoffRules()
    """rules of the play-offs after the cells: `true` for the default rules, `false` for no play-offs"""
    repeats: RepeatRules | None = RepeatRules()
    """rules of repeats (second measurements): `true` for the default rules, `false` for none"""
    grids: tuple[Grid, ...] = Field(min_length=1, max_length=MOST_GRIDS)
    """cells are the union of all grids"""

    @model_validator(mode="before")
    @classmethod
    def _complete_measure_of_grids(cls, data: Any) -> Any:
        """Each grid inherits missing `measure` settings from the study."""
        if not isinstance(data, dict) or not isinstance(data.get("grids"), (list, tuple)):
            return data
        common = data.get("measure")
        if not isinstance(common, dict):
            return data
        grids = [
            grid | {"measure": common | grid["measure"]}
            if isinstance(grid, dict) and isinstance(grid.get("measure"), dict)
            else grid
            for grid in data["grids"]
        ]
        return data | {"grids": grids}

    @field_validator("playoff")
    @classmethod
    def _known_masks(cls, value: PlayoffRules | None) -> PlayoffRules | None:
        known = Registry("mask").names()
        for name in () if value is None else value.mask:
            if name not in known:
                raise ValueError(str(unknown("mask", name, known)))
        return value

    @field_validator("playoff", "repeats", mode="before")
    @classmethod
    def _switched(cls, value: Any) -> Any:
        return ({} if value else None) if isinstance(value, bool) else value

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, value: str) -> str:
        if "/" in value or value in (".", ".."):
            raise ValueError("it names the folder of the study's results, which lies in `results`")
        if not value.isprintable() or len(value.encode()) > LONGEST_NAME:
            raise ValueError(f"it names a folder: at most {LONGEST_NAME} bytes, no control characters")
        return value

    def cells(self) -> list[Cell]:
        """All distinct cells, in the order of the file, without those of `left_out`, which are reported on
        stderr.

        Raises:
            UserError: an invalid name or value, or no cell is left.
        """
        for reason in self.left_out:
            say_left_out(reason)
        return self.all_cells

    @property
    def all_cells(self) -> list[Cell]:
        """The same cells, without a report on skipped ones. Raises UserError like `cells`."""
        return [cell for cell, _ in self._by_id.values()]

    @property
    def known_cells(self) -> tuple[Cell, ...]:
        """The same cells, without a report on skipped ones."""
        return tuple(cell for cell, _ in self._by_id.values())

    def measure_of(self, cell: Cell) -> Measure:
        """The settings of this cell: of the first grid that contains it and has settings, or else of the
        study."""
        if all(grid.measure is None for grid in self.grids):
            return self.measure
        entry = self._by_id.get(cell.cell_id)
        return self.measure if entry is None else entry[1]

    @property
    def left_out(self) -> tuple[str, ...]:
        """The reasons why cells of some masks are skipped: one for each broken plug-in."""
        return self._expanded[1]

    @property
    def _by_id(self) -> dict[str, tuple[Cell, Measure]]:
        return self._expanded[0]

    @cached_property
    def _expanded(self) -> tuple[dict[str, tuple[Cell, Measure]], tuple[str, ...]]:
        num_cells = sum(_num_cells(grid) for grid in self.grids)
        if num_cells > CELLS.value():
            count = f"{num_cells:,}" if num_cells < 10**18 else f"more than {10**18:,}"
            raise UserError(
                f"Study '{self.name}' would have {count} cells",
                why=f"at most {CELLS.value():,} are allowed",
                todo=CELLS.todo,
            )
        cells: dict[str, tuple[Cell, Measure]] = {}
        problems: list[UserError] = []
        left_out: list[BrokenPlugin] = []
        for number, grid in enumerate(self.grids):
            where = f"study '{self.name}', grid {number + 1}"
            wrong = _wrong_names(_names_in(grid.__dict__), where)
            if bool(grid.seqlen) == bool(grid.seqlen_per_rank):
                wrong.append(
                    UserError(
                        f"{where}: the lengths are not clear",
                        todo="Give either `seqlen` or `seqlen_per_rank`",
                    )
                )
            if wrong:
                problems += [*wrong, *_wrong_params(_names_in(grid.__dict__))]
                continue
            for entry in _one_name_each(grid.mask):
                try:
                    for cell in _expand(grid, entry, where):
                        cells.setdefault(cell.cell_id, (cell, grid.measure or self.measure))
                except BrokenPlugin as error:
                    left_out.append(error)
                except UserError as error:
                    problems.append(error)
                except Exception as error:  # of the mask's own code
                    [name] = [entry] if isinstance(entry, str) else entry
                    left_out.append(as_broken(Registry("mask").paths()[name], error))
        raise_all(f"Study '{self.name}'", problems)
        if not cells and left_out:
            raise left_out[0]
        if not cells:
            raise UserError(
                f"Study '{self.name}' has no cells",
                why="its grids are empty",
                todo="Give each grid at least one kernel, mask, length and head count",
            )
        return cells, tuple(dict.fromkeys(map(str, left_out)))


def study_path(name_or_path: str, folder: Path | None = None) -> Path:
    """The file of the study of that name in `studies_folder`, or that path itself.

    Raises:
        UserError: there is no such study or file. The error names those that are near: studies, and files
            of YAML beside the path.
    """
    path = Path(name_or_path)
    is_file = path.suffix in (".yaml", ".yml")
    if is_file and path.exists():
        return path
    folder = studies_folder() if folder is None else folder
    if not is_file and (own := folder / f"{name_or_path}.yaml").exists():
        return own
    studies = [file.stem for file in folder.glob("*.yaml")]
    beside = {
        str(file): file.stem for pattern in ("*.yaml", "*.yml") for file in sorted(path.parent.glob(pattern))
    }
    wanted = path.stem if is_file else path.name
    near = [
        offer
        for stem in nearest(wanted, {*studies, *beside.values()})
        for offer in (*(file for file in beside if beside[file] == stem), *({stem} & set(studies)))
    ]
    if is_file and not near:
        return path  # who reads it says that it is not there
    raise unknown(
        "study", name_or_path, studies, todo=f"Studies are the files in {folder}/", near=near[:MOST_OFFERED]
    )


def load_study(name_or_path: str, folder: Path | None = None) -> Study:
    """The study of that name, or in that file. Raises UserError."""
    path = study_path(name_or_path, folder)
    data = read_yaml(path)
    if isinstance(data, dict):
        data.setdefault("name", path.stem)
    return parse(Study, data, str(path), _wrong_in_grids)
