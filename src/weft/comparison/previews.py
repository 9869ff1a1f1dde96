"""Small copies of the files of items, for reports: recordings to play, images to see."""

from __future__ import annotations

from collections.abc import Sequence

from weft.comparison.results import RunResults
from weft.errors import DataError
from weft.tasks.compare_spec import Preview
from weft.tasks.registry import find_task

MAX_BYTES = 500_000  # of an item
MAX_TOTAL_BYTES = 5_000_000  # of all items


def make_previews(run: RunResults, items: Sequence[int]) -> dict[int, Preview]:
    """The previews of these items, by index, as far as all of them together are within the limit. A file that cannot be read
    any more has none."""
    previews, used = dict[int, Preview](), 0
    how = find_task(run.task).compare.previews
    for item in items if how is not None and run.files else ():
        try:
            preview = None if how is None else how.make(run.files[item])
        except DataError:
            continue
        size = 0 if preview is None else sum(map(len, preview.urls))
        if preview is None or size > MAX_BYTES:
            continue
        used += size
        if used > MAX_TOTAL_BYTES:
            break
        previews[item] = preview
    return previews
