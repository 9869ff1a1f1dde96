"""Views as files: a page, pictures, or numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.output import note
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.explain.view import View

KINDS = (".html", ".svg", ".json")


def check_kind(option: str, out: Path | None) -> None:
    """Refuse a file that nothing can be written to, before any work is done."""
    if out is not None and out.suffix not in KINDS:
        raise UsageError(f"{option}: {out} must end in .html, .svg or .json")


def write_views(out: Path, views: Sequence[View], *, title: str, numbers: Mapping[str, Any], quiet: bool) -> None:
    """All views as one page (.html), their pictures one by one (.svg), or their `numbers` (.json)."""
    from weft import files
    from weft.explain.page import page

    if out.suffix == ".json":
        files.write_json(out, numbers)
        return
    if out.suffix == ".html":
        files.write_text(out, page(views, title=title))
        return
    pictures = [picture for view in views for picture in view.pictures]
    for number, picture in enumerate(pictures, 1):
        place = out if number == 1 else out.with_name(f"{out.stem}-{number}.svg")
        files.write_text(place, picture.svg)
        note(f"{place}: {picture.caption}", quiet=quiet)
