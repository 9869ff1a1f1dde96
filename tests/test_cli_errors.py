"""Errors for bad input: one line with the location, the problem and the fix, an exit code, and no partial output."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from command_line import TEXT, expect_error, set_stdin, train_error

from weft.cli.main import main
from weft.cli.usage import one_line
from weft.interop.formats import FORMATS
from weft.lock import Lock
from weft.tensors import read_tensors, write_tensors

RUN = """
task = "lm"
[data]
train = "text.txt"
context_length = 16
[model]
arch = "transformer"
num_layers = 1
hidden_size = 8
num_heads = 2
[train]
max_steps = 2
batch_tokens = 64
"""
pytestmark = pytest.mark.usefixtures("restore_openmp_env")


# ---- the command line itself

USAGE = {
    "trian": "unknown command 'trian'; did you mean 'train'?",
    "fill runs/x": "unknown command 'fill'; did you mean 'predict'?",
    "gradcheck run.toml": "unknown command 'gradcheck'; did you mean 'check'?",
    "probe runs/x": "unknown command 'probe'; did you mean 'analyze'?",
    "analyze geometri runs/x": "analyze: unknown command 'geometri'; did you mean 'geometry'?",
    "train run.toml --outptu-dir x": "train: unknown option '--outptu-dir'; did you mean '--output-dir'?",
    "generate runs/x --tempreature 1": ("generate: unknown option '--tempreature'; did you mean '--temperature'?"),
    "analyze geometry runs/x --wrods a": ("analyze geometry: unknown option '--wrods'; did you mean '--words'?"),
    "score runs/x --zzz": "score: unknown option '--zzz'; see weft score --help",
    "--vresion": "unknown option '--vresion'; did you mean '--version'?",
    "train": "train: missing argument 'RUN.TOML'; see weft train --help",
    "train run.toml --output-dir": "option '--output-dir' requires an argument; see weft --help",
    "evaluate a b": "evaluate: unexpected argument 'b'; use --data for data files",
    "train run.toml b": "train: unexpected argument 'b'; see weft train --help",
    "predict runs/x red cat": (
        "predict: unexpected argument 'cat'; quote a text that has spaces, and pass several texts on standard input, one per line"
    ),
    "score runs/x text": "score: unexpected argument 'text'; use --input for a file, or pass the text on standard input",
    "evaluate runs/x --test a.csv": "evaluate: unknown option '--test'; did you mean '--data'?",
    "version": "unknown command 'version'; did you mean '--version'?",
    "zzz": "unknown command 'zzz'; see weft --help",
    "init": "init: missing argument 'TASK'; choose from lm, seq2seq, classification, tagging, masked-lm, denoising, qa, asr, captioning, word-vectors, reward-model, instruction-tuning, dpo, policy-gradient",
    "init mt": "init: unknown task 'mt'; did you mean 'seq2seq'?",
    "init lm --arch LSTM": "--arch: unknown architecture 'LSTM'; did you mean 'lstm'?",
    "info --threads 0": "--threads: must be greater than or equal to 1; see weft info --help",
    "info --threads x": "--threads: must be a valid integer, unable to parse string as an integer; see weft info --help",
    "init ml": "init: unknown task 'ml'; did you mean 'lm'?",
    "init lm --arch gtp": "--arch: unknown architecture 'gtp'; did you mean 'gpt'?",
    "analyze geometry x --max-words 1": "--max-words: must be at least 2, got 1",
    "export runs/x --format onx -o y": "--format: unknown format 'onx'; did you mean 'onnx'?",
    "export runs/x --format hf": "--output-dir: required with --format; set --output-dir",
    "export runs/x --quantization int8": "--output-dir: required with --quantization; set --output-dir",
    "export runs/x --license mit": "--output-dir: required with --license; set --output-dir",
    "export runs/x --scores scores.json": "--output-dir: required with --scores; set --output-dir",
    "export runs/x --format 77 -o y": f"--format: unknown format '77'; choose from {', '.join(FORMATS)}",
    "export runs/x --format gguv -o y": "--format: unknown format 'gguv'; did you mean 'gguf'?",
}


@pytest.mark.parametrize("words", USAGE)
def test_a_wrong_command_line(capsys, words):
    assert expect_error(capsys, *words.split()) == (2, USAGE[words])


def test_control_characters_in_names_are_escaped(capsys):
    assert one_line("a\nb\x1b[31m\u202e é") == "a\\nb\\x1b[31m\\u202e é"
    assert expect_error(capsys, "info", "no\nrun") == (4, "no\\nrun: run directory not found")


def test_debug_prints_the_traceback(capsys):
    assert main(["info", "nowhere", "--debug"]) == 4
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.endswith("\nweft: error: nowhere: run directory not found\n")


def test_unexpected_errors_keep_their_traceback(monkeypatch):
    monkeypatch.setattr("weft.cli.commands.info.machine_info", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        main(["info"])


def test_ctrl_c_exits_with_130(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("weft.cli.commands.info.machine_info", interrupted)
    assert main(["info"]) == 130


# ---- the run file


def test_a_run_file_that_is_missing_or_not_toml(work_dir, capsys):
    assert expect_error(capsys, "train", "nope.toml") == (2, "nope.toml: file not found")
    (work_dir / "good.toml").write_text("")
    assert expect_error(capsys, "train", "god.toml") == (2, "god.toml: file not found; did you mean good.toml?")
    (work_dir / "text.txt").write_text("Otto lives here.\n")
    assert expect_error(capsys, "train", "text.txt") == (2, "text.txt: not a run file; weft init prints one")
    assert expect_error(capsys, "train", ".") == (2, ".: is a directory, not a run file; weft init prints one")
    (work_dir / "bad.toml").write_text("task = \n")
    assert expect_error(capsys, "train", "bad.toml") == (2, "bad.toml:1: invalid TOML: Invalid value")
    (work_dir / "bad.toml").write_bytes(b"task = '\xe9'")
    assert expect_error(capsys, "train", "bad.toml") == (
        2,
        "bad.toml: invalid UTF-8 (byte 8); convert the file to UTF-8",
    )
    assert not (work_dir / "runs").exists()


CONVERT = 'convert the file or set data.encoding, e.g. "latin-1"'
CONFIG = {
    "modle.width=3": "modle: unknown option; did you mean 'model'?",
    "model.arch=gtp": ("model.arch: unknown architecture 'gtp'; did you mean 'gpt'?"),
    "train.max_stpes=3": "train.max_stpes: unknown option; did you mean 'max_steps'?",
    "task=ml": "task: unknown task 'ml'; did you mean 'lm'?",
    "model.num_heads=3": "model.num_heads: hidden_size 8 is not divisible by 3; change one of them or set head_dim",
    "model.hidden_size=wide": "model.hidden_size: expected an integer, got 'wide'",
    "nonsense": "--set: expected KEY=VALUE, got 'nonsense'; e.g. model.hidden_size=512",
    "task.x=1": "--set: task.x is not an option; task is not a table",
}


@pytest.mark.parametrize("setting", CONFIG)
def test_invalid_run_files(work_dir, capsys, setting):
    assert train_error(capsys, setting) == (2, CONFIG[setting])
    assert not (work_dir / "runs").exists()


# ---- the data


def data_files(work_dir):
    (work_dir / "empty.txt").write_text("")
    (work_dir / "blank.txt").write_text("\n\n\n")
    (work_dir / "one.txt").write_text("one line")
    (work_dir / "binary.txt").write_bytes(b"\x7fELF\x02\x01\x01\x00\x00\x00")
    (work_dir / "image.txt").write_bytes(b"\x89PNG\r\n\x1a\n")
    (work_dir / "latin.txt").write_bytes("café au lait\n".encode("latin-1") * 9)
    (work_dir / "folder").mkdir()


DATA = {
    "nope.txt": "nope.txt: file not found",
    "folder": "folder: is a directory; name the files in it",
    "empty.txt": "empty.txt: file is empty",
    "blank.txt": "blank.txt: no text, only 3 empty lines",
    "binary.txt": "binary.txt:1: NUL character; is this a binary or UTF-16 file? For UTF-16, set data.encoding",
    "image.txt": f"image.txt:1: invalid UTF-8 (byte 0x89 at offset 0); {CONVERT}",
    "latin.txt": f"latin.txt:1: invalid UTF-8 (byte 0xe9 at offset 3); {CONVERT}",
}


@pytest.mark.parametrize("name", DATA)
def test_invalid_data(work_dir, capsys, name):
    data_files(work_dir)
    assert train_error(capsys, f"data.train={name}") == (3, f"{work_dir}/{DATA[name]}")
    assert not (work_dir / "runs").exists()


def test_data_of_one_line(work_dir, capsys):
    data_files(work_dir)
    code, line = train_error(capsys, "data.train=one.txt")
    assert (code, line) == (
        3,
        "data.context_length: train has only 8 tokens; use more text or a context_length of at most 8",
    )
    assert not (work_dir / "runs").exists()


def test_latin_1_is_read_if_configured(work_dir):
    data_files(work_dir)
    settings = ["--set", "data.train=latin.txt", "--set", "data.encoding=latin-1"]
    assert main(["train", "run.toml", "--quiet", *settings]) == 0


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"caf\xe9\nbe\n", "1: invalid utf-8 (byte 0xe9); convert it first"),
        (b"be\xc3", "1: invalid utf-8 (byte 0xc3); convert it first"),
        (b"be\0\n", "1: NUL character; is this binary data?"),
    ],
)
def test_invalid_standard_input(trained_dir, capsys, monkeypatch, data, fault):
    set_stdin(monkeypatch, data)
    assert main(["score", "runs/run"]) == 3
    captured = capsys.readouterr()
    assert captured.err == f"weft: warning: standard input:{fault}; skipped\n" and captured.out.startswith("\n")


def test_a_missing_file_to_score(trained_dir, capsys):
    assert expect_error(capsys, "score", "runs/run", "--input", "nope.txt") == (3, "nope.txt: file not found")


@pytest.mark.parametrize("words", [["evaluate", "--data"], ["score", "--input"], ["generate", "--input"]])
def test_unreadable_data_is_a_data_error_not_a_usage_error(trained_dir, capsys, monkeypatch, words):
    """Whoever runs this as root may read everything, so the system is told to refuse."""
    command, option = words
    whole = Path.open

    def denied(path, *others, **named):
        if path.name == "secret.txt":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return whole(path, *others, **named)

    (trained_dir / "secret.txt").write_text("To be\n")
    monkeypatch.setattr(os, "access", lambda path, mode, **named: Path(path).name != "secret.txt")
    monkeypatch.setattr(Path, "open", denied)
    assert expect_error(capsys, command, "runs/run", option, "secret.txt") == (
        3,
        "secret.txt: cannot read the file: Permission denied",
    )


# ---- resources


def test_a_model_too_large_for_memory_is_refused_before_allocation(work_dir, capsys):
    code, line = train_error(capsys, "model.hidden_size=65536", "model.num_layers=100", "model.num_heads=8")
    assert code == 5
    assert re.fullmatch(
        r"model: \d+\.\dB parameters need \d+\.\d TB to train with adamw, \d+\.\d [kMG]B are free; "
        r"reduce hidden_size or num_layers",
        line,
    )
    assert not (work_dir / "runs").exists()


def test_a_search_too_large_for_memory_is_refused_before_its_first_step(trained_dir, capsys, monkeypatch):
    """16 positions of a layer of 8 numbers: keys, values, where they stand; and how far it read. Characters and special
    tokens have log-probabilities, twice; and all of it, with 16 tokens, is there three times."""
    monkeypatch.setattr("weft.decode.batch_size.free_device_memory", lambda device: 10_000_000)
    monkeypatch.setattr("weft.decode.generate.beam_search", lambda *given, **named: 1 // 0)
    row = 16 * (2 * 8 * 4 + 8) + 8 + 2 * 4 * (len(set(TEXT)) + 3) + 8 * 16
    assert expect_error(capsys, "generate", "runs/run", "To", "--max-new-tokens", "13", "--beam-size", "9000") == (
        5,
        f"generate: a beam of 9000 rows of up to 16 tokens needs about {3 * 9000 * row / 1e6:.1f} MB, "
        "10.0 MB are free; reduce --beam-size or --max-new-tokens",
    )


def test_a_run_directory_in_use(trained_dir, capsys):
    with Lock(trained_dir / "runs" / "run"):
        code, line = expect_error(capsys, "train", "run.toml", "--overwrite", "--quiet")
    assert code == 5
    assert re.fullmatch(
        r"runs/run: in use by another process \(process \d+ since [-\d]+ [:\d]+\); wait for it or choose another directory",
        line,
    )
    assert (trained_dir / "runs/run/model.safetensors").exists()


def test_a_run_that_diverges(work_dir, capsys):
    code, line = train_error(capsys, "train.lr=1e30", "train.max_grad_norm=0", "train.max_steps=9", "train.num_validations=1")
    assert code == 6
    assert re.fullmatch(
        r"step \d: (loss|gradient norm) is (nan|inf) \(epoch 0, batch \d: .+\); the last checkpoint is intact; "
        r"lower train.lr or train.max_grad_norm",
        line,
    )
    assert (work_dir / "runs/run/metrics.jsonl").exists()


# ---- run folders


def test_a_path_that_is_not_a_run_directory(work_dir, capsys):
    for command in ("evaluate", "score", "generate", "info"):
        assert expect_error(capsys, command, "nope") == (4, "nope: run directory not found")
        assert expect_error(capsys, command, ".") == (4, ".: not a run directory (resolved.toml is missing)")
    assert expect_error(capsys, "train", "run.toml", "--tokenizer-from", "nope") == (4, "nope: run directory not found")
    (work_dir / "other").mkdir()
    (work_dir / "other" / "resolved.toml").write_text("")
    assert expect_error(capsys, "train", "run.toml", "--tokenizer-from", "other") == (
        2,
        "--tokenizer-from: other has no tokenizer.json",
    )


def test_a_directory_with_other_files_is_not_touched(trained_dir, capsys):
    assert expect_error(capsys, "train", "run.toml", "--output-dir", ".") == (
        2,
        ".: not empty and not a run directory (contains run.toml); choose another --output-dir",
    )
    code, line = train_error(capsys, "model.hidden_size=16", "train.max_steps=3")
    assert (code, line) == (
        2,
        "runs/run: contains a run with different options (model.ffn_dim: 32, now 64; model.hidden_size: 8, now 16; "
        "train.max_steps: 2, now 3); choose another --output-dir or use --overwrite",
    )
    assert (trained_dir / "runs/run/model.safetensors").exists()


def test_a_damaged_run(trained_dir, capsys):
    weights = trained_dir / "runs/run/model.safetensors"
    original = weights.read_bytes()
    weights.write_bytes(original[:-8] + bytes(8 * [255]))
    assert expect_error(capsys, "generate", "runs/run", "To") == (
        4,
        "runs/run/model.safetensors: checksum mismatch; the file is corrupted",
    )
    weights.unlink()
    assert expect_error(capsys, "evaluate", "runs/run", "--data", "text.txt") == (
        4,
        "runs/run: not trained yet; run weft train",
    )
    weights.write_bytes(original)
    (trained_dir / "runs/run/tokenizer.json").write_text("{")
    code, line = expect_error(capsys, "info", "runs/run")
    assert code == 4 and line.startswith("runs/run/tokenizer.json: not a tokenizer.json, or corrupted: ")


def test_a_run_with_mismatched_files(trained_dir, capsys):
    weights, resolved = trained_dir / "runs/run/model.safetensors", trained_dir / "runs/run/resolved.toml"
    tensors, notes = read_tensors(weights)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    write_tensors(weights, tensors, {**notes, "weft": "0"})
    assert expect_error(capsys, "generate", "runs/run", "To") == (
        4,
        "runs/run/model.safetensors: format version '0' is not supported (expected 1)",
    )
    write_tensors(weights, tensors, notes)
    resolved.write_text(resolved.read_text().replace("seed = 0", "seed = 1"))
    assert expect_error(capsys, "generate", "runs/run", "To") == (
        4,
        "runs/run/resolved.toml: has changed since the weights were written",
    )


# ---- what is asked of a run

ASKED = {
    "--top-p 2": "--top-p: must be in (0, 1], got 2",
    "--max-new-tokens 0": "--max-new-tokens: must be at least 1, got 0",
    "--length-penalty 1": "--length-penalty: requires --beam-size",
    "--patience 2": "--patience: requires --beam-size",
    "--beam-size 3 --patience 0.5": "--patience: must be 0 or from 1 to 1000, got 0.5",
    "--beam-size 2 --top-k 3": "--top-k: cannot be combined with --beam-size, which does not sample",
    "--greedy --temperature 2": "--greedy: cannot be combined with --temperature 2",
    "--greedy --temperature 0.5,1": "--greedy: cannot be combined with --temperature 0.5,1",
    "--temperature 0.5,hot": "--temperature: expected a number, or numbers separated by commas, got '0.5,hot'",
    "--temperature 0.5,": "--temperature: expected a number, or numbers separated by commas, got '0.5,'",
    "--temperature 0.5,-1": "--temperature: must be at least 0, got -1",
    "--temperature 0.5,1 --beam-size 2": "--temperature: cannot be combined with --beam-size, which does not sample",
    "--input text.txt": "--input: cannot be combined with a prompt argument",
}


@pytest.mark.parametrize("words", ASKED)
def test_invalid_generation_options(trained_dir, capsys, words):
    assert expect_error(capsys, "generate", "runs/run", "To", *words.split()) == (2, ASKED[words])


def test_bad_options_are_refused_before_the_run_is_read(capsys):
    assert expect_error(capsys, "generate", "nowhere", "--top-p", "2") == (2, ASKED["--top-p 2"])


def test_prompt_and_length_beyond_the_position_limit(trained_dir, capsys):
    assert expect_error(capsys, "generate", "runs/run", "To be", "--max-new-tokens", "12") == (
        2,
        "--max-new-tokens: 7 prompt tokens and 12 new tokens exceed the model's 16 positions; use at most 10",
    )


def test_length_beyond_the_position_limit_without_prompt(trained_dir, capsys, monkeypatch):
    for words in ([], ["-"]):
        set_stdin(monkeypatch, b"")
        assert expect_error(capsys, "generate", "runs/run", *words, "--max-new-tokens", "20") == (
            2,
            "--max-new-tokens: 2 prompt tokens and 20 new tokens exceed the model's 16 positions; use at most 15",
        )


def test_a_prompt_from_a_file_beyond_the_position_limit(trained_dir, capsys):
    (trained_dir / "prompts.txt").write_text(f"To\n{'be ' * 14}\nor\n")
    assert main(["generate", "runs/run", "--input", "prompts.txt", "--max-new-tokens", "2", "--greedy"]) == 3
    out, error = capsys.readouterr()
    assert error == (
        "weft: warning: prompts.txt: line 2: 44 prompt tokens and 2 new tokens exceed the model's 16 positions; "
        "shorten the prompt to at most 16 tokens; skipped\n"
    )
    assert out.startswith("--- prompt 1, 1 of 1 ---\nTo") and out.split("\n")[-3] == "--- prompt 3, 1 of 1 ---"
    assert main(["generate", "runs/run", "--input", "prompts.txt", "--max-new-tokens", "20", "--greedy"]) == 3
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 3


def test_a_line_longer_than_the_position_limit(trained_dir, capsys):
    (trained_dir / "lines.txt").write_text(f"To be\n{'be ' * 14}\nor\n")
    assert main(["score", "runs/run", "--input", "lines.txt", "--quiet"]) == 3
    out, error = capsys.readouterr()
    assert error == "weft: warning: line 2: 42 tokens exceed the model's limit of 15; shorten it; skipped\n"
    assert [line.partition("\t")[2].partition("\t")[2] for line in out.split("\n")] == ["To be", "", "or", ""]


def test_evaluating_missing_data(trained_dir, capsys):
    assert expect_error(capsys, "evaluate", "runs/run") == (
        2,
        "runs/run: the run has no test or validation data; set --data",
    )
    assert expect_error(capsys, "evaluate", "runs/run", "--data", "text.txt", "--context", "stride:99") == (
        2,
        "--context: stride must be from 1 to context_length (16), got '99'",
    )
    assert expect_error(capsys, "evaluate", "runs/run", "--data", "text.txt", "--context", "reset") == (
        2,
        "--context: 'reset' is not possible for data that is read as running text",
    )
    assert expect_error(capsys, "evaluate", "runs/run", "--data", "text.txt", "--context", "all") == (
        2,
        "--context: expected full, reset, carry, stride or stride:N, got 'all'",
    )
