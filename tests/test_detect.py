"""Detection of the task and the options of [data] from the first lines of a file."""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
import random
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft.data.sample import detect_encoding
from weft.errors import DataError, UsageError
from weft.tasks.detect import detect
from weft.tasks.detection import Detection

NOUNS = [
    "cat",
    "dog",
    "tree",
    "river",
    "house",
    "stone",
    "bird",
    "cloud",
    "road",
    "song",
    "lamp",
    "chair",
    "field",
    "ocean",
    "bread",
]
VERBS = ["sees", "likes", "finds", "hears", "follows", "leaves", "paints", "breaks", "moves", "holds"]


def sentence(number: int) -> str:
    chance = random.Random(number)
    words = [chance.choice(NOUNS) if index % 2 else chance.choice(VERBS) for index in range(chance.randint(4, 9))]
    return f"The {' '.join(words)} {number}."


def word(number: int) -> str:
    return "".join(random.Random(number).choices("abcdefghijklmnop", k=7))


SENTENCES = [sentence(number) for number in range(60)]
WORDS = [word(number) for number in range(60)]
LABELS = [random.Random(number).choice(("pos", "neg", "neutral")) for number in range(60)]
CHINESE = ["".join(random.Random(number).choices("我你他的是在有人不这中大为上个国们到说", k=12)) for number in range(60)]


def lines(*columns: Any, sep: str = "\t", header: str = "", end: str = "\n") -> str:
    """Rows of a table without quotes."""
    rows = [sep.join(map(str, cells)) for cells in zip(*columns, strict=True)]
    return end.join([*([header] if header else []), *rows, ""])


def jsonl(**columns: Any) -> str:
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def quoted(texts: list[str]) -> list[str]:
    return [f'"{text}"' for text in texts]


CONLL = "".join(
    f"{name} {'B-PER' if number % 3 else 'O'}\n{'' if number % 7 else chr(10)}" for number, name in enumerate(WORDS)
)
CONLLU = "".join(
    f"# text = {name}\n1\t{name}\t{name}\t{'NOUN' if number % 2 else 'VERB'}\tNN{number % 3}\t_\t0\troot\t_\t_\n\n"
    for number, name in enumerate(WORDS)
)
PARAGRAPHS = "\n\n".join(" ".join(SENTENCES[start : start + 6]) for start in range(0, 60, 6)) + "\n"
SQUAD = json.dumps(
    {"data": [{"paragraphs": [{"context": "Ada lives in Rome.", "qas": [
        {"id": "1", "question": "Where?", "answers": [{"text": "Rome", "answer_start": 13}]}]}]}]}
)  # fmt: skip
PASSAGES = [f"The {name} is in the {noun}." for name, noun in zip(WORDS, NOUNS * 4, strict=True)]
QUESTIONS = [f"Where is the {name}?" for name in WORDS]
ANSWERS = [f"the {noun}" for noun in NOUNS * 4]
GENRES = [
    "|".join(random.Random(number).sample(["Comedy", "Drama", "War", "Crime", "Music"], 1 + number % 3)) for number in range(60)
]
MANY = [[f"v{column}x{row % (column + 2)}" for row in range(60)] for column in range(17)]
NAMED = {"text_column": "text", "label_column": "label"}

