"""Training rejects files with the data of another task, as evaluation does: their markup would be learned as text."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from command_line import expect_error
from label_runs import tagged_sentences, write_conll

from weft.errors import DataError
from weft.tasks.classification.data import LabeledDataConfig

LM = 'task = "{task}"\n[data]\ntrain = "{train}"\n[model]\narch = "{kind}"\n[train]\nmax_steps = 1\n'


@pytest.mark.parametrize(("task", "kind"), [("lm", "ngram"), ("lm", "lstm"), ("masked-lm", "bert")])
@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize(("name", "kind_of"), [("a.csv", "CSV"), ("a.jsonl.gz", "JSONL"), ("a.xlsx", "XLSX"), ("a.tsv", "TSV")])
def test_language_models_reject_tables(task, kind, command, name, kind_of, tmp_path, capsys):
    path = tmp_path / name
    path.write_text("label,text\npos,the cat\n")
    run_file = tmp_path / "run.toml"
    run_file.write_text(
        LM.format(task=task, train=name, kind=kind).replace("[train]\nmax_steps = 1\n" if kind == "ngram" else "#", "")
    )
    words = (command, str(run_file), *(("--output-dir", str(tmp_path / "run")) if command == "train" else ()))
    assert expect_error(capsys, *words) == (
        3,
        f"{path}: {kind_of} file, but language models read plain text; write the text column to a .txt file,"
        " or rename the file to .txt to read it as it is",
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["a.conllu", "a.conll", "a.iob2.gz"])
def test_language_models_reject_conll(name, tmp_path, capsys):
    path = tmp_path / name
    path.write_text("EU B-ORG\nrejects O\n\n")
    (tmp_path / "run.toml").write_text(LM.format(task="lm", train=name, kind="lstm"))
    assert expect_error(capsys, "train", str(tmp_path / "run.toml"), "--output-dir", str(tmp_path / "run")) == (
        3,
        f"{path}: CoNLL file, but this run reads plain text; use a text file with one sentence per line",
    )


def labelled(path: Path) -> int:
    return sum(1 for _ in LabeledDataConfig(train=path.name).sources(path.parent)["train"].records())


def speech(count: int) -> list[list[tuple[str, str]]]:
    """Sentences with many words and few part-of-speech tags."""
    chance = random.Random(0)
    return [
        [("".join(chance.choices("abcdefgh", k=3)), chance.choice(["NN", "VB", "DT"])) for _ in range(8)] for _ in range(count)
    ]


UNIVERSAL = "# text = Das ist\n1\tDas\tder\tPRON\t_\t_\t3\tnsubj\t_\t_\n2\tist\tsein\tAUX\t_\t_\t3\tcop\t_\t_\n\n"


@pytest.mark.parametrize("name", ["a.txt", "a.dat"])
def test_classifiers_reject_conll(name, tmp_path):
    path = tmp_path / name
    for write in (
        lambda: write_conll(path, tagged_sentences(30)),
        lambda: write_conll(path, speech(30)),
        lambda: path.write_text(UNIVERSAL),
        lambda: path.write_text("-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n"),
    ):
        write()
        with pytest.raises(DataError) as caught:
            labelled(path)
        assert str(caught.value) == (
            f'{path}: looks like CoNLL, one word with its tag per line, which task = "tagging" reads;'
            " use a table, lines or directories"
        )


def test_classifiers_accept_similar_text_lines(tmp_path):
    path = tmp_path / "a.txt"
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefgh", k=4)) for _ in range(60)]
    for text in (
        "\n\n".join(f"{chance.choice(['pos', 'neg'])} {word}" for word in words),  # labels followed by one word
        "pos B-movie\nneg O\n",
        "pos a b\nneg c d\n\npos e f\n",
        "".join(f"{index} {word} O\n" for index, word in enumerate(words)) + "x a\n",
    ):
        path.write_text(text)
        assert labelled(path) > 1
