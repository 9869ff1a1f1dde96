"""Oversized or malformed input: a one-line error, quickly, with bounded memory. Handling of SIGHUP."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from small_runs import make_text, run_file, train_here

from weft import files
from weft.cli.main import main
from weft.cli.signals import Stop, Terminated, terminable
from weft.config import override, read_toml
from weft.data.source import Source
from weft.errors import ConfigError, DataError, ModelError, ResourceError
from weft.interop.arpa import read_arpa
from weft.runs.load import load
from weft.runs.resolve import resolve
from weft.text import compression as unpack
from weft.text import reading as gate

# ---- lines and files


def test_an_endless_line_is_rejected_if_lines_are_examples(tmp_path, monkeypatch):
    """predict and score reject it, too."""
    path = tmp_path / "text.txt"
    path.write_text("short\n" + "x " * (gate.MAX_LINE_CHARS // 2 + 1) + "\nmore\n")
    message = f"{path}:2: line has more than 16,777,216 characters; is this a text file?"
    with pytest.raises(DataError) as caught:
        list(Source((path,), lines=True).batches())
    assert str(caught.value) == message
    assert [row.line for row in Source((path,)).rows()] == [1, 2, 3]  # running text may have no line ends
    monkeypatch.chdir(tmp_path)
    run = '[data]\ntrain = "text.txt"\nread_as = "lines"\n[model]\narch = "gru"\nhidden_size = 4\n[train]\nmax_steps = 1\n'
    Path("run.toml").write_text('task = "lm"\n' + run)
    assert main(["train", "run.toml", "-q"]) == 3
    assert not Path("runs").exists()


def test_the_limit_applies_to_each_line(tmp_path, monkeypatch):
    monkeypatch.setattr(gate, "CHUNK_CHARS", 4)
    path = tmp_path / "text.txt"
    path.write_text("aaaa\n" * 3 + "bbbbb")
    assert list(gate.read_lines(path, max_length=5)) == ["aaaa"] * 3 + ["bbbbb"]
    with pytest.raises(DataError) as caught:
        list(gate.read_lines([path, path], max_length=4))
    assert str(caught.value) == f"{path}:4: line has more than 4 characters; is this a text file?"


def test_too_many_open_files_is_not_reported_as_bad_data(tmp_path, monkeypatch):
    path = make_text(tmp_path / "text.txt")

    def no_more(self: Path, mode: str = "r") -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "open", no_more)
    for read in (lambda: list(unpack.read_bytes(path)), Source((path,)).provenance):
        with pytest.raises(ResourceError) as caught:
            read()
        assert str(caught.value) == f"{path}: cannot read the file: Too many open files"


def test_file_names_need_not_be_utf_8(tmp_path, capsys):
    run = train_here(run_file(make_text(tmp_path / "text.txt"), train__max_steps=1), tmp_path / "run").path
    strange = tmp_path / os.fsdecode(b"te\xffxt.txt")
    make_text(strange)
    assert main(["evaluate", str(run), "--data", str(strange), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"] == [str(strange)]
    files.write_json(tmp_path / "x.json", {"file": strange.name})
    assert files.read_json(tmp_path / "x.json") == {"file": strange.name}


def test_a_decompression_bomb_in_a_model_file_is_rejected(tmp_path, monkeypatch):
    path = tmp_path / "model.arpa.gz"
    head = b"\\data\\\nngram 1=99999999\n\n\\1-grams:\n"
    words = b"".join(b"-1\tword%d\n" % number for number in range(50_000))
    path.write_bytes(gzip.compress(head + words + b"-1\ta\n" * 100_000))
    monkeypatch.setattr(unpack, "MIN_RATIO_BYTES", 1000)
    monkeypatch.setattr(unpack, "MAX_RATIO", 3)
    with pytest.raises(ModelError) as caught:
        read_arpa(path)
    assert str(caught.value) == f"{path}: decompresses to more than 200 times its size; not an n-gram model"


def test_a_compressed_model_file_is_read(tmp_path):
    text = b"\\data\\\nngram 1=3\n\n\\1-grams:\n-1\t<unk>\n-99\t<s>\n-0.5\ta\n\n\\end\\\n"
    (tmp_path / "a.arpa").write_bytes(text)
    (tmp_path / "a.arpa.gz").write_bytes(gzip.compress(text))
    plain, packed = (read_arpa(tmp_path / name).model.levels[0].log_prob.tolist() for name in ("a.arpa", "a.arpa.gz"))
    assert plain == packed


# ---- run files


@pytest.mark.parametrize("text", ["{} = 1", "[{}]", "a = {{{} = 1}}", '"x".{} = 1', "{} = 1".replace(".", " . ")])
def test_a_key_with_very_many_parts_is_rejected(text, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(text.format(".".join(["a"] * 300_000)))
    with pytest.raises(ConfigError) as caught:  # tomllib would take minutes
        read_toml(path)
    assert str(caught.value) == f"{path}: a key has more than 100 parts, so this is not a run file"
    value = "{" + ".".join(["a"] * 300_000) + " = 1}"
    assert override({}, [f"x={value}"]) == {"x": value}


def test_valid_keys_and_values_are_accepted(tmp_path):
    path = tmp_path / "run.toml"
    numbers, prose = ", ".join(["0.5"] * 500), "a sentence. " * 900
    path.write_text(f"a.b.c = 1\nnumbers = [{numbers}]\nname = '{'x.' * 50}'\ntext = '''\n{prose}'''\n")
    assert read_toml(path)["a"] == {"b": {"c": 1}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["train.lr=1e39", "train.optimizer=sgd"], "train.lr: must be at most 1e+38, got 1e+39"),
        (["train.muon_lr=1e39", "train.optimizer=muon"], "train.muon_lr: must be at most 1e+38, got 1e+39"),
        (["train.weight_decay=1e39"], "train.weight_decay: must be at most 1e+38, got 1e+39"),
        (
            ["train.lr=1e30", "train.lr_multipliers={'embedding' = 1e9}"],
            "train.lr_multipliers.embedding: 1e+09 times the learning rate exceeds 1e+38",
        ),
    ],
)
def test_a_learning_rate_beyond_float32_is_rejected(settings, message, tmp_path):
    values = run_file(make_text(tmp_path / "text.txt"))
    values["train"].pop("lr")
    values["train"]["lr_multipliers"] = {"embedding": 1e9} if "lr_multipliers" in settings[-1] else {}
    with pytest.raises(ConfigError) as caught:
        resolve(override(values, [item for item in settings if "lr_multipliers" not in item]), base=tmp_path)
    assert str(caught.value) == message


# ---- views


def test_views_limit_the_number_of_tokens_by_memory(tmp_path):
    values = run_file(make_text(tmp_path / "text.txt"), "gpt", train__max_steps=1, data__context_length=1200)
    run: Any = load(train_here(values, tmp_path / "run").path, device="cpu")
    text = ("the cat sees a bird " * 60)[:1001]
    for view in ("attention", "gradient-flow"):
        with pytest.raises(DataError) as caught:
            run.explain(text, view)
        assert str(caught.value) == f"input: 1,001 tokens exceed the limit of 1,000 for {view}; use a part of the text"
    assert run.explain(text, "surprisal").lines  # needs memory linear in the text


# ---- a terminal that goes


@pytest.mark.slow  # a process trains for seconds
def test_sighup_saves_a_checkpoint_like_sigterm(tmp_path):
    values = run_file(make_text(tmp_path / "text.txt"), train__max_steps=9_999_999, train__num_validations=999_999)
    (tmp_path / "run.toml").write_text(tomli_w.dumps(values))
    command = [sys.executable, "-m", "weft.cli.main", "train", "run.toml", "--output-dir", "run"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        for line in process.stderr or ():
            if line.split()[:2] == ["step", "epoch"]:
                break
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)  # the shell and the system may each send one
        rest = process.stderr.read() if process.stderr else ""
        assert process.wait(timeout=60) == 129
    assert re.search(r"Stopped at step [\d,]+\. Saved to run\. Run the same command to resume\.\n$", rest)
    assert any((tmp_path / "run" / "checkpoints").iterdir())


@pytest.fixture
def default_sighup():
    """SIGHUP as a terminal starts processes: the tests may run under nohup, which ignores it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("default_sighup")
def test_sighup_ends_other_commands_and_removes_temporary_files():
    with pytest.raises(Terminated) as caught, terminable():
        signal.raise_signal(signal.SIGHUP)
    assert caught.value.exit_code == 129
    with pytest.raises(Terminated) as other, terminable():
        signal.raise_signal(signal.SIGTERM)
    assert other.value.exit_code == 143
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_nohup_ignores_sighup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminable():
            signal.raise_signal(signal.SIGHUP)
            with Stop() as stop:
                signal.raise_signal(signal.SIGHUP)
                assert not stop.is_requested
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("default_sighup")
def test_a_second_sighup_is_ignored(monkeypatch):
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("it did not save"))
    with Stop() as stop:
        stop.saves = True
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
    assert stop.exit_code == 129
