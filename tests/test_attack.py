"""Hostile input: every case ends with one error line and an exit code, without a traceback, a hang or leftover files."""

from __future__ import annotations

import ast
import copy
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import TEXT, expect_error, set_stdin, train_error

from weft import files
from weft.cli.main import main
from weft.cli.output import print_error
from weft.decode.logits_processors import temperature
from weft.errors import ModelError, UsageError
from weft.models.lm import PROMPT_CHUNK
from weft.runs.run_dir import make_directory
from weft.tensors import read_listed, write_tensors
from weft.text.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer

RUN = """
task = "lm"
[data]
train = "text.txt"
context_length = 16
read_as = "windows"
[model]
arch = "gpt"
num_layers = 1
hidden_size = 8
[train]
max_steps = 2
batch_tokens = 64
"""
SOURCE = Path(__file__).parents[1] / "src"


pytestmark = pytest.mark.usefixtures("restore_openmp_env")


def weft(*words, **options):
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "weft", *words], env=environment, stderr=subprocess.PIPE, **options)


# ---- names and kinds of files

LONG = "a" * 300


def test_file_names_that_are_too_long(work_dir, capsys):
    assert train_error(capsys, f"data.train={LONG}") == (3, f"{work_dir / LONG}: cannot read the file: File name too long")
    assert not (work_dir / "runs").exists()
    assert expect_error(capsys, "evaluate", LONG) == (4, f"{LONG}: run directory not found")
    assert expect_error(capsys, "train", "run.toml", "--output-dir", LONG) == (
        5,
        f"{LONG}: cannot create directory: File name too long",
    )
    assert expect_error(capsys, "train", "run.toml", "--tokenizer-from", LONG) == (4, f"{LONG}: run directory not found")


def test_file_names_that_are_not_utf_8(trained_dir, capsys):
    odd = os.fsdecode(b"\xff")
    assert train_error(capsys, f"data.train={odd}") == (
        2,
        f"{trained_dir}/\\udcff: a run file cannot contain a file name that is not UTF-8; rename the file",
    )
    assert expect_error(capsys, "train", "run.toml", "--output-dir", odd) == (
        2,
        "\\udcff: the directory name is not valid UTF-8, so tensor files in it cannot be read; choose another --output-dir",
    )
    (trained_dir / "runs" / "run").rename(trained_dir / odd)
    assert expect_error(capsys, "evaluate", odd) == (
        2,
        "\\udcff: the directory name is not valid UTF-8, so tensor files in it cannot be read; rename it",
    )


def test_a_pipe_is_not_waited_for(trained_dir, capsys):
    os.mkfifo("pipe")
    message = "pipe: not a regular file; text is read more than once, so save it to a file first"
    assert expect_error(capsys, "evaluate", "runs/run", "--data", "pipe") == (3, message)
    for name in ("tokenizer.json", "model.safetensors", "environment.json"):
        path = trained_dir / "runs" / "run" / name
        original = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        assert expect_error(capsys, "info", "runs/run") == (4, f"runs/run/{name}: not a regular file")
        path.unlink()
        path.write_bytes(original)
    (trained_dir / "runs" / "run" / "resolved.toml").unlink()
    os.mkfifo("runs/run/resolved.toml")
    assert expect_error(capsys, "info", "runs/run") == (4, "runs/run: not a run directory (resolved.toml is missing)")
    assert main(["train", "run.toml", "--quiet"]) == 2


def test_an_endless_run_file(capsys):
    assert expect_error(capsys, "train", "/dev/zero") == (2, "/dev/zero: larger than 1 MB, so not a run file")


def test_a_directory_that_is_not_a_run_gets_no_lock_file(work_dir, capsys):
    assert main(["train", "run.toml", "--output-dir", ".", "--quiet"]) == 2
    assert sorted(path.name for path in work_dir.iterdir()) == ["run.toml", "text.txt"]


# ---- the run file


