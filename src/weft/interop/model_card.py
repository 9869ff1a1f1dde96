"""README.md of an exported directory."""

from __future__ import annotations

from pathlib import Path

from weft.interop.export_record import ExportOptions
from weft.runs.run import AnyRun


def write_card(run: AnyRun, name: str, directory: Path, options: ExportOptions) -> None: ...
