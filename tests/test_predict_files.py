"""Prediction on files: read as in training, written back with predictions added.

Expected files are written by Python's csv and json modules, or by hand, from the predictions for the texts themselves."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest
from command_line import expect_error, set_stdin
from label_runs import (
    LabelRuns,
    classification_run_file,
    single_label_rows,
    tagged_sentences,
    tagging_run_file,
    write_conll,
    write_tsv,
)
from seq2seq_runs import make_pairs, seq2seq_run_file
from small_runs import SilentCallback, train_here
from toy_qa import make_questions, qa_run_file, write_squad
from toy_qa import write_tsv as write_asked

import weft
from weft.cli.main import main
from weft.data.source import RowCount
from weft.errors import DataError

TEXTS = ["the cat", 'a "red", thing', "two\nlines: saw", "", "some; old dog"]


class Runs(LabelRuns):
    """The shared runs, plus quickly trained runs of other tasks."""

    def quick(self, name: str) -> Path:
        folder = self.directory / name
        if folder.exists():
            return folder
        if name == "pairs":
            values = seq2seq_run_file(make_pairs(self.directory / "words.tsv"), "lstm", "train.max_steps=2")
        elif name == "asked":
            values = qa_run_file(write_asked(self.directory / "asked.tsv", make_questions(60)), "lstm", "train.max_steps=2")
        elif name in ("lm", "masked-lm"):
            (self.directory / "text.txt").write_text("the cat sees a dog .\n" * 40)
            model = (
                {"arch": "lstm", "hidden_size": 8, "num_layers": 1}
                if name == "lm"
                else {"arch": "bert", "hidden_size": 8, "num_heads": 1}
            )
            values = {
                "task": name,
                "data": {"train": str(self.directory / "text.txt"), "read_as": "lines"},
                "tokenizer": {"type": "word"},
                "model": model,
                "train": {"max_steps": 2, "device": "cpu"},
            }
        elif name == "reviews":
            path = write_tsv(self.directory / "reviews.tsv", single_label_rows(60), "sentiment\treview")
            values = classification_run_file(path, "naive-bayes", "data.text_column=review", "data.label_column=sentiment")
        elif name == "tags":
            values = tagging_run_file(
                write_conll(self.directory / "tags.conll", tagged_sentences(30)), "lstm", "train.max_steps=2"
            )
        else:
            (self.directory / "first.txt").write_text("".join(f"{label} {text}\n" for label, text in single_label_rows(60)))
            values = classification_run_file(self.directory / "first.txt", "naive-bayes")
        train_here(values, folder, SilentCallback())
        return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def bayes(runs):
    return str(runs.run_dir("labels-naive-bayes"))


def out(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0, err: str = "") -> str:
    assert main([*words]) == code
    captured = capsys.readouterr()
    assert captured.err == err
    return captured.out


def rows_of(text: str, delimiter: str = ",") -> list[list[str]]:
    return list(csv.reader(io.StringIO(text), delimiter=delimiter, strict=True))


def labels_of(folder: str, texts: list[str]) -> list[list[str]]:
    run = weft.load(folder, device="cpu")
    actual = {text: run.predict(text) for text in texts if text.strip()}
    return [
        [actual[text].labels[0], f"{actual[text].probabilities[actual[text].labels[0]]:.4f}"] if text in actual else ["", ""]
        for text in texts
    ]


def write_csv(path: Path, rows: list[list[str]], delimiter: str = ",") -> Path:
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=delimiter, lineterminator="\r\n").writerows(rows)
    data = ("\ufeff" + buffer.getvalue()).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


# ---- labels of tables


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.csv.gz", ","), ("a.csv", ";")])
def test_csv_output_has_label_and_probability(name, delimiter, bayes, tmp_path, capsys):
    table = [["id", "text", "note"], *([f"{index}", text, 'x "y"'] for index, text in enumerate(TEXTS))]
    path = write_csv(tmp_path / name, table, delimiter)
    note = "" if delimiter == "," else "weft: note: a.csv: columns are separated by semicolons\n"
    actual = out(capsys, "predict", bayes, "--input", str(path), err=note)
    added = [["prediction", "probability"], *labels_of(bayes, TEXTS)]
    assert actual.startswith("\ufeff") and "\r\n" in actual  # unchanged
    assert rows_of(actual[1:], delimiter) == [[*row, *more] for row, more in zip(table, added, strict=True)]
    # predict reads what evaluate reads: the label is not part of the text
    labelled = write_csv(tmp_path / "b.csv", [["label", "text"], *(["animal", text] for text in TEXTS)])
    assert [row[2:] for row in rows_of(out(capsys, "predict", bayes, "--input", str(labelled)))] == added


def test_existing_columns_are_unchanged(bayes, tmp_path, capsys):
    (tmp_path / "a.csv").write_text('text,n\n"cat", 1.50\n"a ""dog""",x\n\n')
    assert out(capsys, "predict", bayes, "--input", str(tmp_path / "a.csv")).split("\n")[1].startswith('"cat", 1.50,animal,')
    (tmp_path / "a.tsv").write_text('prediction\ttext\nold\tthe "cat"\n')
    output = out(capsys, "predict", bayes, "--input", str(tmp_path / "a.tsv"))
    assert output.startswith('prediction\ttext\tprediction_2\tprobability\nold\tthe "cat"\tanimal\t0.')


