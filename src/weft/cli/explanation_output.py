"""Explanations as files: --output of the commands that explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.output import check_files, status

if TYPE_CHECKING:
    from weft.explain.explanation import Explanation


def check_format(option: str, output: Path | None) -> None:
    """Refuse an output file that cannot be written, before any work."""
    if output is None:
        return
    from weft.explain.saving import check_suffix

    check_suffix(option, output)
    check_files({option: output})
    if output.suffix == ".png":
        from weft.plots.raster import check_raster

        check_raster(option)


def write_explanations(
    output: Path, views: Sequence[Explanation], *, title: str, numbers: Mapping[str, Any], quiet: bool
) -> None:
    """Write the explanations and print the paths of the files."""
    from weft.explain.saving import save_explanations

    is_figure = output.suffix in (".svg", ".png")
    for path, description in save_explanations(output, views, title=title, data=numbers).items():
        status(f"{description}: {path}" if is_figure else f"{description} written to {path}", quiet=quiet)
