"""Question-answering data: the four file formats, rejected input, splits, and windows over long passages."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_qa import make_questions, write_squad, write_tsv

from weft.config import parse_config
from weft.data.bucketing import ExampleBatchSampler
from weft.data.corpus import corpus_from_lines
from weft.data.dataset import Dataset
from weft.errors import ConfigError, DataError
from weft.tasks.qa.batching import QAExamples, split_passages, truncated_lengths
from weft.tasks.qa.data import QADataConfig, QuestionFormat
from weft.tasks.qa.files import QAFileOptions, Record, Reference, read_records
from weft.text.offsets import text_between, token_offsets, tokens_between
from weft.text.reading import FileSummary
from weft.text.tokenizers import TYPES, TokenizerConfig, from_vocab, train_tokenizer

PASSAGE = "Ada has a cat. Ben has a cat, too."


def read(path: Path, **names: str) -> list[Record]:
    return list(read_records([path], QAFileOptions(**names), FileSummary([path], "utf-8")))


def error_message(path: Path, **names: str) -> str:
    with pytest.raises(DataError) as caught:
        read(path, **names)
    assert caught.value.exit_code == 3
    return str(caught.value)


def jsonl(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def a_row(**more: object) -> dict[str, object]:
    return {"question": "Who?", "passage": PASSAGE, **more}


# ---- what is read


def test_tables_and_jsonl_give_the_same_examples(tmp_path):
    rows = [("Who?", PASSAGE, "Ben", "15"), ("What?", PASSAGE, "cat", ""), ("Where?", PASSAGE, "", "")]
    tsv, csv, lines = tmp_path / "a.tsv", tmp_path / "a.csv.gz", tmp_path / "a.jsonl"
    tsv.write_text("question\tpassage\tanswer\tanswer_start\n" + "".join("\t".join(row) + "\n" for row in rows))
    quoted = "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)
    csv.write_bytes(gzip.compress(f"question,passage,answer,answer_start\n{quoted}".encode()))
    jsonl(
        lines,
        a_row(answer="Ben", answer_start=15),
        {**a_row(answer="cat"), "question": "What?"},
        {**a_row(answer=None), "question": "Where?"},
    )
    for path in (tsv, csv, lines):
        actual = read(path)
        assert [record.answers for record in actual] == [(Reference("Ben", 15),), (Reference("cat", 10),), ()]
        assert [record.question for record in actual] == ["Who?", "What?", "Where?"]
        assert [record.is_ambiguous for record in actual] == [False, True, False]
        assert {record.path for record in actual} == {path}
        assert [record.line for record in actual] == ([1, 2, 3] if path == lines else [2, 3, 4])
    lines.write_text(lines.read_text().replace("\n", "\n\n"))  # blank lines are skipped
    assert [record.line for record in read(lines)] == [1, 3, 5]


def test_several_answers_and_custom_column_names(tmp_path):
    path = jsonl(
        tmp_path / "a.jsonl",
        {"q": "Who?", "context": PASSAGE, "a": ["Ben", "Ada"], "at": [15, 0]},
        {"q": "Who?", "context": PASSAGE, "a": [" Ben ", "Ben"]},
    )
    actual = read(path, question="q", passage="context", answer="a", start="at")
    assert [record.answers for record in actual] == [(Reference("Ben", 15), Reference("Ada", 0)), (Reference("Ben", 15),)]
    padded = jsonl(tmp_path / "b.jsonl", a_row(answer=" Ben", answer_start=14))  # whitespace is not part of an answer
    assert read(padded)[0].answers == (Reference("Ben", 15),)


def test_squad_of_both_versions(tmp_path):
    first = {
        "question": "Who?",
        "id": "x",
        "answers": [{"text": "Ada", "answer_start": 0}, {"text": "Ben", "answer_start": 15}],
    }
    none = {"question": "Where?", "id": "y", "answers": [], "is_impossible": True, "plausible_answers": [{"text": "x"}]}
    full = {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": PASSAGE, "qas": [first, none]}]}] * 2}
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(full, indent=1))
    actual = read(path)
    assert [record.answers for record in actual] == [(Reference("Ada", 0), Reference("Ben", 15)), ()] * 2
    assert [record.line for record in actual] == [1, 2, 3, 4]
    rows = make_questions(20)
    plain = [record[:3] for record in read(write_tsv(tmp_path / "b.tsv", rows))]
    assert plain == [record[:3] for record in read(write_squad(tmp_path / "b.json", rows))]


# ---- what is refused


BAD = {  # lines of a .tsv file, and the message
    "question\tpassage\tanswr\nx\ty\tz\n": (
        ":1: no column 'answer'; set data.answer_column to one of: question, passage, answr"
    ),
    "question\tpassage\tanswer\tanswer\nx\ty\tz\tz\n": ":1: 2 columns are named 'answer'; rename all but one",
    f"question\tpassage\tanswer\nWho?\t{PASSAGE}\tEva\n": (":2: answer 'Eva' is not in the passage; copy it from the passage"),
    f"question\tpassage\tanswer\n \t{PASSAGE}\tAda\n": ":2: empty question; add one or remove the example",
    "question\tpassage\tanswer\nWho?\t\tAda\n": ":2: empty passage; add one or remove the example",
    f"question\tpassage\tanswer\tanswer_start\nWho?\t{PASSAGE}\tAda\t4\n": (
        ":2: expected answer 'Ada' at character 4 of the passage, got 'has'"
    ),
    f"question\tpassage\tanswer\tanswer_start\nWho?\t{PASSAGE}\tAda\t-3\n": (
        ":2: expected answer 'Ada' at character -3 of the passage, got 'Ada'"
    ),
    f"question\tpassage\tanswer\tanswer_start\nWho?\t{PASSAGE}\tAda\t{'9' * 5000}\n": (
        f":2: expected a character offset from 0 as the start of the answer, got '{'9' * 40}...'"
    ),
    f"question\tpassage\tanswer\tanswer_start\nWho?\t{PASSAGE}\tAda\tfirst\n": (
        ":2: expected a character offset from 0 as the start of the answer, got 'first'"
    ),
    f"question\tpassage\tanswer\tanswer_start\nWho?\t{PASSAGE}\t\t3\n": (
        ":2: start 3 without an answer; add the answer or leave the start empty"
    ),
    f"question\tpassage\tanswer\nWho?\t{PASSAGE}\n": (
        ":2: expected 3 tab-separated columns, got 2: 'Who?', 'Ada has a cat. Ben has a cat, too.'"
    ),
    "question\tpassage\tanswer\n": ": no questions",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_an_invalid_table_is_rejected_with_its_line(tmp_path, text):
    path = tmp_path / "a.tsv"
    path.write_text(text)
    assert error_message(path) == f"{path}{BAD[text]}"


LINES = [
    ([], ":1: expected an object with 'question', 'passage' and 'answer', got a list"),
    (a_row(), ":1: no key 'answer'; available: question, passage"),
    ({"passage": "x", "answer": "x"}, ":1: no key 'question'; available: passage, answer"),
    (a_row(answer=["Ada", 3]), ":1: expected strings in 'answer', got a number; put it in quotes"),
    (a_row(answer="Ada", answer_start="0"), ":1: expected a character offset from 0 as 'answer_start', got a string"),
    (a_row(answer=["Ada", "Ben"], answer_start=0), ":1: 2 answers but 1 starts; set one start per answer, or none"),
    (a_row(answer="Ada", question=3), ":1: expected a string as 'question', got a number; put it in quotes"),
]


@pytest.mark.parametrize(("row", "message"), LINES, ids=range(len(LINES)))
def test_an_invalid_json_line_is_rejected(tmp_path, row, message):
    path = jsonl(tmp_path / "a.jsonl", row)
    assert error_message(path) == f"{path}{message}"


def test_invalid_json_is_rejected(tmp_path):
    lines, full, text = tmp_path / "a.jsonl", tmp_path / "a.json", tmp_path / "a.txt"
    for path in (lines, full, text):
        path.write_text("{")
    assert error_message(lines).startswith(f"{lines}:1: invalid JSON: ")
    assert error_message(lines).endswith("; .jsonl files need one object per line")
    assert error_message(full).startswith(f"{full}: invalid JSON: ")
    assert error_message(full).endswith("; use .jsonl for one object per line")
    assert error_message(text) == (
        f"{text}: not a table (.tsv, .csv, .xlsx, .jsonl, .json or .parquet); use a table or SQuAD's JSON for questions"
    )
    missing = tmp_path / "b.txt"
    assert error_message(missing) == f"{missing}: file not found"


FORMAT = "; use SQuAD's format, or .jsonl for one object per line"
SQUAD = [
    ({"a": 1}, ": no 'data' that is a list" + FORMAT),
    ({"data": [{}]}, ": article 1: no 'paragraphs' that is a list" + FORMAT),
    ({"data": [{"paragraphs": [{"qas": []}]}]}, ": after question 0: no 'context' that is a string" + FORMAT),
    ({"data": [{"paragraphs": [{"context": "x", "qas": [{}]}]}]}, ": question 1: no 'question' that is a string" + FORMAT),
    (
        {"data": [{"paragraphs": [{"context": "x", "qas": [{"question": "y", "answers": []}]}]}]},
        ': question 1: no answer; set "is_impossible": true if the passage has none',
    ),
    (
        {"data": [{"paragraphs": [{"context": "x", "qas": [{"question": "y", "answers": [{"text": "x"}]}]}]}]},
        ": question 1: no 'answer_start' that is a number" + FORMAT,
    ),
    (
        {
            "data": [
                {"paragraphs": [{"context": "x z", "qas": [{"question": "y", "answers": [{"text": "x", "answer_start": 2}]}]}]}
            ]
        },
        ": question 1: expected answer 'x' at character 2 of the passage, got 'z'",
    ),
    ({"data": []}, ": no questions"),
]


@pytest.mark.parametrize(("value", "message"), SQUAD, ids=range(len(SQUAD)))
def test_invalid_squad_files_are_rejected(tmp_path, value, message):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(value))
    assert error_message(path) == f"{path}{message}"


TABLES = [
    ({"question_column": ""}, "data.question_column: expected a column name, got ''"),
    ({"answer_column": "passage"}, "data.answer_column: names the same column as passage_column"),
    ({"max_length": 64, "doc_stride": 64}, "data.doc_stride: must be less than max_length (64), got 64"),
    ({"max_length": 7}, "data.max_length: must be at least 8, got 7"),
]


@pytest.mark.parametrize(("options", "message"), TABLES, ids=range(len(TABLES)))
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(ConfigError) as caught:
        parse_config(QADataConfig, {"train": "a.tsv", **options}, prefix="data")
    assert str(caught.value) == message


# ---- splits


def test_fractions_are_split_off_the_end_and_too_few_questions_are_rejected(tmp_path):
    path = write_tsv(tmp_path / "a.tsv", make_questions(40))
    table = parse_config(QADataConfig, {"train": str(path), "valid": 0.25, "test": 0.25}, prefix="data").with_defaults()
    sources = table.sources(Path())
    lines = [[record.line for record in sources[name].records()] for name in ("train", "valid", "test")]
    assert [line for part in lines for line in part] == list(range(2, 42)) and [len(part) for part in lines] == [20, 10, 10]
    assert [row.texts for row in sources["valid"].rows()] == [row[:2] for row in make_questions(40)[20:30]]
    few = Dataset((write_tsv(tmp_path / "b.tsv", make_questions(3)),), QuestionFormat(), 0.9, 1.0)
    two = Dataset((path,), QuestionFormat(), 0.5, 0.51)
    assert len(list(few.records())) == 1
    with pytest.raises(DataError) as caught:
        list(two.records())
    assert str(caught.value) == (
        f"{path}: 40 questions are too few for the fraction from 0.5 to 0.51; add questions, or use separate files for data.valid and data.test"
    )


def test_data_description(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", a_row(answer="cat"), a_row(answer=None))
    summary = Dataset((path,), QuestionFormat()).summary
    assert summary.describe().split("\n") == [
        f"{path}: 2 questions, 1 of them without an answer, passages with 68 characters, utf-8, LF line endings",
        "  note: answers without a start that occur in their passage more than once: 1; the first match is used",
        f"  e.g.: Who? | {PASSAGE} -> cat",
        f"  e.g.: Who? | {PASSAGE} -> no answer",
    ]
    several = Dataset((path, path, path), QuestionFormat())
    assert several.name == f"{path} and 2 more"
    assert several.summary.describe().startswith(f"{path} and {path} and 1 more: 6 questions, ")
    assert several.column("passages").provenance() != several.column("questions").provenance()


# ---- tokens


@pytest.mark.parametrize("kind", TYPES)
def test_answers_round_trip_through_tokens(kind):
    text = "Zoë saw  the café in\nÑandú Town, twice - 😀 ok."
    tokenizer = train_tokenizer(TokenizerConfig(type=kind, vocab_size=300), iter([text]))
    places = token_offsets(tokenizer, text)
    assert len(places) == len(tokenizer.encode(text))
    for answer in ("Zoë", "the café", "in", "Ñandú Town", "😀", "Ñandú"):
        start = text.index(answer)
        actual = tokens_between(places, start, start + len(answer))
        assert actual is not None
        low, high = text_between(text, places, *actual)
        # the decoded span contains the answer and has no whitespace at its ends
        assert low <= start and high >= start + len(answer) and text[low:high].strip() == text[low:high]
        if kind in ("char", "byte", "word", "whitespace", "wordpiece"):
            assert text[low:high] == answer or (kind == "whitespace" and answer in text[low:high])
    assert tokens_between(places, 7, 7) is None


# ---- windows


def test_windows_by_hand():
    truncated = split_passages(np.array([3, 3, 40]), np.array([4, 11, 7]), max_length=12, stride=2)
    # 12 - 3 - 3 tokens per window, or 5 after a question that is truncated to 4
    assert truncated.question.tolist() == [0, 1, 1, 1, 1, 2, 2]
    assert truncated.start.tolist() == [0, 0, 2, 4, 6, 0, 2]
    assert truncated.size.tolist() == [4, 6, 6, 6, 5, 5, 5]
    assert truncated_lengths(np.array([3, 4, 5, 40]), 12).tolist() == [3, 4, 4, 4]


def test_every_token_is_in_a_window_and_no_window_is_too_long():
    rng = np.random.default_rng(0)
    for _ in range(200):
        max_length = int(rng.integers(8, 40))
        stride = int(rng.integers(1, max_length))
        asked_for, about = rng.integers(1, 30, 5), rng.integers(0, 100, 5)
        truncated = split_passages(asked_for, about, max_length=max_length, stride=stride)
        for number in range(5):
            is_own = truncated.question == number
            read = {
                token
                for low, size in zip(truncated.start[is_own], truncated.size[is_own], strict=True)
                for token in range(low, low + size)
            }
            assert read == set(range(about[number]))
            assert (3 + truncated_lengths(asked_for, max_length)[number] + truncated.size[is_own]).max() <= max_length


def passages(spans: list[tuple[int, int]], *, max_length: int = 10, stride: int = 2) -> QAExamples:
    tokenizer = from_vocab([f"w{index}" for index in range(20)])
    questions, texts = ["w0 w1"] * len(spans), [" ".join(f"w{index}" for index in range(2, 11))] * len(spans)
    return QAExamples(
        corpus_from_lines(tokenizer, questions), corpus_from_lines(tokenizer, texts), np.array(spans), max_length, stride
    )


def test_a_batch_by_hand():
    data = passages([(3, 4), (-1, -1)])
    assert data.windows.start.tolist() == [0, 2, 4, 0, 2, 4]
    batch = data.batch(np.array([1, 2, 3]))
    first = 3 + 2  # the token of w2
    assert batch.tokens.tolist() == [
        [1, 3, 4, 2, *range(first + 2, first + 7), 2],
        [1, 3, 4, 2, *range(first + 4, first + 9), 2],
        [1, 3, 4, 2, *range(first, first + 5), 2],
    ]
    assert batch.segments is not None and batch.segments[0].tolist() == [0] * 4 + [1] * 6
    # the answer is w5 w6; the second of these windows begins with w6
    assert batch.spans.tolist() == [[5, 6], [0, 0], [0, 0]]
    assert batch.tokens[0, 5:7].tolist() == [3 + 5, 3 + 6]
    assert data.largest(np.array([1])).spans.tolist() == [[0, 0]]
    assert data.describe(np.array([0, 2, 3])) == "lines, lines 1, 2"


def test_batches_depend_only_on_seed_epoch_and_index():
    orders = [ExampleBatchSampler(passages([(3, 4)] * 9), batch_tokens=40, seed=2) for _ in range(2)]
    for index in (2, 0, 1):
        one, other = (order.batch(1, index) for order in orders)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None)
    seen = torch.cat([orders[0].batch(0, index).spans for index in range(orders[0].batches(0))])
    assert len(seen) == 27 and int((seen[:, 0] > 0).sum()) == 18  # w5 w6 is whole in two of three windows
