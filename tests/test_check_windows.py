"""`weft check --show-windows` on the lecture's example: tokens t1 to t50, context length 5, stride 2."""

from __future__ import annotations

import json

import pytest
from command_line import expect_error
from small_runs import make_corpus

from weft.cli.main import main
from weft.cli.show_windows import as_table, windows_to_json
from weft.data.batching import Windows
from weft.text.tokenizers import from_vocab

WORDS = [f"t{number}" for number in range(1, 51)]
RUN = """
task = "lm"
[data]
train = "text.txt"
context_length = 4
stride = 2
{read}
[tokenizer]
type = "word"
[model]
arch = "{kind}"
hidden_size = 8
"""


def by_phase(phase: int) -> Windows:
    """The windows of an epoch whose first one begins at token `phase`."""
    tokenizer = from_vocab(WORDS)
    corpus = make_corpus(tokenizer.encode(" ".join(WORDS)).tolist())
    for seed in range(100):
        order = Windows(corpus, context_length=4, stride=2, rows=5, seed=seed)
        if order.grid(0)[0] == phase:
            return order
    raise AssertionError("no such phase")


def test_the_table_of_the_lecture():
    tokenizer = from_vocab(WORDS)
    first, last = (windows_to_json(by_phase(phase), tokenizer, 50)["windows"] for phase in (1, 2))
    assert len(first) == len(last) == 23
    # (b), (c): of t1 ... t5 the input is t1 ... t4, the label t2 ... t5
    assert first[0] == {"token": 1, "input": ["t1", "t2", "t3", "t4"], "label": ["t2", "t3", "t4", "t5"]}
    # (a): each window two tokens after the one before it; the last are t44 ... t48 and t46 ... t50
    assert [[*one["input"], one["label"][-1]] for one in last[-2:]] == [
        ["t44", "t45", "t46", "t47", "t48"],
        ["t46", "t47", "t48", "t49", "t50"],
    ]
    assert [one["token"] for one in first] == list(range(1, 46, 2))
    # a window may begin before the text, at <s>
    assert windows_to_json(by_phase(0), tokenizer, 1)["windows"][0]["input"] == ["<s>", "t1", "t2", "t3"]


def test_windows_equal_those_of_training():
    order = by_phase(1)
    read = {tuple(row.tolist()) for index in range(order.batches(0)) for row in order.batch(0, index).tokens}
    shown = {tuple(row.tolist()) for row in order.batch_at(order.grid(0)).tokens}
    assert read == shown and len(read) == 23


def test_the_command_prints_windows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(" ".join(WORDS))
    (tmp_path / "run.toml").write_text(RUN.format(read="", kind="gpt"))
    assert main(["check", "run.toml", "--show-windows", "2", "-q", "--json"]) in (0, 3)
    found = json.loads(capsys.readouterr().out)["windows"]
    assert (found["context_length"], found["stride"], found["count"], len(found["windows"])) == (4, 2, 23, 2)
    start = found["windows"][0]["token"]
    assert found["windows"][1]["input"] == WORDS[start + 1 : start + 5]
    assert main(["check", "run.toml", "--show-windows", "2", "-q"]) in (0, 3)
    assert as_table(found) in capsys.readouterr().out
    found = {
        "context_length": 4,
        "stride": 2,
        "count": 23,
        "windows": windows_to_json(by_phase(1), from_vocab(WORDS), 2)["windows"],
    }
    assert as_table(found) == (
        "23 windows of 4 tokens, stride 2, in random order in the first epoch:\n"
        "from token  input                label\n"
        "1           't1' 't2' 't3' 't4'  't2' 't3' 't4' 't5'\n"
        "3           't3' 't4' 't5' 't6'  't4' 't5' 't6' 't7'\n"
    )


def test_long_windows_are_abbreviated():
    one = {"token": 1, "input": [*"abcdefgh"], "label": [*"bcdefgh\n"]}
    shown = as_table({"context_length": 8, "stride": 8, "count": 1, "windows": [one]}).split("\n")[2]
    assert shown == r"1           'a' 'b' 'c' 'd' ... 'g' 'h'  'b' 'c' 'd' 'e' ... 'h' '\u{a}'"


@pytest.mark.parametrize(("read", "kind"), [('read_as = "lines"', "gpt"), ("", "ngram")])
def test_tasks_without_windows_are_refused(tmp_path, monkeypatch, capsys, read, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(" ".join(WORDS))
    text = RUN.format(read=read, kind=kind).replace("stride = 2\n", "" if read else "stride = 2\n")
    (tmp_path / "run.toml").write_text(text.replace("hidden_size = 8", "" if kind == "ngram" else "hidden_size = 8"))
    told = "--show-windows: requires a network of task 'lm' that reads running text as windows"
    assert expect_error(capsys, "check", "run.toml", "--show-windows", "2") == (2, told)
