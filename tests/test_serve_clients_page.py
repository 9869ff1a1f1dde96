"""Every snippet of the page on clients runs against a server: Python, shell and JavaScript."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_runs import shared_runs

from weft.serve import Engine, libretranslate, openai
from weft.serve.access_log import Log
from weft.serve.http import create_app, create_services
from weft.serve.languages import Languages, parse_languages
from weft.serve.server import bind, serve

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "serve-clients.md"
RUNS = {"tales": "lm", "helper": "chat", "reviews": "labels", "mt": "mt"}
ADDRESS = "http://127.0.0.1:8080"


def snippets(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    runs = shared_runs(tmp_path_factory.getbasetemp())
    engine = Engine({name: runs.get(run) for name, run in RUNS.items()}, device="cpu")
    words = re.search(r"--languages (\S+)", PAGE.read_text(encoding="utf-8"))
    assert words is not None
    languages = Languages(engine, parse_languages([words[1]], list(RUNS)))
    services, listener, stop = create_services(engine), bind("127.0.0.1", 0), threading.Event()
    app = create_app(services, tables=[openai.ROUTES, libretranslate.routes(languages)])
    thread = threading.Thread(target=serve, args=(app, services, listener, Log(lambda line: None), stop.is_set))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stop.set()
        thread.join(30)


def test_python(url, capsys):
    names: dict[str, Any] = {"__name__": "page"}
    for number, block in enumerate(snippets("py"), 1):
        exec(compile(block.replace(ADDRESS, url), f"block {number}", "exec"), names)
        assert capsys.readouterr().out, block


@pytest.mark.skipif(shutil.which("curl") is None, reason="requires curl")
def test_shell(url):
    for block in snippets("sh"):
        for command in block.replace("\\\n", " ").strip().split("\n"):
            result = subprocess.run(["sh", "-c", command.replace(ADDRESS, url)], check=True, capture_output=True, text=True)
            assert result.stdout, command
            assert '"error"' not in result.stdout, result.stdout


@pytest.mark.skipif(shutil.which("node") is None, reason="requires node")
def test_javascript(url, tmp_path):
    for block in snippets("js"):
        path = tmp_path / "snippet.mjs"
        path.write_text(block.replace(ADDRESS, url))
        result = subprocess.run(["node", str(path)], capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stderr
        assert result.stdout.count("\n") > 1
