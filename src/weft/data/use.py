"""Files that a trained run is used on, read as those of its training are: text columns of tables, words of tagged sentences,
lines of what is neither."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from pathlib import Path

from weft.config import Table
from weft.data.label_files import FASTTEXT, refuse_conll
from weft.data.labelled import LabelledTable
from weft.data.pairs import PairsTable
from weft.data.records import Entry, Opened, Plain, Used, open_records
from weft.data.rows import kind_of
from weft.data.span_files import is_squad
from weft.data.span_source import AskedTable
from weft.data.tables import DataTable
from weft.data.tag_records import open_tagged
from weft.data.tagged import TaggedTable
from weft.text.gate import as_paths

Lines = Callable[[], Iterator[str]]  # the lines of a file, from its beginning
SAMPLE, ENOUGH = 50, 5  # lines by which labels are told, at most and at least
_FASTTEXT = re.compile(rf"(?:{FASTTEXT}[^ \t]+[ \t]+)+")
_LABEL = re.compile(r"([^ \t]+)[ \t]+(?=[^ \t])")


def _labelled_lines(path: Path, lines: Lines, table: LabelledTable, labels: Collection[str]) -> Opened | None:
    """Lines that start with a label, as those of training do, without it; None where they do not."""
    refuse_conll(path)
    sample = [line for line in islice(lines(), SAMPLE) if line.strip()]
    starts = _FASTTEXT
    if not sample or not sample[0].startswith(FASTTEXT):
        if any(kind_of(one) != "text" for one in as_paths(table.train)):
            return None  # a word is no label where labels were columns
        found = [match[1] for line in sample if (match := _LABEL.match(line))]
        names = [name if table.coarse is None else name.partition(table.coarse)[0] for name in found]
        if len(found) < max(ENOUGH, len(sample)) or not all(name in labels for name in names):
            return None
        starts = _LABEL

    def entries() -> Iterator[Entry]:
        for number, line in enumerate(lines(), 1):
            text = starts.sub("", line, count=1) if starts.match(line) else line
            yield Entry(text, (text,), f"{path}: line {number}", text)

    return Opened(Plain(), entries(), [f"{path.name}: lines start with a label, which is no part of the text"])


def _of_columns(table: Table, *, targets: bool) -> Used | None:
    """What is read of a table; None where nothing is."""
    if isinstance(table, LabelledTable | AskedTable):
        return table.used()
    if isinstance(table, PairsTable):
        return table.used(targets=targets)
    # running text: a run that was trained on the lines of a table reads them again
    if isinstance(table, DataTable) and all(kind_of(path) == "text" for path in as_paths(table.train)):
        return table.used()
    return None


def open_file(
    path: Path, lines: Lines, table: Table, *, labels: Collection[str] = (), targets: bool = False, encoding: str = "utf-8"
) -> Opened | None:
    """The records of a file for a run whose [data] is `table` and that has these labels, or tags; None for a text, whose
    records are its lines. With `targets`, those of pairs are read, too."""
    if isinstance(table, TaggedTable):
        return open_tagged(path, lines, table.reading(), labels)
    if kind_of(path) == "text":
        return _labelled_lines(path, lines, table, labels) if isinstance(table, LabelledTable) else None
    used = _of_columns(table, targets=targets)
    if used is None:
        return None
    return open_records(path, lines(), used, squad=isinstance(table, AskedTable) and is_squad(path, encoding))
