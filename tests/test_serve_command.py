"""`weft serve`: names of runs, keys and hosts, limits, signals, and several processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serve_runs import make_runs

import weft
from weft.cli import serve_workers
from weft.cli.commands.serve import Serve, is_loopback, named_runs
from weft.cli.main import main
from weft.cli.serve_workers import end_workers, run_workers
from weft.cli.signals import Terminated
from weft.config import described_fields
from weft.errors import UsageError
from weft.serve.errors import ServeError
from weft.serve.limits import Limits


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    return make_runs(tmp_path_factory.mktemp("runs")).get("lm")


def test_names_of_runs(tmp_path):
    (tmp_path / "a=b").mkdir()
    assert named_runs(["x=runs/one", "runs/two"]) == {"x": Path("runs/one"), "two": Path("runs/two")}
    with pytest.raises(UsageError, match="run: two runs have the name 'a'; give one another name: NAME=RUN"):
        named_runs(["x/a", "y/a"])
    with pytest.raises(UsageError, match="run: 'a=b' cannot be the name of a run; use letters"):
        named_runs([str(tmp_path / "a=b")])


def test_loopback():
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost")
    assert not is_loopback("0.0.0.0") and not is_loopback("example.org")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0"], "--host: 0.0.0.0 is reachable from other machines, and there is no key; use --key-file, or"),
        (["--limit", "max_queu=3"], "max_queu: unknown option; did you mean 'max_queue'?"),
        (["--limit", "max_queue=0"], "max_queue: must be at least 1, got 0"),
        (["--limit", "max_queue"], "--limit: expected KEY=VALUE"),
        (["--limits", "none.toml"], "none.toml: file not found"),
        (["--key-file", "none"], "--key-file: none cannot be read"),
        (["--port", "70000"], "--port"),
    ],
)
def test_options_are_checked_before_a_model_is_loaded(words, message, run_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["serve", str(run_dir), *words]) == 2
    assert message in capsys.readouterr().err


def test_missing_packages(run_dir, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["serve", str(run_dir)]) == 2
    assert (
        capsys.readouterr().err
        == "weft: error: serve: requires the package starlette and uvicorn; run pip install 'weft[serve]'\n"
    )


def test_limits_and_keys_of_files(tmp_path, monkeypatch):
    (tmp_path / "limits.toml").write_text("max_queue = 7\nrequest_seconds = 5\n")
    command = Serve(runs=["x"], limits=tmp_path / "limits.toml", limit=["max_rows=9"])
    limits = command._limits()
    assert (limits.max_queue, limits.max_rows, limits.request_seconds) == (7, 9, 5.0)
    monkeypatch.setenv("WEFT_API_KEYS", "first-key,second-key")
    assert command._keys() == ["first-key", "second-key"]


def test_arguments_of_workers():
    command = Serve(runs=["a=b"], threads=2, limit=["max_rows=9"], cors_origin=["https://a"], no_key=True)
    words = command._words()
    assert words[:2] == ["serve", "a=b"]
    assert "--no-key" in words and "--log-texts" not in words
    assert words[words.index("--threads") + 1] == "2"


def test_importing_weft_does_not_import_the_web_server():
    code = "import sys, weft, weft.serve; print([name for name in ('starlette', 'uvicorn', 'torch') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_table_of_limits_in_the_documentation():
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "serve.md").read_text(encoding="utf-8")
    rows = [f"| `{name}` | {field.default:,} | {field.description} |" for name, field in described_fields(Limits).items()]
    assert "\n".join(rows) in page
    statuses = set(re.findall(r"^\| (\d{3}) \|", page, re.MULTILINE))
    assert statuses == {str(error.status) for error in ServeError.__subclasses__()} | {"422"}


class Process:
    """A server in a process of its own."""

    def __init__(self, *words: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(Path(weft.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "weft", "serve", *words, "--port", "0", "--device", "cpu"]
        pipe: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipe)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found is not None, line + (self.process.stderr.read() if self.process.stderr else "")
        self.url = found[0]

    def wait_ready(self) -> None:
        for _ in range(600):
            try:
                if httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        pytest.fail("the server does not answer")

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        """The exit code and the log."""
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, [json.loads(line) for line in errors.split("\n") if line.startswith("{")]


@pytest.fixture
def server(run_dir) -> Iterator[Process]:
    process = Process(f"lm={run_dir}", "--limit", "max_new_tokens=100000", "--limit", "drain_seconds=4")
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.process.kill()
            process.process.communicate()


def test_a_signal_lets_requests_end_and_refuses_new_ones(server):
    server.wait_ready()
    body = {"prompts": ["the"], "options": {"max_new_tokens": 100}}
    url, answers = f"{server.url}/v1/runs/lm/generate", list[httpx.Response]()
    endless = {"prompts": ["the"], "options": {"max_new_tokens": 100_000}}
    threads = [
        threading.Thread(target=lambda body=body: answers.append(httpx.post(url, json=body, timeout=30)))
        for body in [body] * 5 + [endless]
    ]
    for thread in threads:
        thread.start()
    while "weft_requests_running 0" in httpx.get(f"{server.url}/metrics").text:
        time.sleep(0.01)
    time.sleep(0.1)  # for the others to arrive
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    refused = httpx.post(url, json=body, timeout=30)
    assert refused.status_code == 503
    assert refused.json()["error"]["problem"] == "is stopping"
    assert refused.headers["retry-after"]
    assert httpx.get(f"{server.url}/readyz").status_code == 503
    assert httpx.get(f"{server.url}/healthz").status_code == 200
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [503]  # the endless one after drain_seconds
    code, log = server.end()
    assert code == 0
    assert {entry["path"] for entry in log if "path" in entry} >= {"/v1/runs/lm/generate", "/healthz"}


def test_workers_get_the_second_signal():
    code = "import signal, sys, time; count = []; end = lambda *_: count.append(1) or len(count) < 2 or sys.exit(3)"
    code += "; signal.signal(signal.SIGTERM, end); print(flush=True); time.sleep(60)"
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    with worker.stdout:
        worker.stdout.readline()
        signals = [int(signal.SIGTERM)]
        threading.Timer(0.3, signals.append, [int(signal.SIGTERM)]).start()
        assert end_workers([worker], signals) == [3]


@pytest.mark.slow
def test_several_processes(run_dir):
    server = Process(f"lm={run_dir}", "--workers", "2", "--limit", "reload_seconds=0")
    server.wait_ready()
    found = [httpx.post(f"{server.url}/v1/runs/lm/generate", json={"prompts": ["the"]}, timeout=30) for _ in range(8)]
    assert {response.status_code for response in found} == {200}
    assert len({response.text for response in found}) == 1
    server.process.send_signal(signal.SIGINT)
    assert server.end()[0] == 0


def sleeping_workers(monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None]) -> list[subprocess.Popen[bytes]]:
    """Workers that only sleep take the place of servers; `before` is called with the number of those that have started."""
    workers, popen = list[subprocess.Popen[bytes]](), subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        before(len(workers))
        workers.append(popen([sys.executable, "-c", "import time; time.sleep(60)"]))
        return workers[-1]

    monkeypatch.setattr(serve_workers.subprocess, "Popen", start)
    return workers


def test_a_signal_while_workers_start_leaves_none(monkeypatch):
    def before(number: int) -> None:
        if number == 1:
            raise Terminated(signal.SIGHUP)

    workers = sleeping_workers(monkeypatch, before)
    with socket.socket() as listener, pytest.raises(Terminated):
        run_workers([], listener, 2, "SOCKET")
    assert len(workers) == 1 and workers[0].poll() is not None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_exit_code_of_workers_that_a_signal_ends_is_that_of_the_signal(monkeypatch, number):
    workers = sleeping_workers(monkeypatch, lambda number: None)
    monkeypatch.setattr(serve_workers.time, "sleep", lambda seconds: os.kill(os.getpid(), number))
    with socket.socket() as listener:
        assert run_workers([], listener, 2, "SOCKET") == 128 + number
    assert [worker.returncode for worker in workers] == [-signal.SIGTERM] * 2
