"""`weft gradcheck`: analytical derivatives against numerical ones, for any run file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import ModelCommand
from weft.cli.output import finite, write, write_json
from weft.errors import UsageError
from weft.text.table_layout import columns

if TYPE_CHECKING:
    from weft.cli.display import Display
    from weft.explain.gradcheck import TensorCheck

WRONG = 1  # exit code


class ProgressCallback:
    """Shows how far the reading of data has come."""

    def __init__(self, display: Display) -> None:
        self.display = display

    def on_note(self, text: str) -> None:
        self.display.line(text)

    def on_progress(self, name: str, done: int, total: int) -> None:
        self.display.show(name, done / max(1, total))


def as_table(found: list[TensorCheck], tolerance: float) -> str:
    """Tensors for people, the worst marked."""
    rows = [["tensor", "shape", "checked", "largest", "error", ""]]
    for one in found:
        shape = " x ".join(map(str, one.shape)) or "1"
        mark = "" if one.error <= tolerance else "wrong"
        rows.append([one.name, shape, str(one.entries), f"{one.max_error:.2e}", f"{one.error:.1e}", mark])
    return columns(rows, left=2)


def as_json(one: TensorCheck, tolerance: float) -> dict[str, Any]:
    numbers = {"entries": one.entries, "largest": finite(one.max_error), "error": finite(one.error)}
    return {"tensor": one.name, "shape": list(one.shape), **numbers, "right": one.error <= tolerance}


@dataclass(kw_only=True)
class Gradcheck(ModelCommand):
    """Compare the gradients of a run file's model with numerical ones, on its own data and before any training.

    Each tensor of weights by a sample of its entries, in float64. The exit code is 1 where one is wrong.
    """

    run_file: Annotated[Path, typer.Argument(metavar="RUN.TOML", help="The run file; weft init writes one.")]
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=VALUE", help="Change an option of the run file; may be given several times."),
    ] = None
    entries: Annotated[int, typer.Option(metavar="N", help="Entries of each tensor that are compared.")] = 4
    tolerance: Annotated[float, typer.Option(metavar="X", help="The largest relative error that is right.")] = 1e-5

    def run(self) -> int:
        from weft.cli.display import Display

        if self.entries < 1:
            raise UsageError("--entries", f"must be 1 or more, not {self.entries}")
        if not self.tolerance > 0:
            raise UsageError("--tolerance", f"must be above 0, not {self.tolerance:g}")
        with Display(quiet=self.quiet) as display:
            found = self._checked(display)
        wrong = [one for one in found if not one.error <= self.tolerance]
        if self.json:
            listed = [as_json(one, self.tolerance) for one in found]
            write_json({"run_file": str(self.run_file), "tolerance": self.tolerance, "tensors": listed, "wrong": len(wrong)})
        else:
            verdict = f"{len(wrong)} of {len(found)} tensors are wrong" if wrong else f"all {len(found)} tensors are right"
            write(as_table(found, self.tolerance) + f"{verdict}: relative errors up to {self.tolerance:g} are rounding\n")
        return WRONG if wrong else 0

    def _checked(self, display: Display) -> list[TensorCheck]:
        from weft.config import override, read_toml
        from weft.explain.gradcheck import check_tensors, problem
        from weft.runs.resolve import resolve

        values = override(read_toml(self.run_file), [*(self.overrides or []), "train.device=cpu"])
        config = resolve(values, base=self.run_file.parent)
        found = list[Any]()
        with TemporaryDirectory() as place:
            given = problem(config, Path(place), ProgressCallback(display))
            total = len(list(given.model.parameters()))
            for one in check_tensors(given, entries=self.entries):
                found.append(one)
                display.show("checking", len(found) / total, f"{len(found)} of {total} tensors")
        return found
