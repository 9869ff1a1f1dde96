"""Views as files: a page, pictures, or numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.output import check_files, note
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.explain.view import View

KINDS = (".html", ".svg", ".png", ".json")


def check_kind(option: str, out: Path | None) -> None:
    """Refuse a file that nothing can be written to, before any work is done."""
    if out is None:
        return
    if out.suffix not in KINDS:
        raise UsageError(f"{option}: {out} must end in .html, .svg, .png or .json")
    check_files({option: out})
    if out.suffix == ".png":
        from weft.plots.raster import check_raster

        check_raster(option)


def _counted(views: Sequence[View]) -> str:
    """'attention and units'."""
    *most, last = (view.what for view in views)
    return f"{', '.join(most)} and {last}" if most else last


def write_views(out: Path, views: Sequence[View], *, title: str, numbers: Mapping[str, Any], quiet: bool) -> None:
    """All views as one page (.html), their pictures one by one (.svg, .png), or their `numbers` (.json)."""
    from weft import files
    from weft.explain.page import page

    if out.suffix == ".json":
        files.write_json(out, numbers, named=True)
        note(f"{out}: the numbers of {_counted(views)}", quiet=quiet)
        return
    if out.suffix == ".html":
        files.write_text(out, page(views, title=title), named=True)
        note(f"{out}: a page with {_counted(views)}", quiet=quiet)
        return
    pictures = [picture for view in views for picture in view.pictures]
    if not pictures:
        raise UsageError(f"{out}: there is no picture of {views[0].what} to write; write .html or .json")
    for number, picture in enumerate(pictures, 1):
        place = out if number == 1 else out.with_name(f"{out.stem}-{number}{out.suffix}")
        _write_picture(place, picture.svg)
        note(f"{place}: {picture.caption}", quiet=quiet)


def _write_picture(place: Path, svg: str) -> None:
    from weft import files

    if place.suffix == ".svg":
        files.write_text(place, svg, named=True)
        return
    from weft.plots.raster import raster

    files.write_bytes(place, raster(svg), named=True)