CASES: dict[str, tuple[str, str | bytes, str, dict[str, Any]]] = {
    # labels in tables
    "csv": ("a.csv", lines(quoted(SENTENCES), LABELS, sep=",", header="text,label"), "classification", NAMED),
    "label first": ("a.csv", lines(LABELS, quoted(SENTENCES), sep=",", header="label,text"), "classification", NAMED),
    "other names": (
        "a.csv",
        lines(quoted(SENTENCES), LABELS, sep=",", header="review,sentiment"),
        "classification",
        {"text_column": "review", "label_column": "sentiment"},
    ),
    "unknown names": (
        "a.csv",
        lines(quoted(SENTENCES), LABELS, sep=",", header="wordlaut,einstufung"),
        "classification",
        {"text_column": "wordlaut", "label_column": "einstufung"},
    ),
    "no header": ("a.csv", lines(quoted(SENTENCES), LABELS, sep=","), "classification", {"text_column": 1, "label_column": 2}),
    "no header, label first": ("a.tsv", lines(LABELS, SENTENCES), "classification", {"text_column": 2, "label_column": 1}),
    "semicolon, commas in texts": (
        "a.csv",
        lines([f"{text}, and so on" for text in SENTENCES], LABELS, sep=";"),
        "classification",
        {"text_column": 1, "label_column": 2, "delimiter": ";"},
    ),
    "pipe": ("a.csv", lines(SENTENCES, LABELS, sep="|", header="text|label"), "classification", NAMED | {"delimiter": "|"}),
    "commas in quotes": (
        "a.csv",
        lines([f'"{text}, ""so"", yes"' for text in SENTENCES], LABELS, sep=",", header="text,label"),
        "classification",
        NAMED,
    ),
    "newlines in quotes": (
        "a.csv",
        lines([f'"{text}\nmore"' for text in SENTENCES], LABELS, sep=",", header="text,label"),
        "classification",
        NAMED,
    ),
    "CRLF": ("a.csv", lines(SENTENCES, LABELS, sep=",", header="text,label", end="\r\n"), "classification", NAMED),
    "byte order mark": ("a.csv", "\ufeff" + lines(SENTENCES, LABELS, sep=",", header="text,label"), "classification", NAMED),
    "0 and 1": (
        "a.csv",
        lines(SENTENCES, [int(label == "pos") for label in LABELS], sep=","),
        "classification",
        {"text_column": 1, "label_column": 2},
    ),
    "stars": (
        "a.csv",
        lines(SENTENCES, [1 + number % 5 for number in range(60)], sep=",", header="review,stars"),
        "classification",
        {"text_column": "review", "label_column": "stars"},
    ),
    "10 rows": ("a.csv", lines(SENTENCES[:10], LABELS[:10], sep=","), "classification", {"text_column": 1, "label_column": 2}),
    "1 row with names": ("a.csv", "text,label\nthe cat,pos\n", "classification", NAMED),
    "sorted by label": ("a.csv", lines(SENTENCES, ["pos"] * 60, sep=",", header="text,label"), "classification", NAMED),
    "names": ("a.csv", lines(WORDS, LABELS, sep=",", header="name,language"), "classification",
              {"text_column": "name", "label_column": "language"}),
    "20 columns": (
        "a.csv",
        lines(range(60), *MANY, SENTENCES, LABELS, sep=",", header=",".join([*(f"c{n}" for n in range(18)), "body", "category"])),
        "classification",
        {"text_column": "body", "label_column": "category"},
    ),
    "Chinese": ("a.csv", lines(CHINESE, LABELS, sep=",", header="text,label"), "classification", NAMED),
    "text pairs": (
        "a.tsv",
        lines(SENTENCES, SENTENCES[::-1], LABELS, header="premise\thypothesis\tlabel"),
        "classification",
        {"text_column": ["premise", "hypothesis"], "label_column": "label"},
    ),
    "numbered text pairs": (
        "a.tsv",
        lines([n % 2 for n in range(60)], range(60), SENTENCES, SENTENCES[::-1], header="Quality\t#1 ID\t#1 String\t#2 String"),
        "classification",
        {"text_column": ["#1 String", "#2 String"], "label_column": "Quality"},
    ),
    "a column without a name": ("a.csv", lines(range(60), SENTENCES, LABELS, sep=",", header=",text,label"), "classification",
                                NAMED),
    "codes of labels": (
        "a.csv",
        lines([1 + n % 14 for n in range(280)], [sentence(n) for n in range(280)], sep=","),
        "classification",
        {"text_column": 2, "label_column": 1},
    ),
    "commas between labels": (
        "a.csv",
        lines(SENTENCES, quoted([genres.replace("|", ", ") for genres in GENRES]), sep=",", header="overview,genres"),
        "classification",
        {"text_column": "overview", "label_column": "genres", "multilabel": True, "label_separator": ","},
    ),
    "labels with commas": (
        "a.jsonl",
        jsonl(text=SENTENCES, label=[("Sports, Indoor", "Sports, Outdoor", "Music, Live")[n % 3] for n in range(60)]),
        "classification",
        NAMED,
    ),
    "the most specific label": (
        "a.jsonl",
        jsonl(annotator_labels=[[label] * 3 for label in LABELS], text=SENTENCES, gold_label=LABELS, split=["train"] * 60),
        "classification",
        {"text_column": "text", "label_column": "gold_label"},
    ),
    "the data decide": (  # a column named "label" with a number for each row is an ID
        "a.csv",
        lines(range(1000, 1060), SENTENCES, LABELS, sep=",", header="label,text,kind"),
        "classification",
        {"text_column": "text", "label_column": "kind"},
    ),
    "target with few values": (
        "a.csv",
        lines(SENTENCES, LABELS, sep=",", header="source,target"),
        "classification",
        {"text_column": "source", "label_column": "target"},
    ),
    "several labels": (
        "a.csv",
        lines(SENTENCES, GENRES, sep=",", header="plot,genres"),
        "classification",
        {"text_column": "plot", "label_column": "genres", "multilabel": True, "label_separator": "|"},
    ),
    "JSONL": ("a.jsonl", jsonl(text=SENTENCES, label=LABELS), "classification", NAMED),
    "JSON list, integers": ("a.json", json.dumps([{"text": text, "label": number % 2} for number, text in enumerate(SENTENCES)]),
                            "classification", NAMED),
    "JSON, lists of labels": (
        "a.jsonl",
        jsonl(text=SENTENCES, labels=[genres.split("|") for genres in GENRES]),
        "classification",
        {"text_column": "text", "label_column": "labels", "multilabel": True},
    ),
    # labels in lines
    "label and text": ("a.txt", lines(LABELS, SENTENCES, sep=" "), "classification", {}),
    "lines sorted by label": ("a.txt", "".join(f"pos {text}\n" for text in SENTENCES * 40) + "neg x y\n", "classification", {}),
    "label, tab, text": ("a.train", lines(LABELS, SENTENCES), "classification", {}),
    "tabs in texts": ("a.train", lines(LABELS, SENTENCES, WORDS).replace("\t" + WORDS[3], ""), "classification", {}),
    "fastText": ("a.txt", "".join(f"__label__{label} {text}\n" for label, text in zip(LABELS, SENTENCES, strict=True)),
                 "classification", {}),
    "fastText, several labels": ("a.txt", "__label__a __label__b x y\n__label__a z\n", "classification", {"multilabel": True}),
    "text, tab, label": ("a.txt", lines(SENTENCES, LABELS), "classification",
                         {"text_column": 1, "label_column": 2, "delimiter": "tab"}),
    "CSV under another name": ("a.data", lines(SENTENCES, LABELS, sep=",", header="text,label"), "classification",
                               NAMED | {"delimiter": ","}),
    "latin-1": ("a.csv", lines([f"Größe und Maß, {text}" for text in SENTENCES], LABELS, sep=";", header="text;label").encode("latin-1"),
                "classification", NAMED | {"encoding": "latin-1"}),
    "cp1252": ("a.csv", lines([f"“{text}”" for text in SENTENCES], LABELS, sep=",", header="text,label").encode("cp1252"),
               "classification", NAMED | {"encoding": "cp1252"}),
    "UTF-16": ("a.csv", lines(SENTENCES, LABELS, sep=",", header="text,label").encode("utf-16"),
               "classification", NAMED | {"encoding": "utf-16"}),
    # pairs
    "10 pairs": ("a.tsv", lines(WORDS[:10], map(" ".join, WORDS[:10])), "seq2seq", {}),
    "a first word that could be a name": ("a.tsv", "name\tn ei m\n" + lines(WORDS, map(" ".join, WORDS)), "seq2seq", {}),
    "pronunciation": ("a.tsv", lines(WORDS, [" ".join(name.upper()) for name in WORDS]), "seq2seq", {}),
    "pairs with names": ("a.tsv", lines(SENTENCES, CHINESE, header="en\tzh"), "seq2seq",
                         {"source_column": "en", "target_column": "zh"}),
    "pairs in other names": ("pairs.txt", lines(SENTENCES, CHINESE), "seq2seq", {"delimiter": "tab"}),
    "pairs with IDs and scores": (
        "a.tsv",
        lines(range(60), SENTENCES, CHINESE, [f"0.{number}" for number in range(10, 70)], header="id\tsrc\ttgt\tscore"),
        "seq2seq",
        {"source_column": "src", "target_column": "tgt"},
    ),
    "instructions": ("a.jsonl", jsonl(instruction=QUESTIONS, response=SENTENCES), "seq2seq",
                     {"source_column": "instruction", "target_column": "response"}),
    "nested keys": ("a.jsonl", jsonl(translation=[{"de": first, "en": second} for first, second in zip(WORDS, SENTENCES, strict=True)]),
                    "seq2seq", {"source_column": "translation.de", "target_column": "translation.en"}),
    "numbers as targets, named": ("a.csv", lines([f"{n}+{n}" for n in range(60)], [2 * n for n in range(60)], sep=",", header="source,target"),
                                  "seq2seq", {"source_column": "source", "target_column": "target"}),
    # tags
    "CoNLL": ("a.txt", CONLL, "tagging", {}),
    "CoNLL by name": ("a.conll", "Rome\tB-LOC\n", "tagging", {}),
    "CoNLL in .tsv": ("a.tsv", CONLL.replace(" ", "\t"), "tagging", {}),
    "CoNLL-U": ("a.conllu", CONLLU, "tagging", {"tag_column": "upos"}),
    "CoNLL-U under another name": ("a.txt", CONLLU, "tagging", {"tag_column": "upos"}),
    "CoNLL-U without UPOS": ("a.conllu", CONLLU.replace("NOUN", "_").replace("VERB", "_"), "tagging", {"tag_column": "xpos"}),
    # questions
    "SQuAD": ("a.json", SQUAD, "qa", {}),
    "questions": ("a.jsonl", jsonl(question=QUESTIONS, context=PASSAGES, answer=ANSWERS), "qa",
                  {"question_column": "question", "passage_column": "context", "answer_column": "answer"}),
    "questions, nested": (
        "a.jsonl",
        jsonl(question=QUESTIONS, context=PASSAGES, answers=[
            {"text": [answer], "answer_start": [passage.index(answer)]} for answer, passage in zip(ANSWERS, PASSAGES, strict=True)]),
        "qa",
        {"question_column": "question", "passage_column": "context", "answer_column": "answers.text",
         "answer_start_column": "answers.answer_start"},
    ),
    "answers that are not spans": ("a.jsonl", jsonl(question=QUESTIONS, context=PASSAGES, answer=SENTENCES), "seq2seq",
                                   {"source_column": "question", "target_column": "answer"}),
    "many labels": (
        "a.tsv",
        lines([f"intent {n % 400}" for n in range(1200)], [f"the text {n} of a customer" for n in range(1200)], header="label\ttext"),
        "classification",
        {"text_column": "text", "label_column": "label"},
    ),
    # plain text
    "one sentence per line": ("a.txt", "\n".join(SENTENCES), "lm", {"read_as": "lines"}),
    "sentences that start with frequent words": (
        "a.txt",
        "".join(f"{('the', 'a')[n % 2]} {text[4:-1]} the end of a song.\n" for n, text in enumerate(SENTENCES)),
        "lm",
        {"read_as": "lines"},
    ),
    "sentences that start with few words": (
        "a.txt",
        "".join(f"{('Ida', 'Otto', 'Ben')[n % 3]} {text[4:]}\n" for n, text in enumerate(SENTENCES)),
        "lm",
        {"read_as": "lines"},
    ),
    "one word per line": ("a.txt", "\n".join(WORDS), "lm", {"read_as": "lines"}),
    "Chinese sentences": ("a.txt", "\n".join(f"{text}。" for text in CHINESE), "lm", {"read_as": "lines"}),
    "paragraphs": ("a.txt", PARAGRAPHS, "lm", {"read_as": "windows"}),
    "one long line": ("a.txt", " ".join(SENTENCES), "lm", {"read_as": "windows"}),
    "fixed line width": ("a.txt", "\n".join(" ".join(SENTENCES)[start : start + 70] for start in range(0, 1400, 70)), "lm",
                         {"read_as": "windows"}),
}  # fmt: skip


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("case", CASES)
def test_task_and_options(tmp_path, case):
    name, content, task, data = CASES[case]
    result = detect(write(tmp_path / name, content))
    assert (result.task, result.data) == (task, data), result.reason
    assert result.reason
    assert "\n" not in result.reason


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed_files(tmp_path, suffix, compress):
    for case in ("csv", "label and text", "pronunciation", "CoNLL-U", "one sentence per line"):
        name, content, task, data = CASES[case]
        result = detect(write(tmp_path / (name + suffix), compress(content.encode() if isinstance(content, str) else content)))
        assert (result.task, result.data) == (task, data)


