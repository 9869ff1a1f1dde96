"""`weft prepare`: any number of processes writes the same data, training on it equals training on the text, and data that does
not belong to a run file is refused."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from command_line import expect_error
from small_runs import SilentCallback, flip_bit, run_file, run_hashes

from weft import files
from weft.cli.main import main
from weft.data.prepared_index import read_index
from weft.data.shards import ALL
from weft.errors import DataError, TrainingInterrupted, WeftError
from weft.runs.job import train
from weft.runs.load import load
from weft.runs.resolve import resolve
from weft.tasks.prepare_shards import Preparation

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "it", "ran", "far", "away", "from", "here", "to", "there"]
COMMAND = [sys.executable, "-P", "-m", "weft", "prepare", "run.toml", "--output-dir", "data", "--quiet"]


def write_text(path: Path, lines: int = 400, seed: int = 0) -> Path:
    rng = random.Random(seed)
    path.write_text("".join(" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) + "\n" for _ in range(lines)))
    return path


def lm(**options: Any) -> dict[str, Any]:
    values = run_file(Path("text.txt"), "conv", tokenizer={"type": "bpe", "vocab_size": 300}, **options)
    return {**values, "train": {**values["train"], "max_steps": 6, "num_validations": 2}}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current directory, with a text and a run file."""
    monkeypatch.chdir(tmp_path)
    write_text(Path("text.txt"))
    write_run()
    return tmp_path


def write_run(values: dict[str, Any] | None = None) -> None:
    Path("run.toml").write_text(tomli_w.dumps(lm() if values is None else values))


def prepare(*words: str, output: str = "data", size: str = "0.001") -> int:
    return main(["prepare", "run.toml", "--output-dir", output, "--quiet", "--shard-size", size, *words])


def arrays(directory: Path) -> dict[str, bytes]:
    """The arrays and the index of prepared data: all that does not depend on the moment of writing."""
    paths = [path for path in sorted(directory.rglob("*")) if path.suffix in (".tokens", ".starts", ".counts")]
    return {str(path.relative_to(directory)): path.read_bytes() for path in [*paths, directory / "index.json"]}


