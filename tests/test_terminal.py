"""Terminal output is safe: escape sequences, bells and direction controls in data are printed as escapes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from label_runs import classification_run_file, write_tsv
from small_runs import make_text, run_file, train_here

from weft.cli.display import Display
from weft.cli.main import main
from weft.cli.output import escape_control_chars, note, print_error, write, write_json
from weft.log import check_checksum, with_checksum

EVIL = "good\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp\u2066"
SAFE = r"good\u001b]0;owned\u0007\u001b[2J\u009b31m\u202egnp\u2066"


class Terminal(io.StringIO):
    """A stream that reports itself as a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_control_characters_become_escapes_and_other_text_is_unchanged():
    controls = [chr(code) for code in [*range(32), *range(127, 160)] if chr(code) not in "\n\t"]
    controls += list("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    for char in controls:
        assert escape_control_chars(f"a{char}b") == f"a\\u{ord(char):04x}b"
    plain = "a\tb\nc é ﷺ 日本 👨‍👩‍👧 می‌خواهم \\x1b"  # with joiners, which emoji and Persian need
    assert escape_control_chars(plain) is plain


def test_stdout_is_exact_unless_it_is_a_terminal(monkeypatch, capsys):
    write(EVIL)
    write_json({"label": EVIL}, indent=None)
    assert capsys.readouterr().out == EVIL + json.dumps({"label": EVIL}, ensure_ascii=False) + "\n"
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    write(EVIL)
    assert terminal.getvalue() == SAFE
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    write_json({"label": EVIL}, indent=None)
    assert json.loads(terminal.getvalue()) == {"label": EVIL}  # it is still JSON
    assert terminal.getvalue().isprintable() or not set(terminal.getvalue()) & set("\x1b\x07\x9b\u202e\u2066")


def test_lines_and_progress_bars_on_stderr(monkeypatch, capsys):
    print_error(EVIL)
    note(EVIL, quiet=False)
    assert capsys.readouterr().err == f"{SAFE}\nweft: note: {SAFE}\n"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with Display(stream=(terminal := Terminal())) as display:
        display.show("measuring", 0.5, EVIL)
        display.line(EVIL)
    assert SAFE in terminal.getvalue() and "\x07" not in terminal.getvalue() and "\x1b]0;" not in terminal.getvalue()


def on_a_terminal(words: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Output of a command whose standard output is a terminal."""
    controller, terminal = pty.openpty()
    chunks = list[bytes]()

    def read() -> None:
        with contextlib.suppress(OSError):  # raised when the other side of the terminal closes
            while chunk := os.read(controller, 1 << 16):
                chunks.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    with monkeypatch.context() as patch, os.fdopen(terminal, "w", encoding="utf-8") as stream:
        patch.setattr(sys, "stdout", stream)
        assert main(words) == 0
    reader.join()
    os.close(controller)
    return b"".join(chunks).decode()


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: Any) -> Path:
    directory: Path = tmp_path_factory.mktemp("labelled")
    rows = [(EVIL if index % 2 else "bad", f"text {index % 2} {index}") for index in range(40)]
    values = classification_run_file(write_tsv(directory / "texts.tsv", rows), "naive-bayes")
    return train_here({**values, "model": {"arch": "naive-bayes"}}, directory / "run").path


def test_evaluate_escapes_labels(labelled, monkeypatch, capsys):
    monkeypatch.setenv("NO_COLOR", "1")
    data = labelled.parent / "texts.tsv"
    shown_text = on_a_terminal(["evaluate", str(labelled), "--data", str(data), "-q"], monkeypatch)
    assert SAFE in shown_text and not set("\x1b\x07\x9b\u202e") & set(shown_text)
    assert main(["evaluate", str(labelled), "--data", str(data), "-q"]) == 0
    assert EVIL in capsys.readouterr().out  # piped output has the raw label


def test_info_escapes_environment_and_paths(tmp_path, monkeypatch, capsys):
    text = make_text(tmp_path / "te\x1b[2Jxt.txt")
    run = train_here(run_file(text, train__max_steps=1), tmp_path / "run").path
    environment = json.loads((run / "environment.json").read_text())
    (run / "environment.json").write_text(json.dumps(with_checksum({**check_checksum(environment), "gpu": EVIL})))
    shown_text = on_a_terminal(["info", str(run)], monkeypatch)
    assert SAFE in shown_text and r"te\u001b[2Jxt.txt" in shown_text and not set("\x1b\x07\x9b\u202e") & set(shown_text)
    assert main(["info", str(run)]) == 0
    assert EVIL in capsys.readouterr().out