@pytest.mark.parametrize("text", ["9" * 5000, "[" * 20000, "{a=" * 2000], ids=["digits", "lists", "tables"])
def test_an_override_that_python_cannot_parse_is_a_string(work_dir, capsys, text):
    assert train_error(capsys, f"train.max_steps={text}") == (2, f"train.max_steps: expected an integer, got '{text[:79]}...")
    (work_dir / "run.toml").write_text(f"{RUN}lr = {text}\n")
    code, line = train_error(capsys)
    assert code == 2 and line.startswith("run.toml: invalid TOML: ")


def test_an_override_is_one_value(work_dir, capsys):
    assert train_error(capsys, "model.hidden_size=16\nx=1") == (2, "model.hidden_size: expected an integer, got '16\\nx=1'")


def test_impossible_vocabulary_sizes(work_dir, capsys):
    assert train_error(capsys, "tokenizer.type=bpe", "tokenizer.vocab_size=1000000000") == (
        2,
        "tokenizer.vocab_size: must be at most 1048576 for type 'bpe', got 1000000000",
    )
    assert train_error(capsys, "tokenizer.type=word", f"tokenizer.vocab_size={2**70}") == (
        2,
        f"tokenizer.vocab_size: must be at most 2147483647 for type 'word', got {2**70}",
    )


def test_a_lone_surrogate_in_utf_16(work_dir, capsys):
    (work_dir / "text.txt").write_bytes(b"abc\n+2AA-\n")
    assert train_error(capsys, "data.encoding=utf-7") == (
        3,
        f"{work_dir}/text.txt: after line 1: lone surrogate U+D800 at character 4; use whole characters",
    )


# ---- memory


def test_a_line_too_long_for_training_is_refused_before_memory_is_allocated(work_dir, capsys):
    (work_dir / "text.txt").write_text("x" * 1_000_000)
    code, line = train_error(capsys, "data.read_as=lines", "train.batch_tokens=1024")
    assert code == 5
    assert line.startswith("train.batch_tokens: a batch of 1 rows of 1000001 tokens needs about ")
    assert line.endswith(" are free; reduce data.context_length or truncate the longest lines")
    assert not (work_dir / "runs").exists()


