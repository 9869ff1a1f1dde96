"""Names of other libraries, where weft has another one: the right one is suggested before any that merely looks alike."""

from __future__ import annotations

import pytest
from command_line import TEXT, refused

from weft.cli.main import main
from weft.errors import SYNONYMS, nearest

RUN = """\
task = "lm"
[data]
train = "text.txt"
[model]
kind = "lstm"
width = 8
"""


@pytest.mark.parametrize(
    ("setting", "right"),
    [
        ("train.learning_rate=1e-3", "lr"),
        ("train.num_train_epochs=3", "epochs"),
        ("train.batch_size=32", "batch_tokens"),
        ("train.early_stopping=3", "patience"),
        ("model.hidden_size=8", "width"),
        ("model.d_model=8", "width"),
        ("model.num_layers=2", "layers"),
    ],
)
def test_options_of_the_run_file(setting, right, here, capsys):
    code, message = refused(capsys, "train", "run.toml", "--set", setting)
    assert code == 2 and f"; did you mean {right!r}? known: " in message


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (("init", "ner"), "'tag'"),
        (("init", "pos"), "'tag'"),
        (("init", "sentiment"), "'classify'"),
        (("init", "question-answering"), "'span'"),
        (("init", "classify", "--kind", "cnn"), "'window'"),
        (("init", "classify", "--kind", "svm"), "'regression'"),
        (("fit", "run.toml"), "'train'"),
        (("train", "run.toml", "--epochs", "3"), "'--set train.epochs=...'"),
        (("train", "run.toml", "--learning-rate", "3"), "'--set train.lr=...'"),
        (("train", "run.toml", "--hidden-size", "3"), "'--set model.width=...'"),
        (("generate", "run", "--max-new-tokens", "3"), "'--length'"),
        (("predict", "run", "--num-beams", "3"), "'--beam'"),
    ],
)
def test_words_of_the_command_line(words, right, here, capsys):
    code, message = refused(capsys, *words)
    assert code == 2 and f"did you mean {right}?" in message


def test_views_and_kinds():
    assert nearest("saliency", ["lens", "attribution"]) == "; did you mean 'attribution'? known: lens, attribution"
    assert nearest("svm", ["lstm", "regression"]) == "; did you mean 'regression'? known: lstm, regression"
    assert nearest("svm", ["lstm"]) == "; did you mean 'lstm'? known: lstm"  # only what is known is suggested
    assert all(name == name.lower().replace("-", "_") for name in SYNONYMS)


def test_help_is_a_command_too(capsys):
    assert TEXT
    for words, same in ((["help"], ["--help"]), (["help", "train"], ["train", "--help"])):
        assert main(words) == 0
        asked = capsys.readouterr().out
        assert main(same) == 0
        assert capsys.readouterr().out == asked != ""
