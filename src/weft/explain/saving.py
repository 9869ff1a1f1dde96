"""Explanations as files: an HTML page, figures, or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft import files
from weft.errors import UsageError
from weft.explain.explanation import Explanation
from weft.explain.page import page

FORMATS = (".html", ".svg", ".png", ".json")


def check_suffix(option: str, path: Path) -> None:
    if path.suffix not in FORMATS:
        raise UsageError(option, f"{path} must end in .html, .svg, .png or .json")


def save_explanations(path: Path, views: Sequence[Explanation], *, title: str, data: Mapping[str, Any]) -> dict[Path, str]:
    """Write all views as one page (.html), their figures one by one (.svg, .png), or `data` (.json). Returns the files that were
    written, with a description of each."""
    description = _join(view.view for view in views).capitalize()
    if path.suffix == ".json":
        files.write_json(path, data, named=True)
        return {path: description}
    if path.suffix == ".html":
        files.write_text(path, page(views, title=title), named=True)
        return {path: description}
    figures = [figure for view in views for figure in view.figures]
    if not figures:
        raise UsageError(path, f"{views[0].view} has no figure", "write .html or .json")
    paths = [path, *(path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(2, len(figures) + 1))]
    for figure_path, figure in zip(paths, figures, strict=True):
        _write_figure(figure_path, figure.svg)
    return {figure_path: figure.caption for figure_path, figure in zip(paths, figures, strict=True)}


def _join(names: Iterable[str]) -> str:
    """'attention, surprisal and units'."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _write_figure(path: Path, svg: str) -> None:
    if path.suffix == ".svg":
        files.write_text(path, svg, named=True)
        return
    from weft.plots.raster import raster  # needs a font

    files.write_bytes(path, raster(svg), named=True)
