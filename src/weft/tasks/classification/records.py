"""Texts of a file that a classifier is used on: labels that stand before them are no part of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from weft.data.records import Entry, InputFile, Opened, Plain, open_records
from weft.data.rows import kind_of
from weft.tasks.classification.data import LabelledTable
from weft.tasks.classification.files import FASTTEXT, refuse_conll
from weft.text.gate import as_paths, many

FEW = 2  # lines, of which all must start with a label; of more, most
_FASTTEXT = re.compile(rf"(?:{FASTTEXT}[^ \t]+[ \t]+)+")
_LABEL = re.compile(r"([^ \t]+)[ \t]+(?=[^ \t])")


def _own_start(line: str, table: LabelledTable, labels: Collection[str]) -> int:
    """Where the text starts behind a label of the run, or several where there may be; 0 where the first word is none."""
    if (match := _LABEL.match(line)) is None:
        return 0
    names = match[1].split(table.separator or ",") if table.multi else [match[1]]
    if table.coarse is not None:
        names = [name.partition(table.coarse)[0] for name in names]
    return match.end() if all(name in labels for name in names) else 0


def _on_lines(table: LabelledTable) -> bool:
    """Whether labels stood at the start of lines in training, not in a column or in the name of a folder."""
    return all(kind_of(one) == "text" and not one.is_dir() for one in as_paths(table.train))


def _labelled_lines(table: LabelledTable, file: InputFile) -> Opened | None:
    """Lines that start with a label without it: fastText's wherever they are, those of the run if it was trained on such
    lines and most of these start so; None where no line does."""
    path, lines, labels = file.path, file.lines, file.labels
    refuse_conll(path)
    filled, marked, own, both = 0, 0, 0, _on_lines(table)
    for line in lines():
        filled += bool(line.strip())
        marked += _FASTTEXT.match(line) is not None
        own += both and _own_start(line, table, labels) > 0
    most = own == filled if filled <= FEW else 2 * own > filled
    count = marked + (own if most else 0)
    if not count:
        return None

    def text_of(line: str) -> str:
        if match := _FASTTEXT.match(line):
            return line[match.end() :]
        return line[_own_start(line, table, labels) :] if both and most else line

    def entries() -> Iterator[Entry]:
        for number, line in enumerate(lines(), 1):
            text = text_of(line)
            yield Entry(text, (text,), f"{path}: line {number}", text)

    told = f"{count:,} of {many(filled, 'line')} {'starts' if count == 1 else 'start'} with a label"
    return Opened(Plain(), entries(), [f"{path.name}: {told}, which is no part of the text"])


def open_labelled(table: LabelledTable, file: InputFile) -> Opened | None:
    """The texts of a table, or lines without their labels; None for a text, whose records are its lines."""
    if kind_of(file.path) == "text":
        return _labelled_lines(table, file)
    return open_records(file, table.used())