def test_jsonl_output(bayes, tmp_path, capsys):
    lines = ['{"n": 1.50, "text": "the cat\\né", "label": "tool"}', '{"text": ""}', '{ "text": "saw" }']
    (tmp_path / "a.jsonl").write_text("\n\n".join(lines) + "\n")
    output = out(capsys, "predict", bayes, "--input", str(tmp_path / "a.jsonl")).split("\n")[:-1]
    assert output[0].startswith('{"n": 1.50, "text": "the cat\\né", "label": "tool", "prediction": "animal", "probability": 0.')
    assert [json.loads(line)["prediction"] for line in output] == ["animal", None, "tool"]
    # a list of objects gives JSON lines
    (tmp_path / "a.json").write_text(json.dumps([json.loads(line) for line in lines], indent=1))
    same = out(capsys, "predict", bayes, "--input", str(tmp_path / "a.json")).split("\n")[:-1]
    assert [json.loads(line) for line in same] == [json.loads(line) for line in output]


def test_column_names_are_those_of_training(runs, tmp_path, capsys):
    folder = str(runs.quick("reviews"))
    path = tmp_path / "a.csv"
    path.write_text("review,stars\nthe cat,5\n")
    assert out(capsys, "predict", folder, "--input", str(path)).startswith(
        "review,stars,prediction,probability\nthe cat,5,animal"
    )
    path.write_text("id,text\n1,the cat\n")
    assert expect_error(capsys, "predict", folder, "--input", str(path)) == (
        3,
        f"{path}:1: no column 'review'; available: id, text",
    )
    (tmp_path / "a.jsonl").write_text('{"doc": {"text": "x"}}\n')
    assert expect_error(capsys, "predict", folder, "--input", str(tmp_path / "a.jsonl")) == (
        3,
        f"{tmp_path / 'a.jsonl'}:1: no key 'review'; available: doc.text",
    )


def test_a_table_without_a_header_is_read_as_in_training(bayes, tmp_path, capsys):
    path = tmp_path / "a.tsv"
    path.write_text("tool\tthe cat\ntool\ta dog\n")
    note = "weft: note: a.tsv: no header; text is column 2 of 2\n"
    assert out(capsys, "predict", bayes, "--input", str(path), err=note).startswith("tool\tthe cat\tanimal\t0.")
    path.write_text("the cat\na dog\n")  # only texts
    assert out(capsys, "predict", bayes, "--input", str(path)).startswith("the cat\tanimal\t0.")
    path.write_text("id\treview\n1\tthe cat sat\n2\ta dog\n")
    assert expect_error(capsys, "predict", bayes, "--input", str(path)) == (
        3,
        f"{path}:1: no column 'text' in the header id, review; rename the text column, or remove the line",
    )