def with_data(values: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {**values, "data": {**values["data"], **options}}


def train_run(values: dict[str, Any], out: str, callback: SilentCallback | None = None) -> Path:
    return train(values, Path(out), base=Path(), callback=callback or SilentCallback()).path


# ---- the same data


def test_processes_and_parts_write_the_same_data(folder, capsys):
    assert prepare("--processes", "1") == 0
    index = read_index(Path("data"))
    assert len(index["corpora"]["train"]["shards"]) > 5 and index["corpora"]["valid"]["tokens"] > 0
    assert prepare("--processes", "2", output="two") == 0
    assert arrays(Path("two")) == arrays(Path("data"))
    assert prepare("--shard", "2/2", "--processes", "2", "--json", output="parts") == 0
    unfinished = json.loads(capsys.readouterr().out)
    assert not unfinished["complete"] and unfinished["missing_shards"]["train"] > 0
    assert "not complete" in refusal(with_data(lm(), prepared="parts"))
    assert prepare("--shard", "1/2", "--processes", "1", "--json", output="parts") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["complete"] and result["corpora"]["train"]["tokens"] == index["corpora"]["train"]["tokens"]
    assert arrays(Path("parts")) == arrays(Path("data"))
    before = {path: path.stat().st_mtime_ns for path in Path("data").rglob("*.tokens")}
    assert prepare("--processes", "1") == 0  # nothing to do
    assert before == {path: path.stat().st_mtime_ns for path in Path("data").rglob("*.tokens")}


def test_a_preparation_that_is_killed_resumes(folder):
    assert prepare("--processes", "1", output="whole", size="0.0005") == 0
    rng, environment = random.Random(1), {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*COMMAND, "--shard-size", "0.0005", "--processes", "2"]
    for _ in range(3):
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        time.sleep(rng.uniform(0.5, 2.5))
        process.kill()  # its workers stop as well
        process.wait()
    kept = {path: path.stat().st_mtime_ns for path in Path("data").rglob("*.json") if path.stem.isdigit()}
    time.sleep(0.5)
    assert subprocess.run(command, env=environment).returncode == 0
    assert arrays(Path("data")) == arrays(Path("whole"))
    assert kept == {path: path.stat().st_mtime_ns for path in kept}
    assert [path for path in Path("data").rglob(".*") if path.name != ".lock"] == []


def test_a_failing_worker_ends_the_command(folder, capsys):
    prepare("--shard", "1/9", "--processes", "1")
    state = Path("text.txt").stat()
    Path("text.txt").write_bytes(b"\xff" + Path("text.txt").read_bytes()[1:])
    os.utime("text.txt", ns=(state.st_atime_ns, state.st_mtime_ns))  # as if it had not changed
    code, message = expect_error(capsys, "prepare", "run.toml", "-o", "data", "--quiet", "--processes", "2")
    assert code == DataError.exit_code
    assert message.startswith(f"{folder}/text.txt:1: ") and "utf-8" in message.lower()
    os.utime("text.txt")
    code, message = expect_error(capsys, "prepare", "run.toml", "-o", "data", "--quiet", "--processes", "2")
    assert "(text.txt has changed)" in message


# ---- training


TABLE = [("good film", "good"), ("bad film", "bad"), ("a good one", "good"), ("a bad one", "bad")] * 12


def classification() -> dict[str, Any]:
    rows = "".join(f"{label}\t{text} {number}\n" for number, (text, label) in enumerate(TABLE))
    Path("labels.tsv").write_text("label\ttext\n" + rows)
    data = {"train": "labels.tsv", "valid": 0.25}
    model = {"arch": "lstm", "hidden_size": 8, "embedding_dim": 8}
    return {**_task("classification", data, model), "tokenizer": {"type": "word", "vocab_size": 100}}


def tagging() -> dict[str, Any]:
    rows = "".join("the\tD\ncat\tN\nsat\tV\n\na\tD\ndog\tN\n\n" for _ in range(40))
    Path("tags.tsv").write_text(rows)
    return _task("tagging", {"train": "tags.tsv", "valid": 0.25}, {"arch": "lstm", "hidden_size": 8, "embedding_dim": 8})


def seq2seq() -> dict[str, Any]:
    rng = random.Random(0)
    pairs = [" ".join(rng.choices(WORDS, k=rng.randint(1, 6))) for _ in range(60)]
    Path("pairs.tsv").write_text("".join(f"{text}\t{text[::-1]}\n" for text in pairs))
    model = {"arch": "luong", "hidden_size": 8, "embedding_dim": 8}
    return _task("seq2seq", {"train": "pairs.tsv", "valid": 0.2}, model)


def masked_lm() -> dict[str, Any]:
    model = {"arch": "transformer", "hidden_size": 8, "num_layers": 1, "num_heads": 2}
    return _task("masked-lm", {"train": "text.txt", "valid": 0.1, "read_as": "lines", "context_length": 32}, model)


def _task(task: str, data: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    budget = {"max_steps": 4, "batch_tokens": 64, "num_validations": 2, "device": "cpu"}
    return {"task": task, "recommend": False, "seed": 3, "data": data, "model": model, "train": budget}


RUNS = {
    "windows": lm,
    "stream": lambda: with_data(lm(), read_as="stream"),
    "lines": lambda: with_data(lm(), read_as="lines"),
    "masked-lm": masked_lm,
    "seq2seq": seq2seq,
    "classification": classification,
    "tagging": tagging,
}


@pytest.mark.parametrize("name", RUNS)
def test_training_on_prepared_data_equals_training_on_the_text(name, folder):
    values = RUNS[name]()
    write_run(values)
    assert prepare("--processes", "1", size="0.0001") == 0
    assert max(len(entry["shards"]) for entry in read_index(Path("data"))["corpora"].values()) > 2
    plain, prepared = train_run(values, "plain"), train_run(with_data(values, prepared="data"), "prepared")
    ours, theirs = run_hashes(prepared), run_hashes(plain)
    assert ours.keys() == theirs.keys()
    assert (prepared / "metrics.jsonl").read_text() == (plain / "metrics.jsonl").read_text()
    assert not list((prepared / "data").glob("*.tokens"))
    scores = [load(run).evaluate(data=None).scores for run in (plain, prepared)] if name == "windows" else [0, 0]
    assert scores[0] == scores[1]


def test_the_tokenizer_and_recommended_options_come_from_the_prepared_data(folder):
    values = {name: value for name, value in lm().items() if name != "tokenizer"} | {
        "recommend": True,
        "model": {"arch": "gpt"},
    }
    write_run(values)
    assert prepare("--processes", "1") == 0
    Path("text.txt").rename("elsewhere.txt")  # the text is not read again
    values = with_data(values, prepared="data")
    out = train_run({**values, "train": {"max_steps": 1, "device": "cpu"}}, "run")
    assert (out / "tokenizer.json").read_bytes() == Path("data/tokenizer.json").read_bytes()
    assert files.read_json(out / "data" / "train.files.json")["provenance"]["files"][0]["file"] == "text.txt"


def test_a_run_resumes_with_the_same_prepared_data_only(folder):
    prepare("--processes", "1")
    values = with_data(lm(), prepared="data")
    whole = run_hashes(train_run(values, "whole"))
    with pytest.raises(TrainingInterrupted):
        train_run(values, "run", SilentCallback(stop_at=3))
    write_text(Path("text.txt"), seed=1)
    shutil.rmtree("data")
    prepare("--processes", "1")
    assert "not the text that the run was started with" in refusal(values, "run")
    write_text(Path("text.txt"))
    shutil.rmtree("data")
    prepare("--processes", "1", size="0.003")
    assert run_hashes(train_run(values, "run")) == whole


# ---- what is refused


def refusal(values: dict[str, Any], out: str = "refused") -> str:
    with pytest.raises(WeftError) as caught:
        train_run(values, out)
    if out == "refused":
        shutil.rmtree(out, ignore_errors=True)
    return str(caught.value)


def test_data_of_another_run_file_is_refused(folder):
    prepare("--processes", "1")
    values = with_data(lm(), prepared="data")
    data = Path("data").absolute()
    again = "prepare the data again into another directory"
    tokenizer = {"type": "bpe", "vocab_size": 310}
    assert refusal({**values, "tokenizer": tokenizer}) == (
        f"tokenizer.vocab_size: {data} was prepared with 300, not 310; {again}"
    )
    text = Path("text.txt").absolute()
    expected = f"{text}: not the data that {data} was prepared from (high was 0.9, now 0.8); restore it, or {again}"
    assert refusal(with_data(values, valid=0.2)) == expected
    assert "(lines was False, now True)" in refusal(with_data(values, read_as="lines"))
    assert "has no corpus test" in refusal(with_data(values, test="text.txt"))
    masked = {**masked_lm(), "tokenizer": lm()["tokenizer"], "data": {**values["data"]}}
    assert refusal(masked) == f"task: {data} was prepared for task lm, not masked-lm; {again}"
    assert refusal(with_data(values, prepared="missing")).endswith("directory not found; run weft prepare first")


def test_models_that_do_not_read_tokens_are_refused(folder, capsys):
    vectors = _task("word-vectors", {"train": "text.txt"}, {"arch": "skip-gram", "vector_size": 4})
    write_run({**vectors, "train": {"max_epochs": 1}})
    message = "task word-vectors with model.arch 'skip-gram' does not read tokens that are prepared ahead of training"
    assert expect_error(capsys, "prepare", "run.toml", "-o", "data", "--quiet") == (
        2,
        f"data.prepared: {message}; train without it",
    )


def test_a_changed_text_is_refused_even_if_its_size_is_the_same(folder):
    prepare("--processes", "1")
    values, text = with_data(lm(), prepared="data"), Path("text.txt")
    content = text.read_text()
    text.write_text(content.replace("cat", "dog", 1))
    assert "(text.txt has changed)" in refusal(values)
    text.write_text(content)  # another time, the same text
    train_run(values, "run")
    assert "(text.txt has changed)" in refusal_of_prepare(text, content)


def refusal_of_prepare(text: Path, content: str) -> str:
    text.write_text(content.replace("cat", "dog", 1))
    process = subprocess.run([*COMMAND, "--processes", "1"], capture_output=True, text=True)
    assert process.returncode == DataError.exit_code
    return process.stderr


def test_a_text_that_changes_while_it_is_read_is_refused(folder):
    preparation = Preparation(resolve(lm(), base=folder), Path("data"), 1000)
    plan = preparation.plan(SilentCallback())
    preparation.write(plan, ALL, SilentCallback())
    content = Path("text.txt").read_text()
    Path("text.txt").write_text(content + "more\n")
    with pytest.raises(DataError, match=r"text.txt: changed while it was read"):
        preparation.join(plan)
    Path("text.txt").write_text(content)
    assert preparation.join(plan) == {}


def test_data_for_models_with_another_vocabulary_is_refused(folder):
    values = tagging()
    values["model"]["char_encoder"] = False
    write_run(values)
    prepare("--processes", "1")
    values["model"]["char_encoder"] = {}
    assert "was prepared for models with another vocabulary" in refusal(with_data(values, prepared="data"))


def test_damage_is_found_and_repaired(folder, capsys):
    prepare("--processes", "1")
    expected, values = arrays(Path("data")), with_data(lm(), prepared="data")
    index = Path("data/index.json")
    content = index.read_text()
    index.write_text(content.replace('"words": ', '"words": 1', 1))
    assert refusal(values).endswith("index.json: corrupted: checksum mismatch; run weft prepare again")
    index.write_text(content[: len(content) // 2])
    assert "index.json: corrupted: invalid JSON" in refusal(values)
    prepare("--processes", "1")
    assert arrays(Path("data")) == expected
    Path("data/train/00001.tokens").unlink()
    assert "00001.tokens: file not found; run weft prepare" in refusal(values)
    prepare("--processes", "1")
    flip_bit(Path("data/train/00003.tokens"))
    capsys.readouterr()
    assert prepare("--processes", "2", "--verify", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["rewritten"] == ["data/train/00003.tokens"]
    assert "00003.tokens: checksum mismatch; it is written again" in captured.err
    assert arrays(Path("data")) == expected
    Path("data/tokenizer.json").write_text(Path("data/tokenizer.json").read_text() + " ")
    assert "corrupted: its tokenizer is not the one that its tokens are from" in refusal(values)
    code, message = expect_error(capsys, "prepare", "run.toml", "-o", "data", "--quiet")
    assert code == DataError.exit_code
    assert message == "data: the vocabulary has changed since the preparation began; use --overwrite"


def test_a_copy_with_a_damaged_shard_stops_training(folder):
    prepare("--processes", "1")
    shutil.copytree("data", "copy")
    flip_bit(Path("copy/train/00002.tokens"))
    values = with_data({**lm(), "train": {**lm()["train"], "max_steps": 100_000}}, prepared="copy")
    assert "copy/train/00002.tokens: checksum mismatch" in refusal(values)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--shard", "3/2"), "--shard: expected I/N with 1 <= I <= N, got '3/2'"),
        (("--shard-size", "0"), "--shard-size: must be greater than 0 and less than 1,000,000, got 0"),
        (("--output-dir", "other"), "other: exists and has no prepared data; choose another --output-dir"),
    ],
)
def test_wrong_options_are_refused(folder, capsys, words, message):
    Path("other").mkdir()
    Path("other/file").write_text("keep me")
    code, actual = expect_error(capsys, "prepare", "run.toml", "--output-dir", "data", "--quiet", "--processes", "1", *words)
    assert (code, actual) == (2, message)
    assert Path("other/file").read_text() == "keep me"


def test_the_output_directory_is_that_of_the_run_file(folder, capsys):
    assert expect_error(capsys, "prepare", "run.toml", "--quiet") == (
        2,
        "--output-dir: required, because the run file has no data.prepared; name a directory",
    )
    write_run(with_data(lm(), prepared="tokens"))
    assert main(["prepare", "run.toml", "--processes", "1"]) == 0
    assert 'Set data.prepared = "tokens"' in capsys.readouterr().err
    train_run(with_data(lm(), prepared="tokens"), "run")
    prepare("--processes", "1", output="tokens", size="256")
    assert expect_error(capsys, "prepare", "run.toml", "--quiet", "--shard-size", "2")[0] == 2
    assert main(["prepare", "run.toml", "--quiet", "--processes", "1", "--shard-size", "0.004", "--overwrite"]) == 0
    assert read_index(Path("tokens"))["shard_size"] == 4000


def test_workers_end_with_the_command(folder):
    write_text(Path("text.txt"), lines=60_000)
    process = subprocess.Popen([*COMMAND, "--processes", "2"], start_new_session=True)
    deadline = time.monotonic() + 60
    while not list(Path("data").glob("train/.*tmp*")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    while _group(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _group(process.pid) == []


def _group(pid: int) -> list[str]:
    """Processes that work on the current directory, other than this one."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            is_here = entry.name.isdigit() and os.readlink(entry / "cwd") == str(Path.cwd()) and int(entry.name) != os.getpid()
        except OSError:
            continue
        found += [entry.name] if is_here else []
    return found


def test_a_worker_whose_command_is_gone_before_it_gave_a_job_ends():
    from weft.cli.prepare_workers import COMMAND

    for sent in (b"", b'{"run": '):
        assert subprocess.run(COMMAND, input=sent, timeout=60, capture_output=True).returncode == 1
