"""Views as files: a page, pictures, or numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.output import check_files, note
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.explain.explanation import Explanation

FORMATS = (".html", ".svg", ".png", ".json")


def check_format(option: str, output: Path | None) -> None:
    """Refuse a file that nothing can be written to, before any work is done."""
    if output is None:
        return
    if output.suffix not in FORMATS:
        raise UsageError(option, f"{output} must end in .html, .svg, .png or .json")
    check_files({option: output})
    if output.suffix == ".png":
        from weft.plots.raster import check_raster

        check_raster(option)


def _counted(views: Sequence[Explanation]) -> str:
    """'attention and units'."""
    *limit, last = (view.view for view in views)
    return f"{', '.join(limit)} and {last}" if limit else last


def write_explanations(
    output: Path, views: Sequence[Explanation], *, title: str, numbers: Mapping[str, Any], quiet: bool
) -> None:
    """All views as one page (.html), their pictures one by one (.svg, .png), or their `numbers` (.json)."""
    from weft import files
    from weft.explain.page import page

    if output.suffix == ".json":
        files.write_json(output, numbers, named=True)
        note(f"{output}: the numbers of {_counted(views)}", quiet=quiet)
        return
    if output.suffix == ".html":
        files.write_text(output, page(views, title=title), named=True)
        note(f"{output}: a page with {_counted(views)}", quiet=quiet)
        return
    pictures = [picture for view in views for picture in view.figures]
    if not pictures:
        raise UsageError(output, f"there is no picture of {views[0].view} to write", "write .html or .json")
    for number, picture in enumerate(pictures, 1):
        place = output if number == 1 else output.with_name(f"{output.stem}-{number}{output.suffix}")
        _write_picture(place, picture.svg)
        note(f"{place}: {picture.caption}", quiet=quiet)


def _write_picture(place: Path, svg: str) -> None:
    from weft import files

    if place.suffix == ".svg":
        files.write_text(place, svg, named=True)
        return
    from weft.plots.raster import raster

    files.write_bytes(place, raster(svg), named=True)
