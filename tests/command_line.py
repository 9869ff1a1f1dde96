"""The command line, called as its tests call it."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from weft.cli.main import main

TEXT = "To be, or not to be: that is the question.\n" * 20


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The exit code and the one line on standard error; nothing else may be said."""
    code = main([*words])
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and said.err.startswith("weft: error: "), said
    return code, said.err.removeprefix("weft: error: ").removesuffix("\n")


def train(capsys: pytest.CaptureFixture[str], *settings: str) -> tuple[int, str]:
    """What training run.toml with these settings is refused with."""
    return refused(capsys, "train", "run.toml", "--quiet", *[word for one in settings for word in ("--set", one)])


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Let these bytes be standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def answered(monkeypatch: pytest.MonkeyPatch, chunks: Iterable[bytes], *words: str) -> tuple[list[int], str]:
    """How many lines a command has written each time that it waits for more of its input, and all of its output."""
    written, counts, left = io.BytesIO(), list[int](), iter([*chunks, b""])

    def read1(size: int) -> bytes:
        counts.append(written.getvalue().count(b"\n"))
        return next(left)

    with monkeypatch.context() as patch, io.TextIOWrapper(written, encoding="utf-8") as out:
        patch.setattr(sys, "stdin", SimpleNamespace(buffer=SimpleNamespace(read1=read1)))
        patch.setattr(sys, "stdout", out)  # a pipe gets what is flushed
        assert main([*words]) == 0
        out.flush()
        return counts, written.getvalue().decode()
