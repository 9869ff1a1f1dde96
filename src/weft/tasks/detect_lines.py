"""What the lines of a text file are: words with tags, labels with texts, sentences or running text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from weft.data.column_values import ColumnValues, are_repeated
from weft.data.sample import DELIMITERS, SAMPLE_ROWS, num_sampled
from weft.data.table_rows import is_conll
from weft.errors import DataError
from weft.tasks.classification.files import FASTTEXT, are_tagged
from weft.tasks.detection import Detection
from weft.tasks.tagging.files import CONLLU, ID
from weft.text.reading import pluralize, quote

MIN_LINES = 4  # to detect labels or a table
MAX_FIRST_WORDS = 0.1  # distinct first words per line, if they are labels; sentences start with many words
MAX_LABEL_WORDS_IN_TEXTS = 0.05  # of the other words: labels do not occur in sentences as often as The and A
MAX_SENTENCE_CHARS = 300  # on average, of lines that are sentences; longer lines are paragraphs
MAX_BLANK = 0.02  # of the lines of a file with one sentence per line
MIN_COMPLETE = 0.8  # of the lines that are sentences end as one
MAX_WORDS_OF_ITEM = 3  # on average, of lines that are names or words
# also the full stops of Chinese and Hindi, the question mark of Arabic, and quotation marks after them
_SENTENCE_END = re.compile("[.!?\u2026\u3002\uff01\uff1f\u061f\u0964][\\s\"'\u201d\u2019\u00bb)\\]]*$|<eos>$|</s>$")


# ---- words with tags


def tag_readings(path: Path, lines: Sequence[str]) -> list[Detection]:
    """Readings of words with tags: CoNLL-U or columns, and a blank line after each sentence."""
    if not is_conll(path) and not are_tagged(lines):
        return []
    words = [line.split("\t") for line in lines if line.strip() and not line.startswith("#")]
    is_conllu = bool(words) and all(len(cells) == len(CONLLU) for cells in words) and ID.fullmatch(words[0][0]) is not None
    if not is_conllu:
        return [Detection("tagging", {}, "one word and its tag per line: the last column has the tags")]
    columns = {name: Counter(cells[CONLLU.index(name)] for cells in words) for name in ("upos", "xpos", "deprel")}
    filled = [name for name, tags in columns.items() if tags["_"] < len(words) / 2]
    return [
        Detection("tagging", {"tag_column": name}, f"CoNLL-U with {pluralize(len(columns[name]), f'{name} tag')}")
        for name in filled or ["upos"]
    ]


# ---- labels at the start of lines


def _are_beginnings(cells: Sequence[Sequence[str]]) -> bool:
    """Whether the first words belong to sentences: they have a capital letter, what follows has none, and ends with a
    full stop."""
    num_complete = sum(_SENTENCE_END.search(text) is not None for _, text in cells)
    num_continued = sum(label.istitle() and text[:1].islower() for label, text in cells)
    return min(num_complete, num_continued) >= MIN_COMPLETE * len(cells)


def label_readings(lines: Sequence[str]) -> list[Detection]:
    """Readings of lines that start with a label: with __label__, or with a word that occurs in nearly no text."""
    filled = [line for line in lines if line.strip()]
    if filled and filled[0].startswith(FASTTEXT):
        is_multilabel = any(line.count(FASTTEXT) > 1 for line in filled)
        data = {"multilabel": True} if is_multilabel else {}
        return [Detection("classification", data, f"lines start with labels, {FASTTEXT}")]
    cells = [line.split(None, 1) for line in filled]
    if len(cells) < MIN_LINES or any(len(parts) < 2 for parts in cells) or any(line[0].isspace() for line in filled):
        return []
    labels = Counter(label for label, _ in cells)
    texts = Counter(word for _, text in cells for word in text.lower().split())
    num_in_texts = sum(texts[label.lower()] for label in labels)
    is_rare = num_in_texts <= MAX_LABEL_WORDS_IN_TEXTS * texts.total()
    # in a few lines, labels are only recognized if no text contains them
    is_few = len(labels) <= max(MAX_FIRST_WORDS * len(cells), 2 if num_in_texts else len(cells) // 2)
    min_labels = 1 if len(lines) >= SAMPLE_ROWS else 2  # in a file that is sorted by label, all lines of a sample may have one
    are_labels = len(labels) >= min_labels and is_rare and is_few and are_repeated(len(labels), len(cells))
    if not are_labels or _are_beginnings(cells):
        return []
    examples = ", ".join(quote(label, 20) for label, _ in labels.most_common(3))
    count = f"{pluralize(len(labels), 'distinct word')} in {num_sampled(len(lines), 'line')}"
    return [Detection("classification", {}, f"lines start with {count} ({examples}): labels")]


# ---- tables


def table_delimiter(lines: Sequence[str]) -> str | None:
    """The character that divides all lines into the same number of columns, at least 2; None if there is none."""
    filled = [line for line in lines if line.strip()]
    for delimiter in ("\t", *DELIMITERS):
        counts = {line.count(delimiter) for line in filled}
        # two lines may each have a comma by chance, but not a tab
        if len(counts) == 1 and counts != {0} and len(filled) >= (1 if delimiter == "\t" else 2 * MIN_LINES):
            return delimiter
    return None


# ---- plain text


def _is_wrapped(lines: Sequence[str]) -> bool:
    """Whether most lines have about the same length, as in text with a fixed line width."""
    lengths = sorted(map(len, lines))
    return len(lines) >= MIN_LINES and lengths[len(lengths) // 2] >= 0.8 * lengths[-1] and lengths[-1] > MAX_WORDS_OF_ITEM * 10


def are_sentences(lines: Sequence[str]) -> bool:
    """Whether each line is a separate text: a sentence, a name or a word."""
    filled = [line.strip() for line in lines if line.strip()]
    num_blank = len(lines) - len(filled)
    if len(filled) < 2 or num_blank > MAX_BLANK * len(lines) or sum(map(len, filled)) > MAX_SENTENCE_CHARS * len(filled):
        return False
    if (
        sum(len(line.split()) for line in filled) <= MAX_WORDS_OF_ITEM * len(filled)
        and max(map(len, filled)) < MAX_SENTENCE_CHARS
    ):
        return True
    num_complete = sum(_SENTENCE_END.search(line) is not None for line in filled)
    # sentences without punctuation differ in length
    return num_complete >= MIN_COMPLETE * len(filled) or (num_complete < 0.02 * len(filled) and not _is_wrapped(filled))


def refuse_without_texts(path: Path, lines: Sequence[str]) -> None:
    """Raise if the lines are numbers or labels."""
    column = ColumnValues(1, tuple(lines))
    if column.is_number:
        raise DataError(path, f"only numbers, such as {quote(column.texts[0], 20)}", "use a file with texts")
    if column.is_label and column.mean_words < 2 and len(column.texts) >= MIN_LINES:
        examples = ", ".join(quote(text, 20) for text in sorted(set(column.texts))[:3])
        problem = f"only {pluralize(column.num_distinct, 'distinct line')}, such as {examples}: labels without texts"
        raise DataError(path, problem, "add the texts, or set `task` to read the lines as text")


def text_readings(path: Path, lines: Sequence[str]) -> list[Detection]:
    """Readings as text without labels: one text per line, or running text."""
    column = ColumnValues(1, tuple(lines))
    if not column.texts:
        raise DataError(path, "only white space, no text")
    mean = f"{column.mean_chars:,.0f} characters on average"
    separate = Detection("lm", {"read_as": "lines"}, f"lines of {mean} without labels: one text per line")
    running = Detection("lm", {"read_as": "windows"}, f"lines of {mean} without labels: running text")
    return [separate, running] if are_sentences(lines) else [running, separate]