def test_workbooks_and_parquet(tmp_path):
    openpyxl, pyarrow, parquet = map(pytest.importorskip, ("openpyxl", "pyarrow", "pyarrow.parquet"))
    book = openpyxl.Workbook()
    for row in [("text", "label"), *zip(SENTENCES, LABELS, strict=True)]:
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    table = pyarrow.table({"text": SENTENCES, "label": [number % 3 for number in range(60)]})
    parquet.write_table(table, tmp_path / "a.parquet")
    for name in ("a.xlsx", "a.parquet"):
        result = detect(tmp_path / name)
        assert (result.task, result.data) == ("classification", NAMED)


# ---- directories and several files


def test_a_directory_with_one_file_or_subdirectory_per_label(tmp_path):
    for label in ("en", "fr"):
        (tmp_path / "nested" / label).mkdir(parents=True)
        (tmp_path / "flat").mkdir(exist_ok=True)
        write(tmp_path / "flat" / f"{label}.txt", "\n".join(WORDS))
        for number in range(3):
            write(tmp_path / "nested" / label / f"{number}.txt", PARAGRAPHS)
    for name in ("flat", "nested"):
        result = detect(tmp_path / name)
        assert (result.task, result.data) == ("classification", {})
        assert [other.task for other in result.alternatives] == ["lm"]