@pytest.mark.slow
def test_long_lines_and_prompts_take_little_memory(trained_dir, capsys, monkeypatch):
    set_stdin(monkeypatch, b"x" * 30_000 + b"\n" + b"To be\n")
    assert main(["score", "runs/run", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["tokens"], second["tokens"]) == (30_000, 5)
    set_stdin(monkeypatch, b"x" * 30_000 + b"\n")
    assert main(["generate", "runs/run", "--max-new-tokens", "3", "--no-echo"]) == 0
    assert len(capsys.readouterr().out) == 4


def test_a_prompt_read_in_chunks_equals_the_whole_prompt(trained_dir):
    import weft as package

    model = package.load("runs/run").model
    lengths = [PROMPT_CHUNK + 40, 3, 2 * PROMPT_CHUNK]
    prompt = torch.randint(3, 10, (3, max(lengths)), generator=torch.Generator().manual_seed(0))
    keep = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    with torch.no_grad():
        together, state = model.start(prompt, keep)
        after, _ = model.step(torch.tensor([4, 4, 4]), state)
        for row, length in enumerate(lengths):
            y, _ = model(prompt[row : row + 1, :length])
            torch.testing.assert_close(together[row], model.head(y[0, -1]))
            y, _ = model(torch.cat([prompt[row, :length], torch.tensor([4])])[None])
            torch.testing.assert_close(after[row], model.head(y[0, -1]))


NO_ROOM = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8796109799432 bytes")


@pytest.mark.parametrize("error", [MemoryError(), NO_ROOM, OSError(5, "Input/output error")])
def test_operating_system_errors_are_one_line(monkeypatch, capsys, error):
    def fails():
        raise error

    monkeypatch.setattr("weft.cli.commands.info.machine_info", fails)
    monkeypatch.setattr("weft.cli.main._discard_output", lambda: None)
    message = "memory: not enough memory; use less text, a smaller batch or a smaller model"
    assert expect_error(capsys, "info") == (5, "input or output: Input/output error" if isinstance(error, OSError) else message)


# ---- what is asked of a run

ASKED = {
    "--max-new-tokens 10000000000": "--max-new-tokens: must be at most 1000000000, got 10000000000",
    "--num-samples 1000000000": "--num-samples: must be at most 100000, got 1000000000",
    "--beam-size 1000000": "--beam-size: must be at most 10000, got 1000000",
    "--beam-size 2 --length-penalty 1e308": "--length-penalty: must be at most 10, got 1e+308",
}


@pytest.mark.parametrize("words", ASKED)
def test_options_that_would_run_forever(capsys, words):
    assert expect_error(capsys, "generate", "nowhere", *words.split()) == (2, ASKED[words])


def test_impossible_numbers_of_threads(capsys):
    message = "--threads: must be less than or equal to 1024; see weft info --help"
    assert expect_error(capsys, "info", "--threads", "1000000") == (2, message)


def test_a_stride_of_thousands_of_digits(trained_dir, capsys):
    message = f"--context: stride must be from 1 to context_length (16), got '{'9' * 5000}'"
    assert expect_error(capsys, "evaluate", "runs/run", "--data", "text.txt", "--context", f"stride:{'9' * 5000}") == (
        2,
        message,
    )


def test_an_infinite_temperature_samples_uniformly():
    hot = temperature(1e308)(torch.tensor([[0.0, -5.0, -torch.inf]]), torch.zeros(1, 0))
    assert hot.softmax(1).tolist() == [[0.5, 0.5, 0.0]]


def test_endless_input(trained_dir, capsys, monkeypatch):
    for name, output in {
        "/dev/zero": "standard input:1: NUL character; is this binary data?",
        "x": "standard input:1: line has more than 1,000 characters; is this text?",
    }.items():
        monkeypatch.setattr("weft.cli.input_lines.MAX_LINE_CHARS", 1000)
        with open(name, "rb") if name != "x" else io.BytesIO(b"x" * 200_000) as source:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(source)))
            assert expect_error(capsys, "score", "runs/run") == (3, output)
    monkeypatch.setattr("weft.cli.commands.generate.MAX_PROMPTS", 1000)
    set_stdin(monkeypatch, b"y\n" * 2000)
    assert expect_error(capsys, "generate", "runs/run") == (2, "standard input: more than 1,000 prompts; split it")


def test_utf_16_without_a_byte_order_mark(work_dir, capsys, monkeypatch):
    (work_dir / "text.txt").write_text(TEXT, encoding="utf-16")
    assert main(["train", "run.toml", "--quiet", "--set", "data.encoding=utf-16"]) == 0
    set_stdin(monkeypatch, "To be\n".encode("utf-16-be"))
    assert expect_error(capsys, "score", "runs/run") == (
        3,
        "standard input: invalid utf-16: UTF-16 stream does not start with BOM; convert it first",
    )


# ---- standard files and signals


@pytest.mark.slow
def test_closed_standard_files(trained_dir):
    command = f"exec {sys.executable} -m weft evaluate runs/run --data text.txt"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    closed = subprocess.run(["bash", "-c", f"{command} <&- 2>&-"], env=environment, capture_output=True, check=False)
    assert closed.returncode == 0 and closed.stdout.startswith(b"data: text.txt (860 tokens)\n\n  ")
    for end in (">&-", "> /dev/full"):
        lost = subprocess.run(["bash", "-c", f"{command} {end}"], env=environment, capture_output=True, check=False)
        assert (
            lost.returncode == 5 and lost.stderr.startswith(b"weft: error: input or output: ") and lost.stderr.count(b"\n") == 1
        )


