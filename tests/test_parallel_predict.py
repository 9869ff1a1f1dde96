"""`weft evaluate` and `weft predict` with several processes print what one process prints."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from parallel_cases import CHARS, GPT, LSTM, case, shorten
from small_runs import SilentCallback, make_text

from weft.cli import group as cli_group
from weft.cli import launch
from weft.cli.main import main
from weft.cli.predict_part import Part
from weft.errors import GroupError, ResourceError, UsageError, WeftError
from weft.parallel.group import Group
from weft.runs.job import train
from weft.runs.load import load
from weft.runs.shared_evaluation import share_evaluation

PAIR = Group(0, 2, ("a", "b"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three small runs, and their data."""
    root = tmp_path_factory.mktemp("runs")
    shorten(root)
    reviews = {"train": str(root / "reviews.csv"), "max_length": 24, "truncate": True}
    pairs = {"train": str(root / "spelling.tsv"), "max_length": 60}
    judge = case("classification", reviews, {"arch": "naive-bayes"})
    del judge["train"]
    runs = {
        "spelling": case("seq2seq", pairs, {**GPT, "arch": "transformer"}, CHARS),
        "reviews": case("classification", reviews, LSTM, {"type": "word"}),
        "judge": judge,
    }
    for name, values in runs.items():
        train(values, root / name, base=root, callback=SilentCallback())
    lines = [line.split("\t")[0] for line in (root / "spelling.tsv").read_text().split("\n")[1:]]
    (root / "words.txt").write_bytes("\n".join([*lines, "", "a" * 80, "wö"]).encode() + b"\nx\xff\n")
    return root


def weft(root: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "weft", *words], cwd=root, capture_output=True, timeout=100, check=False, **options
    )


def error_of(function: Any) -> WeftError:
    with pytest.raises(WeftError) as caught:
        function()
    return caught.value


# ---- the same outputs


def without_scores(text: bytes) -> str:
    """Scores depend on the batch in their last digits."""
    return re.sub(r"-?\d+\.\d+", "#", text.decode())


class Alone:
    """Commands in this process."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[bytes]) -> None:
        self.patch, self.captured = patch, captured
        patch.chdir(root)

    def __call__(self, *words: str, text: bytes = b"") -> tuple[int, bytes, bytes]:
        self.patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        code = main(list(words))
        output, errors = self.captured.readouterr()
        return code, output, errors


@pytest.fixture
def alone(root: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Alone:
    return Alone(root, monkeypatch, capsysbinary)


def test_lines_of_standard_input_in_their_order_and_further_files(root: Path, alone: Alone) -> None:
    text, words = (root / "words.txt").read_bytes(), ("predict", "spelling", "--json", "--n-best", "2", "--save-alignments")
    together, (code, output, errors) = (
        weft(root, *words, "two", "--processes", "2", input=text),
        alone(*words, "one", text=text),
    )
    assert together.returncode == code == 3, together.stderr.decode()  # some lines cannot be used
    assert without_scores(together.stdout) == without_scores(output) and output.count(b"\n") > 100
    assert together.stderr == errors and b"skipped" in errors and b"<unk>" in errors
    names = sorted(path.name for path in (root / "one").iterdir())
    assert names and names == sorted(path.name for path in (root / "two").iterdir())


@pytest.mark.slow
def test_lines_of_a_file_in_the_order_of_the_input(root: Path, alone: Alone) -> None:
    words = ("predict", "spelling", "--input", "words.txt")
    together, (code, output, errors) = weft(root, *words, "--processes", "2"), alone(*words)
    assert (together.returncode, together.stdout, together.stderr) == (code, output, errors) and output.count(b"\n") > 100


@pytest.mark.slow
def test_a_model_without_a_network_completes_a_table(root: Path, alone: Alone) -> None:
    words = ("predict", "judge", "--input", "reviews.csv")
    together, (code, output, errors) = weft(root, *words, "--processes", "2"), alone(*words)
    assert (together.returncode, together.stdout, together.stderr) == (code, output, errors) and output.count(b"\n") == 200


def test_an_evaluation_under_torchrun_prints_once(root: Path, alone: Alone) -> None:
    """The processes as torchrun starts them."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    words = ["evaluate", "spelling", "--all", "--signature"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "weft", *words],
            cwd=root,
            env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=100) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[1] == (b"", b"") and b"BLEU" in outputs[0][0]
    assert outputs[0][0] == alone(*words)[1]


