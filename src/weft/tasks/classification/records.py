"""Texts of a file for prediction, without labels at the start of lines."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from weft.data.input_records import InputFile, InputRecord, OpenedRecords, PlainOutput, open_records
from weft.data.table_rows import file_format
from weft.tasks.classification.data import LabeledDataConfig
from weft.tasks.classification.files import FASTTEXT, refuse_conll
from weft.text.reading import as_paths, pluralize

FEW = 2  # lines, of which all must start with a label; of more, most
_FASTTEXT = re.compile(rf"(?:{FASTTEXT}[^ \t]+[ \t]+)+")
_LABEL = re.compile(r"([^ \t]+)[ \t]+(?=[^ \t])")


def _label_prefix(line: str, config: LabeledDataConfig, labels: Collection[str]) -> int:
    """Where the text starts behind a label of the run, or several where there may be; 0 where the first word is none."""
    if (match := _LABEL.match(line)) is None:
        return 0
    names = match[1].split(config.label_separator or ",") if config.multilabel else [match[1]]
    if config.strip_label_after is not None:
        names = [name.partition(config.strip_label_after)[0] for name in names]
    return match.end() if all(name in labels for name in names) else 0


def _on_lines(config: LabeledDataConfig) -> bool:
    """Whether the training data had labels at the start of lines, not in a column or in file names."""
    return all(file_format(one) == "text" and not one.is_dir() for one in as_paths(config.train))


def _labelled_lines(config: LabeledDataConfig, file: InputFile) -> OpenedRecords | None:
    """Lines that start with a label without it: fastText's wherever they are, those of the run if it was trained on such
    lines and most of these start so; None where no line does."""
    path, lines, labels = file.path, file.lines, file.labels
    refuse_conll(path)
    filled, marked, own, both = 0, 0, 0, _on_lines(config)
    for line in lines():
        filled += bool(line.strip())
        marked += _FASTTEXT.match(line) is not None
        own += both and _label_prefix(line, config, labels) > 0
    limit = own == filled if filled <= FEW else 2 * own > filled
    count = marked + (own if limit else 0)
    if not count:
        return None

    def text_of(line: str) -> str:
        if match := _FASTTEXT.match(line):
            return line[match.end() :]
        return line[_label_prefix(line, config, labels) :] if both and limit else line

    def entries() -> Iterator[InputRecord]:
        for number, line in enumerate(lines(), 1):
            text = text_of(line)
            yield InputRecord(text, (text,), f"{path}: line {number}", text)

    told = f"{count:,} of {pluralize(filled, 'line')} {'starts' if count == 1 else 'start'} with a label"
    return OpenedRecords(PlainOutput(), entries(), [f"{path.name}: {told}, which is not part of the text"])


def open_labelled(config: LabeledDataConfig, file: InputFile) -> OpenedRecords | None:
    """The texts of a table, or lines without their labels; None for a text, whose records are its lines."""
    if file_format(file.path) == "text":
        return _labelled_lines(config, file)
    return open_records(file, config.used())
