"""Helpers to call `weft` in this process: errors, standard input, streamed output."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from weft.cli.main import main

TEXT = "To be, or not to be: that is the question.\n" * 20


def expect_error(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """Run a command that must fail with a single `weft: error:` line and no output; return its exit code and message."""
    code = main([*args])
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and captured.err.startswith("weft: error: "), captured
    return code, captured.err.removeprefix("weft: error: ").removesuffix("\n")


def train_error(capsys: pytest.CaptureFixture[str], *overrides: str) -> tuple[int, str]:
    """Exit code and message of `weft train run.toml` with these overrides, which must fail."""
    return expect_error(capsys, "train", "run.toml", "--quiet", *[arg for override in overrides for arg in ("--set", override)])


def set_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Replace standard input by these bytes."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def stream_output(monkeypatch: pytest.MonkeyPatch, chunks: Iterable[bytes], *args: str) -> tuple[list[int], str]:
    """Feed `chunks` to a command through a pipe; return its number of output lines before each read, and its output."""
    written, counts, unread = io.BytesIO(), list[int](), iter([*chunks, b""])

    def read1(size: int) -> bytes:
        counts.append(written.getvalue().count(b"\n"))
        return next(unread)

    with monkeypatch.context() as patch, io.TextIOWrapper(written, encoding="utf-8") as out:
        patch.setattr(sys, "stdin", SimpleNamespace(buffer=SimpleNamespace(read1=read1)))
        patch.setattr(sys, "stdout", out)  # only flushed output reaches a pipe
        assert main([*args]) == 0
        out.flush()
        return counts, written.getvalue().decode()
