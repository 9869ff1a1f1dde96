"""`weft check --gradients`: gradients of a run file's model compared with numerical ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from weft.cli.output import finite
from weft.text.table_layout import columns

if TYPE_CHECKING:
    from weft.cli.display import Display
    from weft.explain.gradcheck import TensorCheck
    from weft.runs.config import RunConfig


class DataProgress:
    """Shows the progress of reading data."""

    def __init__(self, display: Display) -> None:
        self.display = display

    def on_note(self, text: str) -> None:
        self.display.line(text)

    def on_data(self, summary: str) -> None:
        pass

    def on_progress(self, name: str, done: int, total: int) -> None:
        self.display.show(name, done / max(1, total))


def check_gradients(config: RunConfig, entries: int, display: Display) -> list[TensorCheck]:
    """Compare `entries` entries of each weight tensor, in float64 on the CPU."""
    from weft.explain.gradcheck import check_tensors, make_loss_function

    checks = list[Any]()
    with TemporaryDirectory() as directory:
        function = make_loss_function(config, Path(directory), DataProgress(display))
        total = len(list(function.model.parameters()))
        for check in check_tensors(function, entries=entries):
            checks.append(check)
            display.show("checking gradients", len(checks) / total, f"{len(checks)} of {total} tensors")
    return checks


def wrong_tensors(checks: Sequence[TensorCheck], tolerance: float) -> list[TensorCheck]:
    return [check for check in checks if not check.error <= tolerance]


def as_table(checks: Sequence[TensorCheck], tolerance: float) -> str:
    """One row per tensor, wrong ones marked, and a summary."""
    rows = [["tensor", "shape", "checked", "largest", "error", ""]]
    for check in checks:
        shape = "x".join(map(str, check.shape)) or "1"
        mark = "" if check.error <= tolerance else "wrong"
        rows.append([check.name, shape, str(check.entries), f"{check.max_gradient:.2e}", f"{check.error:.1e}", mark])
    wrong = len(wrong_tensors(checks, tolerance))
    verdict = f"{wrong} of {len(checks)} gradients are wrong" if wrong else f"All {len(checks)} gradients are correct"
    return columns(rows, left=2) + f"{verdict} (relative error up to {tolerance:g})\n"


def as_json(check: TensorCheck, tolerance: float) -> dict[str, Any]:
    numbers = {"entries": check.entries, "largest": finite(check.max_gradient), "error": finite(check.error)}
    return {"tensor": check.name, "shape": list(check.shape), **numbers, "correct": check.error <= tolerance}
