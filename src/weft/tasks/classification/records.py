"""Texts of input files for prediction; labels at the start of lines are removed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from weft.data.input_records import InputFile, InputRecord, OpenedRecords, PlainOutput, open_records
from weft.data.table_rows import file_format, is_table
from weft.tasks.classification.data import LabeledDataConfig
from weft.tasks.classification.files import FASTTEXT, refuse_conll
from weft.text.reading import as_paths, pluralize

MIN_LINES = 3  # for labels to be assumed if only most lines start with one; with fewer, all lines must
_FASTTEXT = re.compile(rf"(?:{FASTTEXT}[^ \t]+[ \t]+)+")
_LABEL = re.compile(r"([^ \t]+)[ \t]+(?=[^ \t])")


def _label_prefix(line: str, config: LabeledDataConfig, labels: Collection[str]) -> int:
    """Length of the prefix of a line that is a label of the run, or a list of labels; 0 if there is none."""
    if (match := _LABEL.match(line)) is None:
        return 0
    names = match[1].split(config.label_separator or ",") if config.multilabel else [match[1]]
    if config.strip_label_after is not None:
        names = [name.partition(config.strip_label_after)[0] for name in names]
    return match.end() if all(name in labels for name in names) else 0


def _trained_on_lines(config: LabeledDataConfig) -> bool:
    """Whether the training data had labels at the start of lines, not in a column or in file names."""
    return not any(is_table(path, config.delimiter) or path.is_dir() for path in as_paths(config.train))


def _labeled_lines(config: LabeledDataConfig, file: InputFile) -> OpenedRecords | None:
    """Lines without the labels at their start; None if no line starts with a label.

    fastText labels are always removed. Labels of the run are removed if it was trained on such lines and most of the lines
    start with one.
    """
    path, lines, labels = file.path, file.lines, file.labels
    refuse_conll(path)
    num_lines = num_fasttext = num_labeled = 0
    may_have_labels = _trained_on_lines(config)
    for line in lines():
        num_lines += bool(line.strip())
        num_fasttext += _FASTTEXT.match(line) is not None
        num_labeled += may_have_labels and _label_prefix(line, config, labels) > 0
    has_labels = 2 * num_labeled > num_lines if num_lines >= MIN_LINES else num_labeled == num_lines
    count = num_fasttext + (num_labeled if has_labels else 0)
    if not count:
        return None

    def text_of(line: str) -> str:
        if match := _FASTTEXT.match(line):
            return line[match.end() :]
        return line[_label_prefix(line, config, labels) :] if may_have_labels and has_labels else line

    def entries() -> Iterator[InputRecord]:
        for number, line in enumerate(lines(), 1):
            text = text_of(line)
            yield InputRecord(text, (text,), f"{path}: line {number}", text)

    fraction = f"{count:,} of {pluralize(num_lines, 'line')} {'starts' if count == 1 else 'start'} with a label"
    return OpenedRecords(PlainOutput(), entries(), [f"{path.name}: {fraction}, which is not part of the text"])


def open_labeled(config: LabeledDataConfig, file: InputFile) -> OpenedRecords | None:
    """The texts of a table, or lines without their labels; None for plain text, whose records are its lines."""
    if file_format(file.path) == "text":
        return _labeled_lines(config, file)
    return open_records(file, config.used())