def test_a_directory_of_running_text(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.txt", PARAGRAPHS)
    result = detect(tmp_path)
    assert (result.task, result.data) == ("lm", {"read_as": "windows"})


def test_parallel_files(tmp_path):
    source, target = write(tmp_path / "a.en", "\n".join(SENTENCES)), write(tmp_path / "a.zh", "\n".join(CHINESE))
    assert detect([source, target]).task == "seq2seq"
    upper = write(tmp_path / "other.txt", "\n".join(SENTENCES).upper())  # no common name, but lines of equal length
    assert detect([source, upper]).task == "seq2seq"
    shorter = write(tmp_path / "shorter.txt", "\n".join(SENTENCES[:40]))
    assert detect([source, shorter]).task == "lm"


def test_several_tables_are_read_alike(tmp_path):
    paths = [write(tmp_path / name, CASES["csv"][1]) for name in ("a.csv", "b.csv")]
    assert detect(paths).data == NAMED
    write(paths[1], "title,label\nx,pos\n")
    with pytest.raises(DataError, match="no column 'text'"):
        detect(paths)


# ---- what is known


def test_known_options_decide(tmp_path):
    path = write(tmp_path / "a.csv", lines(SENTENCES, LABELS, [n % 2 for n in range(60)], sep=",", header="text,topic,stars"))
    first = detect(path)
    assert first.data["label_column"] == "stars"
    assert [other.data["label_column"] for other in first.alternatives] == ["topic"]
    chosen = detect(path, data={"label_column": "topic"})
    assert (chosen.task, chosen.data) == ("classification", {"text_column": "text", "label_column": "topic"})
    plain = write(tmp_path / "a.txt", lines(LABELS, SENTENCES, sep=" "))
    assert detect(plain, task="lm").data == {"read_as": "lines"}
    labels = write(tmp_path / "labels.txt", "\n".join(LABELS))  # without a task, labels without texts
    assert detect(labels, task="lm").task == "lm"
    three = write(tmp_path / "three.csv", lines(WORDS, SENTENCES, CHINESE, sep=",", header="a,b,c"))
    with pytest.raises(DataError, match="cannot tell the task from 60 rows of 3 columns"):
        detect(three)
    assert detect(three, data={"source_column": "c", "target_column": "a"}).task == "seq2seq"
    with pytest.raises(DataError, match="does not fit task tagging: lines start with 3 distinct words"):
        detect(plain, task="tagging")


DATES = [(f"{1 + number % 28}. May {1950 + number}", f"{1950 + number}-05-{1 + number % 28:02}") for number in range(60)]


def test_any_two_columns_of_strings_are_pairs_if_the_task_is_known(tmp_path):
    path = write(tmp_path / "a.csv", lines(*zip(*DATES, strict=True), sep=",", header="written,iso"))
    assert detect(path, task="seq2seq").data == {"source_column": "written", "target_column": "iso"}
    path = write(tmp_path / "b.csv", lines(*zip(*DATES, strict=True), sep=","))
    assert detect(path, task="seq2seq").data == {}  # no header: the first two columns


def test_a_first_pair_of_equal_words_is_no_header(tmp_path):
    assert detect(write(tmp_path / "a.tsv", lines(WORDS, WORDS[::-1], header="text\ttext"))).data == {}


def test_repeated_names_of_other_columns_are_no_problem_for_selected_ones(tmp_path):
    path = write(tmp_path / "a.csv", lines(SENTENCES, LABELS, WORDS, WORDS, sep=",", header="text,label,note,note"))
    reading = detect(path, data={"text_column": "text", "label_column": "label"})
    assert (reading.task, reading.data) == ("classification", {"text_column": "text", "label_column": "label"})
    assert detect(path, data={"text_column": 1, "label_column": 2}).task == "classification"


def test_settings_are_overrides_of_a_run_file():
    reading = Detection("classification", {"text_column": ["a b", "c"], "label_column": 2, "multilabel": True, "sheet": "x"})
    assert reading.settings() == [
        "task=classification",
        'data.text_column=["a b", "c"]',
        "data.label_column=2",
        "data.multilabel=true",
        "data.sheet=x",
    ]


# ---- errors

ERRORS: dict[str, tuple[str, str | bytes, str]] = {
    "empty": ("a.csv", "", "file is empty"),
    "empty text": ("a.txt", "", "file is empty"),
    "blank": ("a.txt", "\n\n\n", "no text, only 3 empty lines"),
    "white space": ("a.txt", "  \n  \n", "only white space, no text"),
    "binary": ("a.txt", bytes(range(256)), "binary data, not text"),
    "header only": ("a.csv", "text,label\n", "no rows below the header"),
    "labels only": ("a.txt", "\n".join(LABELS), "only 3 distinct lines, such as 'neg', 'neutral', 'pos': labels without texts"),
    "labels only in a table": ("a.csv", lines(LABELS, header="label"), "labels without texts"),
    "texts only in a table": (
        "a.csv",
        lines(SENTENCES, header="text"),
        "only one column of texts, column 'text', and no labels",
    ),
    "numbers only": ("a.txt", lines(range(30)), "only numbers, such as '0'"),
    "regression": (
        "a.csv",
        lines(SENTENCES, [f"{n / 7:.3f}" for n in range(60)], sep=",", header="text,price"),
        "column 'price' has 60 distinct numbers in 60 rows, and no task predicts numbers",
    ),
    "similarities": ("a.tsv", lines(WORDS, WORDS[::-1], [f"{n / 7:.3f}" for n in range(60)]), "no task predicts numbers"),
    "one row": ("a.csv", "the cat,pos\n", "cannot tell the task from 1 row of 2 columns: 'the cat', 'pos'"),
    "preferences": ("a.jsonl", jsonl(chosen=SENTENCES, rejected=CHINESE), "pairs of a preferred and a rejected text"),
    "JSON tags": (
        "a.jsonl",
        jsonl(tokens=[["a", "b"]] * 9, ner_tags=[[0, 1]] * 9),
        "has lists of words and tags (tokens, ner_tags)",
    ),
    "JSON under another name": ("a.txt", jsonl(text=SENTENCES, label=LABELS), "looks like JSON, one object per line"),
    "tabs in cells": ("a.tsv", lines(LABELS, SENTENCES) + "pos\ta\tb\n", "expected 2 tab-separated columns, got 3"),
    "empty list": ("a.json", "[]", "no objects"),
    "categories": (
        "a.csv",
        lines(LABELS, LABELS[::-1], sep=",", header="color,shape"),
        "labels without texts: column 'color' has 3",
    ),
    "texts that repeat": (
        "a.csv",
        lines(LABELS, ["the same"] * len(LABELS), sep=",", header="label,text"),
        "column 'label' has 3 distinct values, but column 'text' only 1 distinct value",
    ),
    "repeated names": (
        "a.csv",
        lines(range(60), SENTENCES, SENTENCES[::-1], LABELS, sep=",", header="id,text,text,label"),
        "a.csv:1: 2 columns are named 'text'; rename all but one, or set the columns to read",
    ),
    "dates": ("a.csv", lines([f"2026-01-{n % 28 + 1:02}" for n in range(60)], range(60), sep=","), "cannot tell the task"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(tmp_path, case):
    name, content, message = ERRORS[case]
    with pytest.raises(DataError) as caught:
        detect(write(tmp_path / name, content))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


def test_errors_of_directories(tmp_path):
    def refusal(path: Path) -> str:
        with pytest.raises(DataError) as caught:
            detect(path)
        return str(caught.value).removeprefix(str(path))

    assert refusal(tmp_path / "missing.txt") == ": file not found"
    (tmp_path / "a").mkdir()
    assert refusal(tmp_path / "a").startswith(": directory is empty")
    write(tmp_path / "a" / "x.bin", b"\0\1\2")
    assert refusal(tmp_path / "a").startswith("/x.bin: binary data")
    write(tmp_path / "a" / "x.bin", PARAGRAPHS)
    assert refusal(tmp_path / "a") == ": no label, and no text file (.txt) for a language model; name the files in it"
    (tmp_path / "b").mkdir()
    for name in ("train.txt", "test.txt"):
        write(tmp_path / "b" / name, PARAGRAPHS)
    assert refusal(tmp_path / "b") == ": directory of splits (test.txt, train.txt); name the training data, train.txt"
    with pytest.raises(UsageError, match="no files"):
        detect([])


SUFFIXES = ("txt", "csv", "tsv", "json", "jsonl", "conllu", "conll", "xlsx", "parquet", "txt.gz", "csv.xz", "en")
PIECES = [
    "a",
    "text",
    "label",
    "\t",
    ",",
    ";",
    "|",
    "\n",
    "\n\n",
    " ",
    '"',
    "{",
    "}",
    "[",
    "]",
    ":",
    "1",
    "0.5",
    "é",
    "\ufeff",
    "#",
    "_",
]
CONTENT = st.one_of(
    st.binary(max_size=200), st.lists(st.sampled_from(PIECES), max_size=60).map(lambda parts: "".join(parts).encode())
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=CONTENT, suffix=st.sampled_from(SUFFIXES))
def test_any_bytes_give_a_result_or_a_data_error(tmp_path, content, suffix):
    path = write(tmp_path / f"a.{suffix}", content)
    with contextlib.suppress(DataError, UsageError):
        assert detect(path).task


@pytest.mark.parametrize(("suffix", "content"), [("json", "{}"), ("json", "[{}, {}]"), ("jsonl", "{}\n{}\n")])
def test_empty_objects(tmp_path, suffix, content):
    with pytest.raises(DataError, match="the objects are empty"):
        detect(write(tmp_path / f"a.{suffix}", content.encode()))


def test_encodings(tmp_path):
    path = tmp_path / "a.txt"
    cases = {
        "utf-8": "é" * 600_000,
        "latin-1": "é" * 9,
        "cp1252": "“é”",
        "utf-16": "é",
    }  # UTF-8: the sample ends inside a character
    for encoding, text in cases.items():
        assert detect_encoding(write(path, text.encode(encoding))) == encoding
    assert detect_encoding(write(path, b"a" + "é".encode() * 600_000)) == "utf-8"


# ---- real data

EXAMPLES = Path(__file__).parents[1] / "examples"
# "yes" and "ok" are taken for labels, and the texts of denoising are pairs
NOT_DETECTED = (
    "yes-ok.toml",
    "denoise.toml",
    "moving.toml",
    "shapes.toml",
    "spoken.toml",
    "instructions.toml",
    "positive.toml",
    "praise.toml",
    "preferences.toml",
)  # pairs as texts, manifests of files, instructions (seq2seq), prompts alone, and preferences
RUN_FILES = [path for path in sorted(EXAMPLES.glob("*.toml")) if path.name not in NOT_DETECTED]


@pytest.mark.parametrize("run_file", RUN_FILES, ids=lambda path: path.stem)
def test_examples(run_file):
    values = tomllib.loads(run_file.read_text())
    files = values["data"]["train"]
    if files is not False:
        paths = [EXAMPLES / name for name in ([files] if isinstance(files, str) else files)]
        task = values["task"].removeprefix("masked-")
        assert detect(paths).task == ("lm" if task == "word-vectors" else task)  # both read text


# next to the repository, or above its worktree
DATA = next((path for parent in Path(__file__).parents if (path := parent / "shared" / "data").is_dir()), Path("shared/data"))
REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "trec/TREC.train.all": ("classification", {"encoding": "latin-1"}),
    "sst/stsa.binary.train": ("classification", {}),
    "sst/stsa.fine.dev": ("classification", {}),
    "g2p-sigmorphon2020/fre_train.tsv": ("seq2seq", {}),
    "g2p-sigmorphon2020/hin_dev.tsv": ("seq2seq", {}),
    "bli-xling/yacle.train.freq.1k.en-de.tsv": ("seq2seq", {}),
    "names-by-language": ("classification", {}),
    "names-makemore/names.txt": ("lm", {"read_as": "lines"}),
    "tinyshakespeare/input.txt": ("lm", {"read_as": "windows"}),
    "words-enwiki/enwiki-start.txt.xz": ("lm", {"read_as": "windows"}),
    "agreement-linzen/subj_agr_filtered.text.gz": ("lm", {"read_as": "lines"}),
    "ud-english-ewt/en_ewt-ud-dev.conllu.gz": ("tagging", {"tag_column": "upos"}),
    "ud-english-ewt/LICENSE.txt": ("lm", {"read_as": "windows"}),
    "wnut17-ner/wnut17train.conll": ("tagging", {}),
    "tatoeba-eng-fra/fra.txt.gz": ("seq2seq", {"delimiter": "tab"}),
    "multi30k/train.en.gz multi30k/train.de.gz": ("seq2seq", {}),
    "multi30k/val.fr.gz": ("lm", {"read_as": "lines"}),
    "instructions-dolly/dolly-6400.jsonl.gz": ("seq2seq", {"source_column": "instruction", "target_column": "response"}),
}
REAL_ERRORS = {
    "preferences-ukp/ukpconvarg1-strict.26-topics.jsonl.gz": "pairs of a preferred and a rejected text",
    "blimp/adjunct_island.jsonl.gz": "minimal pairs of sentences",
    "words-enwiki/eval/EN-SIMLEX-999.txt": "no task predicts numbers",
    "agreement-linzen/subj_agr_filtered.eval.gz": "only numbers",
    "trec": "directory of splits",
    "images-emoji/emoji-40.zip": "is a zip archive",
}


def real_files(names: str) -> list[Path]:
    paths = [DATA / name for name in names.split()]
    if not all(path.exists() for path in paths):
        pytest.skip(f"needs {names} of the data sets in shared/data")
    return paths


@pytest.mark.parametrize("names", REAL)
def test_real_data(names):
    result = detect(real_files(names))
    assert (result.task, result.data) == REAL[names], result.reason


@pytest.mark.parametrize("names", REAL_ERRORS)
def test_real_data_that_no_task_learns_from(names):
    with pytest.raises(DataError, match=REAL_ERRORS[names]):
        detect(real_files(names))


@pytest.mark.parametrize("task", ["masked-lm", "denoising", "asr", "captioning"])
def test_a_task_whose_files_are_not_detected(task, tmp_path):
    (tmp_path / "text.txt").write_text("some words of a text\nand some others\n")
    with pytest.raises(DataError, match=f"files of task {task} are not detected, .*; write a run file, see weft init {task}"):
        detect(tmp_path / "text.txt", task=task)
