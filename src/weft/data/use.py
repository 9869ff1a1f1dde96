"""Files that a trained run is used on, read as those of its training are: text columns of tables, words of tagged sentences,
lines of what is neither."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from weft.config import Table
from weft.data.records import Entry, Opened, Plain, Used, open_records
from weft.data.rows import kind_of
from weft.data.tables import DataTable
from weft.errors import DataError
from weft.tasks.classification.data import LabelledTable
from weft.tasks.classification.files import FASTTEXT, is_conll, refuse_conll
from weft.tasks.qa.data import AskedTable
from weft.tasks.qa.files import is_squad
from weft.tasks.seq2seq.data import PairsTable
from weft.tasks.tagging.data import TaggedTable
from weft.tasks.tagging.records import open_tagged
from weft.text.gate import as_paths, many

Lines = Callable[[], Iterator[str]]  # the lines of a file, from its beginning
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
    return all(kind_of(one) == "text" and not one.is_dir() for one in as_paths(table.train or ()))


def _labelled_lines(path: Path, lines: Lines, table: LabelledTable, labels: Collection[str]) -> Opened | None:
    """Lines that start with a label without it: fastText's wherever they are, those of the run if it was trained on such
    lines and most of these start so; None where no line does."""
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


# ---- texts


def refuse_marked(path: Path, table: Table, *, tables: bool = False) -> None:
    """Refuse CoNLL, and `tables`, for a run that was trained on plain text: their markup would be read as text."""
    if not isinstance(table, DataTable | PairsTable | AskedTable):
        return
    trained = as_paths(table.train or ())
    if is_conll(path) and not any(map(is_conll, trained)):
        raise DataError(f"{path}: is CoNLL by its name, words with tags; this run reads plain text: give a sentence a line")
    kind = kind_of(path)
    if tables and kind != "text" and all(kind_of(one) == "text" for one in trained):
        raise DataError(f"{path}: is {kind.upper()} by its name, and this run was trained on plain text; give plain text")


def _of_columns(table: Table, *, targets: bool) -> Used | None:
    """What is read of a table; None where nothing is."""
    if isinstance(table, LabelledTable | AskedTable):
        return table.used()
    if isinstance(table, PairsTable):
        return table.used(targets=targets)
    # running text: a run that was trained on the lines of a table reads them again
    if isinstance(table, DataTable) and all(kind_of(path) == "text" for path in as_paths(table.train or ())):
        return table.used()
    return None


def open_file(
    path: Path, lines: Lines, table: Table, *, labels: Collection[str] = (), targets: bool = False, encoding: str = "utf-8"
) -> Opened | None:
    """The records of a file for a run whose [data] is `table` and that has these labels, or tags; None for a text, whose
    records are its lines. With `targets`, those of pairs are read, too."""
    if isinstance(table, TaggedTable):
        return open_tagged(path, lines, table.reading(), labels)
    refuse_marked(path, table)
    if kind_of(path) == "text":
        return _labelled_lines(path, lines, table, labels) if isinstance(table, LabelledTable) else None
    used = _of_columns(table, targets=targets)
    if used is None:
        return None
    return open_records(path, lines(), used, squad=isinstance(table, AskedTable) and is_squad(path, encoding))
