"""Which columns of a table are labels, texts, sources and targets, or questions, passages and answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from weft.data.column_names import PAIRS, UNSUPPORTED, has_role, is_language, normalized
from weft.data.column_values import ColumnValues
from weft.data.columns import Name
from weft.data.sample import TableSample, num_sampled
from weft.errors import DataError
from weft.tasks.detection import UNKNOWN, Detection, Known
from weft.text.reading import pluralize, preview

EXACT_LABEL_NAMES = ("label", "labels", "class", "category", "sentiment", "gold_label")
MIN_ANSWERS_IN_PASSAGE = 0.95
MIN_WORDS_WITH_SCORE = 2  # two single words and a number are a similarity, two sentences and a number an aligned pair
MAX_LABEL_COLUMNS = 4  # that are shown as alternatives
MIN_TEXT_CHARS = 15  # on average, of a text column whose values repeat as labels do


def _named(column: ColumnValues) -> str:
    """A column in a sentence: 'column "review"' or 'column 2'."""
    return f"column {column.name}" if isinstance(column.name, int) else f"column {preview(str(column.name), 40)!r}"


def _find(columns: Iterable[ColumnValues], name: Name | None) -> ColumnValues | None:
    return next((column for column in columns if column.name == name), None)


def _with_role(columns: Iterable[ColumnValues], role: str) -> list[ColumnValues]:
    """The columns whose names are typical of a role, exact names first."""
    matches = [column for column in columns if isinstance(column.name, str) and has_role(column.name, role)]
    return sorted(matches, key=lambda column: "_" in normalized(column.name))


# ---- questions


def _answers_in_passages(answers: ColumnValues, passages: ColumnValues) -> bool:
    """Whether nearly all answers are spans of their passages; empty ones mean that there is none."""
    pairs = [
        (part, passage)
        for answer, passage in zip(answers.values, passages.values, strict=True)
        for part in (answer if isinstance(answer, list) else [answer])
        if isinstance(part, str) and part.strip() and isinstance(passage, str)
    ]
    return bool(pairs) and sum(part.strip() in passage for part, passage in pairs) >= MIN_ANSWERS_IN_PASSAGE * len(pairs)


def _questions(sample: TableSample) -> list[Detection]:
    """Question answering: columns named so, with answers that are spans of the passages."""
    if not sample.has_names:
        return []
    questions, passages, answers = (_with_role(sample.columns, role) for role in ("question", "passage", "answer"))
    for question, passage, answer in ((q, p, a) for q in questions for p in passages for a in answers):
        if len({question.name, passage.name, answer.name}) == 3 and _answers_in_passages(answer, passage):
            data = {"question_column": question.name, "passage_column": passage.name, "answer_column": answer.name}
            starts = [column for column in _with_role(sample.columns, "answer_start") if column.name != answer.name]
            if starts:
                data["answer_start_column"] = starts[0].name
            reason = f"{_named(answer)} has spans of {_named(passage)}: answers to {_named(question)}"
            return [Detection("qa", data, reason)]
    return []


# ---- labels


def _can_be_label(column: ColumnValues) -> bool:
    """Whether a column has labels by its values, or by its name if there are too few rows to tell."""
    is_named = isinstance(column.name, str) and has_role(column.name, "label")
    if column.is_label or column.is_multilabel:
        return is_named or column.is_code or not column.is_number  # other numbers are counts and measurements
    is_exact = normalized(column.name) in EXACT_LABEL_NAMES and not column.is_number
    is_repeated = is_exact and 2 * column.num_distinct <= len(column.texts)  # a thousand labels, named so
    is_tiny = len(column.texts) < 10 or column.num_distinct == 1  # a file may be sorted by label
    is_float = any(isinstance(value, float) for value in column.values)
    is_few = is_named and (is_tiny or is_repeated)
    return is_few and column.is_short and bool(column.texts) and not column.is_date and not is_float


def _label_columns(sample: TableSample) -> list[ColumnValues]:
    """Columns that can be labels, the most likely first: by name, then the last and the first column, then by few values."""
    columns = [column for column in sample.columns if _can_be_label(column)]
    edges = (sample.columns[-1].name, sample.columns[0].name)

    def rank(column: ColumnValues) -> tuple[bool | int, ...]:
        is_exact = normalized(column.name) in EXACT_LABEL_NAMES
        is_named = isinstance(column.name, str) and has_role(column.name, "label")
        edge = edges.index(column.name) if column.name in edges else len(edges)
        return column.num_distinct == 1, not is_exact, not is_named, column.has_lists, edge, column.num_distinct

    return sorted(columns, key=rank)


def _text_columns(columns: Sequence[ColumnValues]) -> list[ColumnValues]:
    """Columns that can be texts, the most likely first: by name, then by length."""
    texts = [column for column in columns if column.is_text]
    named = [column.name for column in _with_role(texts, "text")]
    # a name such as "title" must not win over a much longer text
    return sorted(texts, key=lambda column: -column.mean_chars * (3 if column.name in named else 1))


def _text_pair(columns: Sequence[ColumnValues]) -> list[str] | None:
    """The names of two columns whose texts are classified together; None if no names say so. Other names than the typical ones
    differ in their number, and one of them has the longest text: '#1 String' and '#2 String'."""
    texts = _text_columns(columns)
    by_name = {normalized(column.name): column.name for column in texts if isinstance(column.name, str)}
    longest = normalized(texts[0].name) if texts else ""
    numbered = {tuple(longest.replace(number, new) for new in "12") for number in "12" if number in longest}
    pairs = (pair for pair in (*PAIRS, *numbered) if by_name.keys() >= set(pair) and len(set(pair)) == 2)
    return next(([by_name[first], by_name[second]] for first, second in pairs), None)


def _is_text_of(text: ColumnValues, label: ColumnValues) -> bool:
    """Whether a column has texts, given the labels: not a second column of labels."""
    is_named = isinstance(text.name, str) and has_role(text.name, "text")
    return text.num_distinct >= label.num_distinct and (not text.is_label or is_named or text.mean_chars >= MIN_TEXT_CHARS)


def _labeled(sample: TableSample, label: ColumnValues, known: Known) -> Detection | None:
    """Classification with this label column; None if no column has texts."""
    others = [column for column in sample.columns if column.name != label.name]
    text = known.data.get("text_column", _text_pair(others))
    if text is None:
        text = next((column.name for column in _text_columns(others) if _is_text_of(column, label)), None)
    if text is None:
        return None
    data: dict[str, Any] = {"text_column": text, "label_column": label.name}
    values = pluralize(label.num_distinct, "distinct value")
    if label.is_multilabel and (label.has_lists or not label.is_label or label.label_separator):
        data["multilabel"] = True
        if label.label_separator:
            data["label_separator"] = label.label_separator
            values += f" with parts between {label.label_separator!r}"
    reason = f"{_named(label)} has {values} in {num_sampled(len(label.texts), 'row')}: labels"
    return Detection("classification", data, reason)


# ---- pairs


def _named_pairs(sample: TableSample, known: Known) -> list[tuple[ColumnValues, ColumnValues]]:
    """Columns that are a source and a target by their names, or because the user says so."""
    chosen = [_find(sample.columns, known.data.get(option)) for option in ("source_column", "target_column")]
    if chosen[0] is not None and chosen[1] is not None:
        return [(chosen[0], chosen[1])]
    if not sample.has_names:
        return []
    targets, pairs = _with_role(sample.columns, "target"), list[tuple[ColumnValues, ColumnValues]]()
    for source in _with_role(sample.columns, "source"):
        pairs += [(source, target) for target in targets if target.name != source.name]
    languages = [column for column in sample.columns if is_language(column.name)]
    return [*pairs, *combinations(languages, 2)]


def _is_string(column: ColumnValues) -> bool:
    return bool(column.texts) and all(value is None or isinstance(value, str) for value in column.values)


def _pairs(sample: TableSample, known: Known) -> list[Detection]:
    """Pairs of a source and a target: columns with such names, or the only two columns of texts."""
    for source, target in _named_pairs(sample, known):
        if _is_string(source) and _is_string(target) and not _can_be_label(target):
            data = {"source_column": source.name, "target_column": target.name}
            return [Detection("seq2seq", data, f"{_named(source)} and {_named(target)} are pairs of source and target")]
    if known.task is not None and len(sample.columns) == 2 and all(map(_is_string, sample.columns)):
        texts = sample.columns  # whatever they contain: readings for other tasks than the known one are left out
    else:
        texts = [column for column in sample.columns if column.is_text and not _can_be_label(column)]
    scores = [column for column in sample.columns if column.is_number and not column.is_id and not column.is_code]
    if len(texts) != 2 or (scores and all(column.mean_words < MIN_WORDS_WITH_SCORE for column in texts)):
        return []
    source, target = texts
    values = f"{target.num_distinct:,} distinct values in {num_sampled(sample.num_rows, 'row')}"
    reason = f"{_named(source)} and {_named(target)} have texts, the second {values}: source and target"
    if sample.has_names:
        return [Detection("seq2seq", {"source_column": source.name, "target_column": target.name}, reason)]
    # without a header, the first two columns are read
    return [Detection("seq2seq", {}, reason)] if (source.name, target.name) == (1, 2) and sample.num_rows > 1 else []


# ---- all


def _refuse_unsupported(path: str, sample: TableSample) -> None:
    names = {normalized(column.name) for column in sample.columns}
    for columns, content in UNSUPPORTED.items():
        if columns <= names:
            problem = f"has {content} ({', '.join(sorted(columns))}), whose task is not detected"
            raise DataError(path, problem, "set `task`, such as reward-model for preferences, and the columns")
    tags = next((column for column in sample.columns if column.has_lists and normalized(column.name).endswith("tags")), None)
    words = next((column for column in sample.columns if column.has_lists and column != tags), None)
    if (
        tags is not None
        and words is not None
        and all(
            isinstance(first, list) and isinstance(second, list) and len(first) == len(second)
            for first, second in zip(words.values, tags.values, strict=True)
        )
    ):
        raise DataError(path, f"has lists of words and tags ({words.name}, {tags.name})", "write one word and its tag per line")


def table_readings(path: str, sample: TableSample, known: Known) -> list[Detection]:
    """All readings of a table, the most likely first."""
    if known == UNKNOWN:
        _refuse_unsupported(path, sample)
    questions, pairs = _questions(sample), _pairs(sample, known)
    columns = _label_columns(sample)
    if (column := _find(sample.columns, known.data.get("label_column"))) is not None:
        columns = [column]
    labeled = [reading for column in columns if (reading := _labeled(sample, column, known))]
    first_label = next((column for column in columns if labeled and column.name == labeled[0].data["label_column"]), None)
    is_label_named = first_label is not None and isinstance(first_label.name, str) and has_role(first_label.name, "label")
    has_named_pair = bool(pairs) and bool(_named_pairs(sample, known)) and not is_label_named
    labeled = labeled[:MAX_LABEL_COLUMNS]
    return [*questions, *pairs, *labeled] if has_named_pair else [*questions, *labeled, *pairs]


def unclear_table(path: str, sample: TableSample) -> DataError:
    """The error for a table whose task cannot be told."""
    if not sample.num_rows or not any(column.texts for column in sample.columns):
        return DataError(path, "no rows below the header" if sample.has_names else "no rows")
    labels = [column for column in sample.columns if _can_be_label(column)]
    texts = [column for column in sample.columns if column.is_text and column not in labels]
    numbers = [column for column in sample.columns if column.is_number and not column.is_id]
    if labels and not texts:
        values = pluralize(labels[0].num_distinct, "distinct value")
        return DataError(path, f"labels without texts: {_named(labels[0])} has {values}", "add a column of texts")
    if labels and len(texts) == 1 and texts[0].num_distinct < labels[0].num_distinct:
        num_labels, num_texts = (pluralize(column.num_distinct, "distinct value") for column in (labels[0], texts[0]))
        problem = f"{_named(labels[0])} has {num_labels}, but {_named(texts[0])} only {num_texts}: too few for texts"
        return DataError(path, problem, "check the columns, or set data.text_column and data.label_column")
    if numbers and texts:
        count = pluralize(numbers[-1].num_distinct, "distinct number")
        problem = f"{_named(numbers[-1])} has {count} in {num_sampled(sample.num_rows, 'row')}, and no task predicts numbers"
        return DataError(path, problem, "make labels of them, such as low and high, or set `task` and the columns")
    if len(texts) == 1 and sample.num_rows > 1:
        problem = f"only one column of texts, {_named(texts[0])}, and no labels"
        return DataError(path, problem, "add labels or targets, or write the texts to a .txt file for a language model")
    seen = f"{pluralize(sample.num_rows, 'row')} of {pluralize(len(sample.columns), 'column')}: {sample.describe()}"
    fix = "set `task` and the columns, e.g. data.text_column and data.label_column"
    return DataError(path, f"cannot tell the task from {seen}", fix)