def test_invalid_records_do_not_stop_the_others(bayes, tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_bytes(b"text,n\nthe cat,1\nonly\nb\xe9,2\nsaw,3\n")
    faults = (
        f"weft: warning: {path}:3: expected 2 comma-separated columns, got 1: 'only'; skipped\n"
        f"weft: warning: {path}:4: invalid utf-8 (byte 0xe9); convert it first; skipped\n"
    )
    lines = out(capsys, "predict", bayes, "--input", str(path), "--json", code=3, err=faults).split("\n")[:-1]
    output = [json.loads(line) for line in lines]
    assert [item["text"] for item in output] == ["the cat", None, None, "saw"]
    assert [set(item) for item in output][:2] == [
        {"text", "labels", "probabilities"},
        {"text", "labels", "probabilities", "error"},
    ]
    (tmp_path / "a.jsonl").write_text('{"text": "the cat"}\n{"text": \n[]\n{"text": 3}\n')
    assert main(["predict", bayes, "--input", str(tmp_path / "a.jsonl")]) == 3
    captured = capsys.readouterr()
    assert [json.loads(line).get("error", "")[-20:] for line in captured.out.split("\n")[:-1]] == [
        "", "has one object a line", " an object with 'text'", "put it in quotes",
    ][:1] + [line.removesuffix("; skipped")[-20:] for line in captured.err.split("\n")[:-1]]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("\n\n")
    assert expect_error(capsys, "predict", bayes, "--input", str(tmp_path / "a.jsonl")) == (
        3,
        f"{tmp_path / 'a.jsonl'}: no objects",
    )
    path.write_text('text\n"open\n')
    message = f"weft: error: {path}:2: invalid CSV: unexpected end of data; close or double the quote"
    output = out(capsys, "predict", bayes, "--input", str(path), code=3, err=f"{message} (.tsv has no quotes)\n")
    assert output == "text,prediction,probability\n"


def test_file_content_is_preserved_byte_for_byte(runs, bayes, tmp_path, capsysbinary):
    """Line ends, byte order marks and invalid bytes stay; only the added columns are new."""

    def predicted(folder: str, name: str, data: bytes) -> bytes:
        (tmp_path / name).write_bytes(data)
        main(["predict", folder, "--input", str(tmp_path / name)])
        return capsysbinary.readouterr().out

    rows = [b"the cat,1", b"only", b"b\xe9\xff\xf6,2", b'"two\nlines:\r\nsaw",3', b"axe,4"]
    ends = [b"\r\n", b"\n", b"\r\n", b"\r\n", b""]
    full = b"\xef\xbb\xbftext,n\r\n" + b"".join(row + end for row, end in zip(rows, ends, strict=True))
    actual = predicted(bayes, "a.csv", full)
    assert actual.startswith(b"\xef\xbb\xbftext,n,prediction,probability\r\nthe cat,1,animal,")
    assert b'\r\nonly,,,\nb\xe9\xff\xf6,2,,\r\n"two\nlines:\r\nsaw",3,tool,' in actual
    assert actual.split(b"\r\n")[-2].startswith(b"axe,4,tool,0.") and actual.endswith(b"\r\n")
    actual = predicted(bayes, "a.jsonl", b'{"text": "b\xe9"}\r\n{"text": "the cat"}\n')
    assert actual.startswith(b'{"text": "b\xe9", "prediction": null, "probability": null, "error": "')
    assert actual.split(b"\r\n")[1].startswith(b'{"text": "the cat", "prediction": "animal"') and actual.count(b"\r") == 1
    actual = predicted(str(runs.quick("tags")), "a.conll", b"the X\r\ncat X\r\n\r\nb\xe9 X\nx X\n\n")
    assert [line.split()[:1] for line in actual.split(b"\n")] == [[b"the"], [b"cat"], [], [b"b\xe9"], [b"x"], [], []]
    assert [line.endswith(b"\r") for line in actual.split(b"\n")] == [True, True, True, False, False, False, False]


def test_several_files_give_one_table_or_an_error(bayes, tmp_path, capsys):
    one, two = tmp_path / "a.csv", tmp_path / "b.csv"
    one.write_text("id,text\n1,cat\n")
    two.write_text("id,text\n2,dog\n")
    actual = rows_of(out(capsys, "predict", bayes, "--input", str(one), "--input", str(two)))
    assert [row[0] for row in actual] == ["id", "1", "2"]
    two.write_text("text,id\ndog,2\n")
    message = f"--input: {one} and {two} have different formats or columns; read one at a time"
    assert expect_error(capsys, "predict", bayes, "--input", str(one), "--input", str(two)) == (2, message)
    assert out(capsys, "predict", bayes, "--input", str(one), "--input", str(two), "--json").count("\n") == 2


def test_multiple_labels_are_joined_in_one_cell(runs, tmp_path, capsys):
    folder = str(runs.run_dir("several-naive-bayes"))
    (tmp_path / "a.csv").write_text("text\nthe cat saw red axe\nhere\n")
    actual = rows_of(out(capsys, "predict", folder, "--input", str(tmp_path / "a.csv")))
    run = weft.load(folder, device="cpu")
    for row in actual[1:]:
        predictions = run.predict(row[0])
        assert row[1:] == [
            ",".join(predictions.labels),
            ",".join(f"{predictions.probabilities[name]:.4f}" for name in predictions.labels),
        ]
    (tmp_path / "a.jsonl").write_text('{"text": "the cat saw red axe"}\n')
    assert isinstance(json.loads(out(capsys, "predict", folder, "--input", str(tmp_path / "a.jsonl")))["prediction"], list)


def test_two_texts_are_two_columns(runs, tmp_path, capsys):
    folder = str(runs.run_dir("pairs-naive-bayes"))
    (tmp_path / "a.csv").write_text("two,one\nthe cat,a thing\n")
    actual = rows_of(out(capsys, "predict", folder, "--input", str(tmp_path / "a.csv")))
    assert actual[1][2] == weft.load(folder, device="cpu").predict(("a thing", "the cat")).labels[0]


# ---- lines


def test_text_files_give_one_line_per_line(bayes, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.txt").write_text("the cat,red\n\nsaw\n")
    output = out(capsys, "predict", bayes, "--input", str(tmp_path / "a.txt"))
    set_stdin(monkeypatch, b"the cat,red\n\nsaw\n")
    assert output == out(capsys, "predict", bayes) and output.count("\n") == 3
    set_stdin(monkeypatch, b"label,text\n")  # standard input is lines, whatever it looks like
    assert out(capsys, "predict", bayes).count("\n") == 1


def test_labels_in_text_lines_are_not_part_of_the_text(bayes, runs, tmp_path, capsys):
    path, plain = tmp_path / "a.txt", tmp_path / "b.txt"
    path.write_text("__label__tool the cat\n__label__a __label__b saw\n")
    plain.write_text("the cat\nsaw\n")
    expected = out(capsys, "predict", bayes, "--input", str(plain))
    note = "weft: note: a.txt: {} start with a label, which is not part of the text\n"
    assert out(capsys, "predict", bayes, "--input", str(path), err=note.format("2 of 2 lines")) == expected
    path.write_text("tool the cat\n" * 4)  # labels of the run, but it was trained on a table
    assert out(capsys, "predict", bayes, "--input", str(path)).count("\n") == 4
    first = str(runs.quick("first"))
    for text, meant, count in (
        ("tool the cat\n" * 4, "the cat\n" * 4, "4 of 4 lines"),
        ("tool the cat\n\ntool saw\nthe tool\n", "the cat\n\nsaw\nthe tool\n", "2 of 3 lines"),  # blank ones are not counted
        ("tool the cat\ntool saw\n", "the cat\nsaw\n", "2 of 2 lines"),
        ("tool the cat\nthe saw\n", "tool the cat\nthe saw\n", None),  # with two lines, both must match
        ("tool the cat\ntool saw\na\nthe b\n", "tool the cat\ntool saw\na\nthe b\n", None),  # half is not a majority
    ):
        path.write_text(text)
        plain.write_text(meant)
        want = [label for (label, _) in labels_of(first, meant.split("\n")[:-1])]
        output = out(capsys, "predict", first, "--input", str(path), err="" if count is None else note.format(count))
        assert [line.partition("\t")[0] for line in output.split("\n")[:-1]] == want
    path.write_text("tool the cat\n")
    count = "weft: note: a.txt: 1 of 1 line starts with a label, which is not part of the text\n"
    out(capsys, "predict", first, "--input", str(path), err=count)


def test_a_text_that_is_a_file_name_gives_a_note(bayes, runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("text\ncat\n")
    cure = {"predict": "--input a.csv", "embed": "--input a.csv", "explain": "< a.csv"}
    for command, way in cure.items():
        assert main([command, str(runs.run_dir("labels-lstm")), "a.csv"]) == 0
        note = f"weft: note: a.csv is the name of a file, but is read as text; use {way} to read the file\n"
        assert capsys.readouterr().err == note
    assert out(capsys, "predict", bayes, "a.csv", "--quiet").count("\n") == 1
    assert out(capsys, "predict", bayes, "b.csv\0" + "x" * 300, code=3, err="weft: warning: line 1: NUL at character 5;"
        " is this binary data?; skipped\n") == "\n"  # fmt: skip


# ---- tags

CONLLU = """\
# global.columns = ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC
# sent_id = 1
1-2\tthemr\t_\t_\t_\t_\t_\t_\t_\t_
1\tthe\tthe\tX\t_\t_\t0\troot\t_\t_
2\tmr\tmr\tX\t_\t_\t1\tdep\t_\tSpaceAfter=No
2.1\tx\t_\t_\t_\t_\t_\t_\t_\t_

# sent_id = 2
1\told\told\tX\t_\t_\t0\troot\t_\t_

# the end
"""


def tags_of(folder: str, words: list[str]) -> list[str]:
    return list(weft.load(folder, device="cpu").predict([words])[0].tags)


def test_conllu_output(runs, tmp_path, capsys):
    folder = str(runs.quick("tags"))
    path = tmp_path / "a.conllu.gz"
    path.write_bytes(gzip.compress(CONLLU.encode()))
    note = "weft: note: a.conllu.gz: CoNLL-U, tags are written to UPOS\n"
    output = out(capsys, "predict", folder, "--input", str(path), err=note)
    (one, two), (three,) = tags_of(folder, ["the", "mr"]), tags_of(folder, ["old"])
    expected = CONLLU.replace("the\tthe\tX", f"the\tthe\t{one}").replace("mr\tmr\tX", f"mr\tmr\t{two}")
    assert output == expected.replace("old\told\tX", f"old\told\t{three}")
    json_lines = out(capsys, "predict", folder, "--input", str(path), "--json", "-q").split("\n")[:-1]
    assert [json.loads(line)["words"] for line in json_lines] == [["the", "mr"], ["old"]]


def test_tag_columns_are_replaced_or_added(runs, tmp_path, capsys):
    folder, path = str(runs.quick("tags")), tmp_path / "a.txt"
    tags = tags_of(folder, ["the", "mr"])
    path.write_text("-DOCSTART- x O\n\nthe  DT O\nmr NN  B-PER\n\n\nold JJ O")
    note = "weft: note: a.txt: words are in column 1 of 3, tags are written to column 3\n"
    expected = f"-DOCSTART- x O\n\nthe  DT {tags[0]}\nmr NN  {tags[1]}\n\n\nold JJ {tags_of(folder, ['old'])[0]}\n"
    assert out(capsys, "predict", folder, "--input", str(path), err=note) == expected
    for name, text, gap in (("a.conll", "the\nmr\n", " "), ("a.tsv", "the\tDT\nmr\tNN\n", "\t")):
        (tmp_path / name).write_text(text)
        count = text.count("\t") // 2 + 1
        note = f"weft: note: {name}: words are in column 1 of {count}, tags are added as column {count + 1}\n"
        lines = [f"{line}{gap}{tag}\n" for line, tag in zip(text.split(), tags, strict=False)] if count == 1 else [
            f"the\tDT\t{tags[0]}\n", f"mr\tNN\t{tags[1]}\n"]  # fmt: skip
        assert out(capsys, "predict", folder, "--input", str(tmp_path / name), err=note) == "".join(lines)
    path.write_text("the mr\nold\n")  # a text file: one sentence per line
    assert out(capsys, "predict", folder, "--input", str(path)).startswith("the/")


def test_a_tagger_rejects_tables_and_continues_after_an_error(runs, tmp_path, capsys):
    folder, path = str(runs.quick("tags")), tmp_path / "a.csv"
    path.write_text("text\nx\n")
    assert expect_error(capsys, "predict", folder, "--input", str(path)) == (
        3,
        f"{path}: is a table; a tagger reads CoNLL-U, words and tags in columns, or one sentence per line",
    )
    ragged = tmp_path / "a.conll"
    ragged.write_text("the O\n\nmr O\nodd\n\nold O\n")
    assert main(["predict", folder, "--input", str(ragged), "--quiet"]) == 3
    captured = capsys.readouterr()
    assert captured.err == f"weft: warning: {ragged}:4: expected 2 columns, got 1: 'odd'; skipped\n"
    assert captured.out.split("\n")[2:5] == ["mr O", "odd", ""] and captured.out.count("\n") == 6


# ---- answers


def test_questions_from_tables_and_squad(runs, tmp_path, capsys):
    folder, rows = str(runs.quick("asked")), make_questions(6, seed=5)
    run = weft.load(folder, device="cpu")
    predictions = run.predict([row[:2] for row in rows])
    table = write_asked(tmp_path / "a.tsv", rows)
    actual = rows_of(out(capsys, "predict", folder, "--input", str(table)), "\t")
    assert actual[0] == ["question", "passage", "answer", "prediction", "probability"]
    assert [row[3:] for row in actual[1:]] == [[item.text, f"{item.probability:.4f}"] for item in predictions]
    squad = write_squad(tmp_path / "a.json", rows)
    assert json.loads(out(capsys, "predict", folder, "--input", str(squad))) == {
        str(index): item.text for index, item in enumerate(predictions)
    }
    unanswered = json.loads(squad.read_text())
    for article in unanswered["data"]:
        del article["paragraphs"][0]["qas"][0]["answers"]
    squad.write_text(json.dumps(unanswered))
    json_lines = out(capsys, "predict", folder, "--input", str(squad), "--json").split("\n")[:-1]
    assert [json.loads(line)["answer"] for line in json_lines] == [item.text for item in predictions]
    lines = tmp_path / "a.txt"
    lines.write_text("".join(f"{row[0]}\t{row[1]}\n" for row in rows))
    assert out(capsys, "predict", folder, "--input", str(lines)) == "".join(f"{item.text}\n" for item in predictions)


# ---- outputs and scores of pairs


def test_sources_are_read_and_outputs_added(runs, tmp_path, capsys):
    folder, words = str(runs.quick("pairs")), ["abc", "fade"]
    run = weft.load(folder, device="cpu")
    expected = [run.predict(word).text for word in words]
    (tmp_path / "a.tsv").write_text("abc\tA BB C\nfade\tF A DD E\n")
    note = "weft: note: a.tsv: no header; source is column 1 of 2\n"
    data = ("--input", str(tmp_path / "a.tsv"))
    assert out(capsys, "predict", folder, *data, err=note) == f"abc\tA BB C\t{expected[0]}\nfade\tF A DD E\t{expected[1]}\n"
    best = out(capsys, "predict", folder, *data, "--n-best", "2", err=note).split("\n")[:-1]
    assert [line.split("\t")[0] for line in best] == ["1", "1", "2", "2"]
    json_lines = out(capsys, "predict", folder, *data, "--json", err=note).split("\n")[:-1]
    assert [json.loads(line)["source"] for line in json_lines] == words
    (tmp_path / "b.csv").write_text("source\nabc\nfade\n")
    assert rows_of(out(capsys, "predict", folder, "--input", str(tmp_path / "b.csv")))[1:] == [
        [word, text] for word, text in zip(words, expected, strict=True)
    ]
    scores = run.score([("abc", "A BB C"), ("fade", "F A DD E")])
    (tmp_path / "c.csv").write_text("target,n,source\nA BB C,1,abc\nF A DD E,2,fade\n")
    actual = rows_of(out(capsys, "score", folder, "--input", str(tmp_path / "c.csv")))
    assert actual[0][3:] == ["log_prob", "perplexity"]
    assert [row[3:] for row in actual[1:]] == [[f"{score.log_prob:.4f}", f"{score.perplexity:.4f}"] for score in scores]
    assert out(capsys, "score", folder, "--input", str(tmp_path / "c.csv"), "--per-token").count("\n\n") == 2


# ---- texts of language models, vectors


def test_language_models_read_the_text_column(runs, tmp_path, capsys):
    lm, masked = str(runs.quick("lm")), str(runs.quick("masked-lm"))
    path, other = tmp_path / "a.csv", tmp_path / "b.csv"
    path.write_text('n,text\n1,"the [MASK], sees"\n')
    other.write_text("n,words\n1,the cat\n")
    (score,) = weft.load(lm, device="cpu").score(["the [MASK], sees"])
    assert rows_of(out(capsys, "score", lm, "--input", str(path)))[1][2] == f"{score.log_prob:.4f}"
    (one,) = (json.loads(line) for line in out(capsys, "predict", masked, "--input", str(path), "--json").split("\n")[:-1])
    assert one["text"] == "the [MASK], sees" and len(one["masks"]) == 1
    data = json.loads(out(capsys, "generate", lm, "--input", str(path), "--json", "--max-new-tokens", "2", "-q"))
    assert [one["prompt"] for one in data["results"]] == ["the [MASK], sees"]
    for words in (("score", lm), ("predict", masked)):
        assert expect_error(capsys, *words, "--input", str(other)) == (
            3,
            f"{other}:1: no column 'text'; available: n, words",
        )


def test_embeddings_of_files_equal_those_of_their_texts(runs, tmp_path, capsys):
    folder = str(runs.run_dir("labels-lstm"))
    run = weft.load(folder, device="cpu")
    (tmp_path / "a.csv").write_text('label,text\ntool,"the cat,"\ntool,saw\n')
    json_lines = out(capsys, "embed", folder, "--input", str(tmp_path / "a.csv")).split("\n")[:-1]
    assert [json.loads(line)["text"] for line in json_lines] == ["the cat,", "saw"]
    np.testing.assert_allclose([json.loads(line)["vector"] for line in json_lines], run.embed(["the cat,", "saw"]), atol=1e-5)
    tags = str(runs.quick("tags"))
    (tmp_path / "a.conllu").write_text(CONLLU)
    json_lines = out(capsys, "embed", tags, "--input", str(tmp_path / "a.conllu"), "--quiet").split("\n")[:-1]
    assert [json.loads(line)["text"] for line in json_lines] == ["the mr", "old"]
    for command in ("geometry", "similarity"):
        assert main(["analyze", command, tags, "--data", str(tmp_path / "a.conllu"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) is not None


# ---- evaluation of another file


def test_only_unseen_labels_is_an_error(bayes, runs, tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_text("label,text\nspam,the cat\nham,a dog\nham,saw\n")
    assert expect_error(capsys, "evaluate", bayes, "--data", str(path)) == (
        3,
        f"{path}: has no labels of {bayes} ('animal', 'colour', 'tool'), only 'ham' (2), 'spam' (1);"
        " check data.label_column = 'label'; columns: label, text",
    )
    lines = tmp_path / "a.txt"
    lines.write_text("good the cat\n")
    assert expect_error(capsys, "evaluate", bayes, "--data", str(lines)) == (
        3,
        f"{lines}: has no labels of {bayes} ('animal', 'colour', 'tool'), only 'good' (1);"
        " a line is read as a label, white space, and a text",
    )
    lines.write_text("good the cat\ntool a saw\n")  # some are known
    assert main(["evaluate", bayes, "--data", str(lines)]) == 0
    capsys.readouterr()
    tags, columns = str(runs.quick("tags")), tmp_path / "a.conll"
    columns.write_text("the DET\nmr NOUN\n")
    names = ", ".join(repr(name) for name in weft.load(tags, device="cpu").labels)
    assert expect_error(capsys, "evaluate", tags, "--data", str(columns)) == (
        3,
        f"{columns}: has no tags of {tags} ({names}), only 'DET' (1), 'NOUN' (1);"
        " a.conll: words are in column 1, tags in column 2 of 2, separated by spaces; set data.tag_column to another column",
    )


def test_files_of_another_task_are_rejected_by_name(bayes, runs, tmp_path, capsys):
    sentences, table = tmp_path / "a.conllu.gz", tmp_path / "a.jsonl"
    sentences.write_bytes(gzip.compress(CONLLU.encode()))
    for command, option in (("evaluate", "--data"), ("predict", "--input")):
        assert expect_error(capsys, command, bayes, option, str(sentences)) == (
            3,
            f"{sentences}: CoNLL file, but this run reads labeled texts; use a table, lines or directories",
        )
    table.write_text('{"text": "x", "label": "tool"}\n')
    assert expect_error(capsys, "evaluate", str(runs.quick("tags")), "--data", str(table)) == (
        3,
        f"{table}: is a table; a tagger reads CoNLL-U, words and tags in columns, or one sentence per line",
    )
    lm, masked, pairs = (str(runs.quick(name)) for name in ("lm", "masked-lm", "pairs"))
    for words in (
        ("score", lm, "--input"),
        ("predict", masked, "--input"),
        ("embed", masked, "--input"),
        ("predict", pairs, "--input"),
        ("evaluate", lm, "--data"),
        ("evaluate", masked, "--data"),
    ):
        assert expect_error(capsys, *words, str(sentences)) == (
            3,
            f"{sentences}: CoNLL file, but this run reads plain text; use a text file with one sentence per line",
        )
    assert expect_error(capsys, "generate", lm, "--input", str(sentences))[0] == 3
    for run in (lm, masked):
        for words in (("evaluate", run), ("compare", run, "--output-dir", str(tmp_path / "compared"))):
            assert expect_error(capsys, *words, "--data", str(table)) == (
                3,
                f"{table}: JSONL file, but this run was trained on plain text; use a text file",
            )


def test_a_key_that_only_a_later_object_has_is_not_written_twice(bayes, tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "the cat"}\n{"text": "saw", "prediction": "old", "error": 7}\n{"text": 1, "error": "e"}\n')
    assert main(["predict", bayes, "--input", str(path)]) == 3
    rows = [json.loads(line, object_pairs_hook=list) for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [[key for key, _ in row] for row in rows] == [
        ["text", "prediction", "probability"],
        ["text", "prediction", "error", "prediction_2", "probability"],
        ["text", "error", "prediction", "probability", "error_2"],
    ]


def test_prompts_from_cells_stay_on_one_line(runs, tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_text('text\n"the cat\nsees"\na dog\n')
    output = out(capsys, "generate", str(runs.quick("lm")), "--input", str(path), "--max-new-tokens", "2", "-q")
    first, second = output.split("\n")[:-1]
    assert first.startswith("the cat\\nsees") and second.startswith("a dog")


def test_notes_describe_only_what_happened(runs, tmp_path, capsys):
    tags, path = str(runs.quick("tags")), tmp_path / "a.conllu"
    path.write_text(CONLLU)
    for words in (("embed", tags), ("predict", tags, "--json")):
        out(capsys, *words, "--input", str(path), err="weft: note: a.conllu: CoNLL-U\n")
    path = tmp_path / "a.tsv"
    path.write_text("question\tpassage\nwho ?\t\n")
    assert main(["predict", str(runs.quick("asked")), "--input", str(path)]) == 3
    assert capsys.readouterr().err == f"weft: warning: {path}:2: expected a question and a passage, got 1 text; skipped\n"
    text = tmp_path / "a.txt"
    text.write_text("the cat sees a dog .\n\nthe cat sees a dog .\na dog sees the cat .\n")
    assert main(["analyze", "geometry", str(runs.quick("lm")), "--data", str(text), "--json"]) == 0
    assert capsys.readouterr().err == (
        "weft: note: skipped 1 text: blank, or too long for the model\nweft: note: skipped 1 repeated text\n"
    )
    with pytest.raises(DataError, match=r"^a\.txt: 1 character is too few for the fraction from 0 to 0\.5; add text, or use"):
        RowCount("a.txt", 1, "characters", "text").span(0, 0.5)
