"""The examples: every command that stands in a run file or in examples/README.md, run for a few steps."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from weft.cli.main import main
from weft.config import override, read_toml
from weft.models.smoothing import SMOOTHINGS
from weft.models.tables import ADDED, CONNECTIONS, INSIDE
from weft.nn.mixers import MIXERS
from weft.train.presets import TASKS
from weft.train.settings import Settings, resolve

EXAMPLES = Path(__file__).parents[1] / "examples"
README = EXAMPLES / "README.md"
FILES = sorted(EXAMPLES.glob("*.toml"))
ROWS = [f"M{number:02d}" for number in (*range(1, 13), 21)]
FEW = ["--quiet", "--set", "train.steps=3", "--set", "train.validations=1", "--set", "train.batch_tokens=256"]


def commands(path: Path) -> list[list[str]]:
    """The words of every command of a file, as a shell would split them: indented comments, or blocks of a page."""
    text, mark = path.read_text(), "#   "
    if path.suffix == ".md":
        text, mark = "".join(re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)), ""
    return [shlex.split(line)[1:] for line in re.findall(rf"^{mark}(weft [a-z].*)$", text, re.MULTILINE)]


def settings(path: Path, words: list[str]) -> Settings:
    """What a train command's run file says after its --set options."""
    changes = [value for option, value in pairwise(words) if option == "--set"]
    return resolve(override(read_toml(path.parents[1] / words[1]), changes), base=path.parent)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with the examples in it, to run commands from; the longest text is cut, for speed."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    tales = tmp_path / "examples" / "data" / "tales.txt"
    tales.write_text("\n".join(tales.read_text().split("\n")[:100]) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", [*FILES, README], ids=lambda path: path.stem)
def test_every_command_works(place, capsys, path):
    found = commands(path)
    assert found
    for words in found:
        code = main([*words, *FEW] if words[0] == "train" else words)
        out, err = capsys.readouterr()
        if "model.two_way=true" in words:
            assert (code, out) == (2, "")
            assert err in path.read_text()
        else:
            assert (code, err) == (0, ""), words
            assert bool(out) == (words[0] != "train")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_run_file_begins_with_the_command_that_trains_it(path):
    assert commands(path)[0] == ["train", f"examples/{path.name}"]
    assert path.read_text().startswith("# ")


def test_the_readme_names_every_run_file_and_every_row():
    text = README.read_text()
    assert [path.name for path in FILES if f"]({path.name})" not in text] == []
    assert [row for row in ROWS if not re.search(rf"^\| {row} \|", text, re.MULTILINE)] == []


def test_every_part_has_an_example():
    trained = [settings(path, words) for path in FILES for words in commands(path) if words[0] == "train"]
    assert {one.kind for one in trained} == set(TASKS["lm"])
    assert {one.data.read for one in trained} == {"windows", "stream", "lines"}
    networks = [one.model for one in trained if one.kind != "ngram"]
    assert {one.model.smoothing for one in trained if one.kind == "ngram"} == set(SMOOTHINGS)
    assert {model.mixer for model in networks} == set(MIXERS)
    assert {model.connection for model in networks} == set(CONNECTIONS)
    assert {model.positions for model in networks} == {*ADDED, *INSIDE}


def test_the_tests_that_examples_point_to_are_there():
    named = {match for path in [*FILES, README] for match in re.findall(r"pytest (tests/\S+\.py) -k (\w+)", path.read_text())}
    assert named
    for file, word in named:
        assert re.search(rf"^def test_\w*{word}", (EXAMPLES.parent / file).read_text(), re.MULTILINE)


def test_the_hello_example_spells_hello(place, capsys):
    assert main(["train", "examples/rnn-hello.toml", "--quiet"]) == 0
    assert main(["generate", "runs/rnn-hello", "h", "--greedy"]) == 0
    assert capsys.readouterr().out == "hello\n"


def test_the_texts_are_what_their_script_writes():
    made = runpy.run_path(str(EXAMPLES / "data" / "make.py"))["TEXTS"]
    for name, text in made.items():
        assert (EXAMPLES / "data" / name).read_bytes() == text().encode(), name
    assert {path.name for path in (EXAMPLES / "data").glob("*.txt")} == set(made)
