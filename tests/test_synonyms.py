"""Option names of other libraries: weft suggests its own name for them before any similar spelling."""

from __future__ import annotations

import pytest
import torch
from command_line import TEXT, expect_error

from weft.cli.main import ANALYSES, GROUPS, main
from weft.errors import SYNONYMS, suggest

RUN = """\
task = "lm"
[data]
train = "text.txt"
[model]
arch = "lstm"
hidden_size = 8
"""


@pytest.mark.parametrize(
    ("setting", "suggestion"),
    [
        ("train.learning_rate=1e-3", "lr"),
        ("train.num_train_epochs=3", "max_epochs"),
        ("train.batch_size=32", "batch_tokens"),
        ("train.early_stopping=3", "patience"),
        ("model.n_embd=8", "hidden_size"),
        ("model.d_model=8", "hidden_size"),
        ("model.num_hidden_layers=2", "num_layers"),
        ("train.lr_scheduler_type=linear", "lr_schedule"),
        ("train.gradient_accumulation_steps=2", "micro_batches"),
        ("data.block_size=8", "context_length"),
        ("tokenizer.size=8", "vocab_size"),
        ("train.device=gpu", "cuda"),
        ("train.device=mps", "cpu"),
    ],
)
def test_run_file_options(setting, suggestion, work_dir, capsys):
    code, message = expect_error(capsys, "train", "run.toml", "--set", setting)
    assert code == 2 and message.endswith(f"; did you mean {suggestion!r}?")


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (("init", "ner"), "'tagging'"),
        (("init", "pos"), "'tagging'"),
        (("init", "sentiment"), "'classification'"),
        (("init", "question-answering"), "'qa'"),
        (("init", "classification", "--arch", "cnn"), "'conv'"),
        (("init", "classification", "--arch", "svm"), "'logistic-regression'"),
        (("train", "run.toml", "--epochs", "3"), "'--set train.max_epochs=...'"),
        (("train", "run.toml", "--learning-rate", "3"), "'--set train.lr=...'"),
        (("train", "run.toml", "--hidden-size", "3"), "'--set model.hidden_size=...'"),
        (("generate", "run", "--length", "3"), "'--max-new-tokens'"),
        (("generate", "run", "--max-length", "3"), "'--max-new-tokens'"),
        (("predict", "run", "--num-beams", "3"), "'--beam-size'"),
        (("train", "run.toml", "--batch-size", "3"), "'--set train.batch_tokens=...'"),
        (("train", "run.toml", "--fresh"), "'--overwrite'"),
        (("train", "run.toml", "--overwrit"), "'--overwrite'"),
        (("train", "run.toml", "--out", "x"), "'--output-dir'"),
        (("fine-tune", "run.toml"), "'train'"),
        (("inspect", "run"), "'info'"),
    ],
)
def test_command_line_options(words, suggestion, work_dir, capsys):
    code, message = expect_error(capsys, *words)
    assert code == 2 and f"did you mean {suggestion}?" in message


def test_views_and_architectures():
    assert suggest("saliency", ["logit-lens", "attribution"]) == "did you mean 'attribution'?"
    assert suggest("svm", ["lstm", "logistic-regression"]) == "did you mean 'logistic-regression'?"
    assert suggest("svm", ["lstm"]) == "did you mean 'lstm'?"  # only valid names are suggested
    assert all(name == name.lower().replace("-", "_") for name in SYNONYMS)


def test_help_is_a_command_too(capsys):
    assert TEXT
    for words, same in ((["help"], ["--help"]), (["help", "train"], ["train", "--help"])):
        assert main(words) == 0
        help_output = capsys.readouterr().out
        assert main(same) == 0
        assert capsys.readouterr().out == help_output != ""


@pytest.mark.parametrize("word", ["--epochs", "--ephocs", "--epoch", "--res", "--fps", "--refs"])
@pytest.mark.parametrize("command", ["train", "compare"])
def test_overwrite_is_never_suggested(word, command, work_dir, capsys):
    assert "--overwrite" not in expect_error(capsys, command, "run.toml", word, "3")[1]