def test_output_that_cannot_be_encoded_does_not_stop_the_command():
    class Full(io.StringIO):
        def write(self, text):
            tried.append(text)
            raise OSError(errno.ENOSPC, "No space left on device")

    tried = []
    print_error("x", Full())  # raises nothing
    assert tried


def test_sigterm_leaves_no_temporary_files(trained_dir, monkeypatch):
    (trained_dir / "big.txt").write_text(TEXT * 30_000)
    path = trained_dir / "temporary"
    path.mkdir()
    monkeypatch.setenv("TMPDIR", str(path))
    process = weft("evaluate", "runs/run", "--data", "big.txt", stdout=subprocess.PIPE)
    ends = time.monotonic() + 60
    while not list(path.glob("*/.data.tokens*")) and time.monotonic() < ends:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (143, b"", b"")
    assert not list(path.glob("tmp*"))


# ---- files of a run


def test_damaged_metadata_of_a_run(trained_dir, capsys):
    run = trained_dir / "runs" / "run"
    metrics, resolved = run / "metrics.jsonl", run / "resolved.toml"
    lost = {
        line: "checksum mismatch; the file is corrupted; run weft train again to restore it"
        for line in ("[1, 2]", "null", '{"a": 1}', '{"step": 1, "crc32": "00000000"}')
    }
    lost['{"a": 1, "crc32": "fba18e97"}'] = "not a log record of weft; the file is corrupted"  # the sum is right
    shutil.rmtree(run / "checkpoints")  # which knows how long the log is
    for line, what in lost.items():
        original = metrics.read_text()
        metrics.write_text(f"{line}\n")
        message = f"runs/run/metrics.jsonl:1: {what}"
        assert expect_error(capsys, "info", "runs/run") == (4, message)
        metrics.write_text(original)
    (run / "environment.json").write_text("[]")
    message = "runs/run/environment.json: checksum mismatch; the file is corrupted; remove it and resume"
    assert expect_error(capsys, "info", "runs/run") == (4, message)
    original = resolved.read_text()
    resolved.write_text(original.replace("context_length", "contxet_length"))
    code, line = expect_error(capsys, "generate", "runs/run", "To")
    assert (code, line.partition(" known:")[0]) == (
        4,
        "runs/run/resolved.toml: corrupted, or from another version: data.contxet_length: unknown option; did you mean 'context_length'?",
    )
    resolved.write_text("[")
    for words in (["info", "runs/run"], ["train", "run.toml", "--quiet"]):
        code, line = expect_error(capsys, *words)
        assert code == 4 and line.startswith("runs/run/resolved.toml: invalid TOML: ")


def test_sizes_in_a_tampered_file_are_not_trusted(trained_dir, capsys):
    resolved = trained_dir / "runs" / "run" / "resolved.toml"
    resolved.write_text(
        resolved.read_text().replace("hidden_size = 8", "hidden_size = 65536").replace("layers = 1", "layers = 512")
    )
    message = "runs/run/resolved.toml: has changed since the weights were written"
    assert expect_error(capsys, "generate", "runs/run", "To") == (4, message)


def test_missing_weights_are_reported(trained_dir, capsys):
    (trained_dir / "runs" / "run" / "model.safetensors").unlink()
    message = "runs/run/model.safetensors: the best weights are missing; use --overwrite to train again"
    assert expect_error(capsys, "train", "run.toml", "--quiet") == (4, message)
    assert main(["train", "run.toml", "--quiet", "--overwrite"]) == 0


def test_a_checkpoint_that_does_not_fit_on_the_disk_leaves_no_files(tmp_path):
    with pytest.raises(ZeroDivisionError), files.atomic_directory(tmp_path / "000001") as place:
        (place / "half").write_text("x")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_directory_name_that_is_not_utf_8_is_refused(tmp_path):
    with pytest.raises(UsageError):
        make_directory(tmp_path / os.fsdecode(b"\xff"))