# ---- failures


def test_a_killed_process_ends_a_prediction(root: Path) -> None:
    (root / "many.txt").write_text("a word\n" * 40_000)
    words = ["predict", "spelling", "--processes", "2", "--input", "many.txt", "--beam-size", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "weft", *words], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()  # the first batch is done
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    start = time.monotonic()
    os.kill(int(sorted(children, key=int)[1]), signal.SIGKILL)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == GroupError.exit_code and time.monotonic() - start < 30
    host = socket.gethostname()
    assert errors == f"weft: error: rank 1 (host {host}) was killed by SIGKILL; the outputs so far are complete\n"


@pytest.mark.slow
def test_an_error_is_printed_once(root: Path) -> None:
    result = weft(root, "evaluate", "spelling", "--processes", "2", "--data", "missing.tsv")
    assert result.returncode == 3 and result.stderr.decode() == "weft: error: missing.tsv: file not found\n"


# ---- refusals


def test_evaluations_that_cannot_be_divided_are_refused(root: Path) -> None:
    error = error_of(lambda: share_evaluation(load(root / "judge"), PAIR))
    assert str(error) == "processes: 'naive-bayes' is evaluated by one process; leave it out"
    run = load(root / "reviews", device="cpu")
    share_evaluation(run, PAIR)
    assert run.group is PAIR


def test_tasks_that_cannot_be_divided_are_refused(tmp_path: Path) -> None:
    values = case("word-vectors", {"train": str(make_text(tmp_path / "a.txt"))}, {"arch": "ppmi", "subsample": 0, "shift": 1})
    values["data"] = {"train": values["data"]["train"]}
    del values["train"]
    train(values, tmp_path / "run", base=tmp_path, callback=SilentCallback())
    error = error_of(lambda: share_evaluation(load(tmp_path / "run"), PAIR))
    assert str(error) == "processes: runs of task 'word-vectors' are evaluated by one process; leave it out"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("predict", "RUN", "a text"), "one text cannot be divided; leave it out, or read lines with --input"),
        (("predict", "RUN", "--stream"), "a stream is read in its order; leave it out"),
        (("predict", "RUN", "--engine", "ctranslate2"), "cannot be combined with `engine`; use --threads"),
        (("evaluate", "RUN", "--engine", "ctranslate2"), "cannot be combined with `engine`; use --threads"),
        (("evaluate", "RUN", "--cache"), "a cache follows the text in its order; leave out one of them"),
    ],
)
def test_inputs_that_cannot_be_divided_are_refused(
    words: tuple[str, ...], problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from contextlib import nullcontext

    monkeypatch.setattr(cli_group, "joined", lambda device, advice: nullcontext(PAIR))
    assert main(list(words)) == UsageError.exit_code
    error = capsys.readouterr().err
    assert error == f"weft: error: --processes: {problem.replace('`engine`', '--engine')}\n"


def test_more_processes_than_a_machine_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "cpus", lambda: 2)
    monkeypatch.setattr(launch, "free_memory", lambda: 3 * launch.PROCESS_BYTES)
    launch.check_processes(3)
    error = error_of(lambda: launch.check_processes(500))
    assert str(error) == "processes: 500 are too many for 2 CPU cores; use at most 16" and isinstance(error, UsageError)
    error = error_of(lambda: launch.check_processes(4))
    assert str(error) == "processes: 4 processes need about 1.2 GB, 900.0 MB are free; use at most 3"
    assert isinstance(error, ResourceError)


def test_hosts_with_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test.txt").write_text("a\n")
    path = tmp_path / "test.txt"
    monkeypatch.setattr(Group, "gather", lambda self, value: [value, {**value, str(path): "checksum 123"}])
    cli_group.check_same_inputs(Group(), "cpu", tmp_path, [path])
    error = error_of(lambda: cli_group.check_same_inputs(PAIR, "cpu", tmp_path, [path]))
    problem = "rank 1 (host b) has checksum 123, rank 0 (host a) has checksum 87428fc52280"
    assert str(error) == f"{path}: {problem}; use the same files and the same version of weft on all hosts"


def test_a_part_is_sent_as_json() -> None:
    part = Part({1: "problem"}, {0: {"text": "\udcff", "score": -0.1}, 1: None}, {0: {"a.svg": b"\0\xff"}}, 1, {0: ["x"]})
    assert Part.from_json(json.loads(json.dumps(part.to_json()))) == part