def test_training_options_in_other_commands(work_dir, capsys):
    assert expect_error(capsys, "evaluate", "run", "--learning-rate", "3")[1] == (
        "evaluate: unknown option '--learning-rate'; it is an option of the run file: weft train RUN.TOML --set train.lr=...;"
        " see weft evaluate --help"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("arch = lstm", 'invalid TOML: a string needs quotes; write arch = "lstm"'),
        ("arch = naive-bayes  # the first", 'invalid TOML: a string needs quotes; write arch = "naive-bayes"'),
        ("train = data/my text.txt", 'invalid TOML: a string needs quotes; write train = "data/my text.txt"'),
        (r'train = "C:\Users\me\a.txt"', "invalid TOML: a backslash in double quotes starts an escape sequence; use single quotes,"
         " or / in paths"),
        ('arch = "a', "invalid TOML: a string has no closing quote"),
        ('arch: "a"', 'invalid TOML: expected = after the name of an option; write arch = "a"'),
        ("bidirectional = True", "invalid TOML: unknown value True; write bidirectional = true"),
        ("dropout = None  # no", "invalid TOML: unknown value None; remove dropout to use its default"),
    ],
)  # fmt: skip
def test_strings_without_quotes_and_windows_paths_are_explained(line, message, tmp_path, capsys):
    (tmp_path / "run.toml").write_text(f'task = "lm"\n[model]\n{line}\nhidden_size = 3\n')
    assert expect_error(capsys, "train", str(tmp_path / "run.toml")) == (2, f"{tmp_path / 'run.toml'}:3: {message}")


@pytest.mark.parametrize("line", ["arch =", "arch = [", 'arch = "a', "= 3", "arch = 'a'b", "a = 1 = 2"])
def test_other_toml_errors_are_reported_as_invalid_toml(line, tmp_path, capsys):
    (tmp_path / "run.toml").write_text(f"[model]\n{line}\n")
    code, message = expect_error(capsys, "train", str(tmp_path / "run.toml"))
    assert code == 2 and message.startswith(f"{tmp_path / 'run.toml'}:") and ": invalid TOML: " in message


def test_the_nearest_run_is_suggested(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("labels", "lstm"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "resolved.toml").write_text("")
    (tmp_path / "labels.toml").write_text("")
    for word, message in {
        "runs/lables": "runs/lables: run directory not found; did you mean runs/labels?",
        "labels": "labels: run directory not found; did you mean runs/labels?",
        "runs/zzz": "runs/zzz: run directory not found",
        "none/labels": "none/labels: run directory not found",
        "runs": "runs: not a run directory (resolved.toml is missing); choose one of the runs in it: labels, lstm",
        "labels.toml": "labels.toml: is a run file, not a run directory; use its run, runs/labels",
    }.items():
        assert expect_error(capsys, "info", word) == (4, message)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize(
    "command",
    [
        name
        for group in (*GROUPS.values(), {f"analyze {name}": one for name, one in ANALYSES.items()})
        for name, one in group.items()
        if "device" in getattr(one, "__dataclass_fields__", ())
    ],
)
def test_a_missing_device_is_rejected_at_once(command, capsys):
    """Before any other error: here the run and the data are missing, too."""
    more = ["--suite", "none"] if command == "analyze minimal-pairs" else []
    message = "--device: no CUDA GPU found; use 'auto' or 'cpu'"
    assert expect_error(capsys, *command.split(), "no-run", *more, "--device", "cuda") == (2, message)
    message = "--device: unknown device 'mps'; did you mean 'cpu'?"
    assert expect_error(capsys, *command.split(), "no-run", *more, "--device", "mps") == (2, message)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_missing_device_of_the_run_file_is_rejected_before_reading_data(command, tmp_path, capsys):
    (tmp_path / "run.toml").write_text(RUN.replace("text.txt", "none.txt") + '[train]\ndevice = "cuda"\n')
    message = "train.device: no CUDA GPU found; use 'auto' or 'cpu'"
    assert expect_error(capsys, command, str(tmp_path / "run.toml"), "--output-dir", str(tmp_path / "out")) == (2, message)
    assert not (tmp_path / "out").exists()