# ---- tokenizers from elsewhere


def changed(change, kind="char"):
    """A tokenizer file of ours with a change."""
    own = train_tokenizer(TokenizerConfig(type=kind), iter([TEXT]))
    parts = copy.deepcopy(json.loads(own.data))
    change(parts)
    return json.dumps(parts).encode()


def test_duplicate_token_ids_are_refused():
    def far(parts):
        parts["model"]["vocab"]["Q"] = 10**6

    def twice(parts):
        parts["model"]["vocab"]["Q"] = 5

    for change in (far, twice):
        with pytest.raises(ModelError, match=r"^x: the IDs of its \d+ tokens are not consecutive from 0$"):
            Tokenizer(changed(change), "x")


def test_a_tokenizer_that_only_resembles_ours_is_loaded_by_the_library():
    def pair(parts):
        parts["model"]["vocab"]["be"] = len(parts["model"]["vocab"])

    def bare(parts):
        del parts["decoder"]

    def turned(parts):
        words = list(parts["model"]["vocab"])
        parts["model"]["vocab"] = {word: number for number, word in enumerate([*words[:3], *reversed(words[3:])])}

    for change, kind in ((pair, "char"), (bare, "char"), (turned, "byte")):
        odd = Tokenizer(changed(change, kind), "x")
        assert odd.type == "file" and odd.encode("be").tolist() == odd._encode_with_library(["be"])[0]
    for kind in ("char", "byte"):
        assert Tokenizer(changed(lambda parts: None, kind), "x").type == kind


def test_a_tokenizer_without_unknown_token_is_refused_when_one_is_needed():
    def nameless(parts):
        parts["model"]["unk_token"] = "zz"

    odd = Tokenizer(changed(nameless, "word"), "x")
    with pytest.raises(ModelError) as caught:
        odd.encode("zebra")
    assert str(caught.value) == "tokenizer: cannot encode a text: WordLevel error: Missing [UNK] token from the vocabulary"
    assert isinstance(odd.encode("be"), np.ndarray)


# ---- checkpoints made by somebody else, with a manifest that is right


@pytest.fixture
def stopped(trained_dir, monkeypatch):
    """A run with a checkpoint, one step before its end, and that checkpoint."""
    monkeypatch.setattr("weft.cli.progress.TrainProgress.should_stop", lambda self: True)
    assert main(["train", "run.toml", "--quiet", "--overwrite", "--set", "data.read_as=stream"]) == 130
    monkeypatch.undo()
    monkeypatch.chdir(trained_dir)
    return trained_dir / "runs" / "run" / "checkpoints" / "000001"


def forged(folder, name, change):
    path = folder / name
    if name == "train_state.json":
        values = json.loads(path.read_text())
        change(values)
        path.write_text(json.dumps(values))
    else:
        result, notes = read_listed(path)
        tensors = {key: tensor.clone() for key, tensor in result.items()}
        change(tensors, notes)
        write_tensors(path, tensors, notes)
    noted = json.loads((folder / files.MANIFEST).read_text())
    (folder / files.MANIFEST).unlink()
    files.write_manifest(folder, {name: noted[name] for name in ("owner", "vocabulary", "data")})


def resume(capsys):
    code, line = expect_error(capsys, "train", "run.toml", "--quiet", "--set", "data.read_as=stream")
    assert code == 4
    return line.removeprefix("runs/run/checkpoints/000001/")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("step", "'x'"),
        ("batch_index", "-5"),
        ("epoch", "1.5"),
        ("tokens", "None"),
        ("best", "'a'"),
        ("done", "1"),
        ("seconds", "True"),
    ],
)
def test_a_train_state_with_wrong_values(stopped, capsys, name, value):
    forged(stopped, "train_state.json", lambda values: values.update({name: ast.literal_eval(value)}))
    assert resume(capsys) == f"train_state.json: corrupted: {name} is {value}"


