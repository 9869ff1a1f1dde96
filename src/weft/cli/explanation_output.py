"""Views as files: an HTML page, figures, or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.output import check_files, status
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.explain.explanation import Explanation

FORMATS = (".html", ".svg", ".png", ".json")


def check_format(option: str, output: Path | None) -> None:
    """Refuse an output file that cannot be written, before any work."""
    if output is None:
        return
    if output.suffix not in FORMATS:
        raise UsageError(option, f"{output} must end in .html, .svg, .png or .json")
    check_files({option: output})
    if output.suffix == ".png":
        from weft.plots.raster import check_raster

        check_raster(option)


def _view_names(views: Sequence[Explanation]) -> str:
    """'attention and units'."""
    *first, last = (view.view for view in views)
    return f"{', '.join(first)} and {last}" if first else last


def write_explanations(
    output: Path, views: Sequence[Explanation], *, title: str, numbers: Mapping[str, Any], quiet: bool
) -> None:
    """Write all views as one page (.html), each figure to a file (.svg, .png), or the `numbers` (.json)."""
    from weft import files
    from weft.explain.page import page

    if output.suffix == ".json":
        files.write_json(output, numbers, named=True)
        status(f"{_view_names(views).capitalize()} written to {output}", quiet=quiet)
        return
    if output.suffix == ".html":
        files.write_text(output, page(views, title=title), named=True)
        status(f"{_view_names(views).capitalize()} written to {output}", quiet=quiet)
        return
    figures = [figure for view in views for figure in view.figures]
    if not figures:
        raise UsageError(output, f"{views[0].view} has no figure", "write .html or .json")
    for number, figure in enumerate(figures, 1):
        path = output if number == 1 else output.with_name(f"{output.stem}-{number}{output.suffix}")
        _write_figure(path, figure.svg)
        status(f"{figure.caption}: {path}", quiet=quiet)


def _write_figure(path: Path, svg: str) -> None:
    from weft import files

    if path.suffix == ".svg":
        files.write_text(path, svg, named=True)
        return
    from weft.plots.raster import raster

    files.write_bytes(path, raster(svg), named=True)