def test_a_train_state_beyond_the_end(stopped, capsys):
    forged(stopped, "train_state.json", lambda values: values.update(batch_index=10**6))
    assert resume(capsys) == "train_state.json: corrupted: epoch 0 has no batch 1000000"


def test_an_optimizer_state_that_does_not_match_the_weights(stopped, capsys):
    """Shapes are checked before anything is computed: a fused update would write past the end of a small tensor."""

    def small(tensors, notes):
        tensors["embedding.weight/exp_avg"] = torch.zeros(2)

    def less(tensors, notes):
        tensors["embedding.weight/exp_avg"] = torch.zeros(tensors["embedding.weight/exp_avg_sq"].shape)
        del tensors["embedding.weight/exp_avg_sq"]

    forged(stopped, "optimizer.safetensors", small)
    assert resume(capsys) == ("optimizer state: the shape of 'embedding.weight/exp_avg', [2], does not match its weight")
    forged(stopped, "optimizer.safetensors", less)
    assert resume(capsys) == "optimizer state: 'embedding.weight' has no 'exp_avg_sq'"


def test_a_carried_state_with_a_wrong_description(stopped, capsys):
    def note(shape):
        return lambda tensors, notes: notes.update(shape=shape)

    for shape in ("[[[[", "7", "[0, 0, 0, 0, 0, 0, 0, 0, 0]"):
        forged(stopped, "state.safetensors", note(shape))
        assert resume(capsys) == "state.safetensors: corrupted: its tensors do not match its metadata"


def cut(tensors, notes):
    tensors["0001"] = tensors["0001"][..., :-1].contiguous()  # keys of a smaller head


def one_row(tensors, notes):
    for name in tensors:
        tensors[name] = tensors[name][:1].clone()


def one_row_of_one(tensors, notes):
    tensors["0000"] = tensors["0000"][:1].clone()  # where the rows stand: it would be taken for all


def flat(tensors, notes):
    tensors["0003"] = tensors["0003"].reshape(-1)


def whole_numbers(tensors, notes):
    tensors["0002"] = tensors["0002"].long()


def another_model(tensors, notes):
    rows = len(tensors["0000"])
    tensors.clear()
    tensors |= {"0000": torch.zeros(rows, 8), "0001": torch.zeros(rows, 8)}
    notes.update(shape="[0, [0]]")


def nothing(tensors, notes):
    for name, part in tensors.items():
        tensors[name] = part[:, :, :0].clone() if part.dim() > 2 else part[:, :0].clone()


@pytest.mark.parametrize("change", [cut, one_row, one_row_of_one, flat, whole_numbers, another_model, nothing])
def test_a_carried_state_with_wrong_shapes(stopped, capsys, change):
    forged(stopped, "state.safetensors", change)
    assert resume(capsys) == "state.safetensors: corrupted: the state does not match the model"


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru", "conv", "gpt"])
def test_a_valid_carried_state_is_resumed(work_dir, monkeypatch, kind):
    words = ["train", "run.toml", "--quiet", "--set", "data.read_as=stream", "--set", f"model.arch={kind}"]
    monkeypatch.setattr("weft.cli.progress.TrainProgress.should_stop", lambda self: True)
    assert main(words) == 130
    monkeypatch.undo()
    monkeypatch.chdir(work_dir)
    assert main(words) == 0


def test_a_checkpoint_of_another_run(stopped, capsys):
    assert (
        main(["train", "run.toml", "--quiet", "--set", "data.read_as=stream", "--set", "seed=1", "--output-dir", "other"]) == 0
    )
    shutil.rmtree(stopped)
    shutil.copytree("other/checkpoints/000001", stopped)
    shutil.copy("other/metrics.jsonl", stopped.parents[1])
    assert resume(capsys) == "runs/run/checkpoints/000001: checkpoint of another run; remove it"
