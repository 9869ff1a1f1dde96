"""Short runs of every task compared with recorded losses, scores, signatures and output.

A refactoring must not change any recorded value. A change that is meant to alter numbers rewrites them and explains why:

    python tests/test_goldens.py

The runs come from tools/golden_cases.py, which records more: python tools/goldens.py --help. When a task, a metric or an
option is renamed, add it to `renamed` (old: new) in goldens.json; the numbers stay the same.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import golden_data  # noqa: E402
from golden_cases import scenes  # noqa: E402

from weft.cli.main import main  # noqa: E402

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
RECORDED = ROOT / "tests" / "goldens.json"
CLOSE = 1e-3  # relative: processors round differently, and twelve steps add to it
# the command whose output is recorded; generation of unlimited length is omitted, because rounding may change it
SAID = {
    "lm-ngram": "score-json",
    "lm-gpt": "score-json",
    "lm-lstm-lines": "score-json",
    "bahdanau": "score-pairs-json",
    "transformer": "score-pairs-json",
    "classification-naive-bayes": "predict-json",
    "classification-lstm": "predict-json",
    "multilabel-lstm": "predict-json",
    "tagging-lstm": "predict-json",
    "tagging-conv": "predict-json",
    "masked-transformer": "predict-mask-json",
    "bert": "predict-mask-json",
    "qa-lstm": "predict-json",
    "denoising-bart": "score-pairs-json",
    "asr-ctc": "score-pairs-json",
    "captioning-attention": "score-pairs-json",
}
SCENES = {scene.name: scene for scene in scenes()}
UNKEPT = ("crc32",)  # checksum of a line


def called(words: tuple[str, ...], stdin: bytes = b"") -> str:
    """Run a command and return its output."""
    out, before = io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = main(list(words))
    finally:
        sys.stdin = before
    assert code in (0, 3), words  # 3: a line could not be read
    return out.getvalue()


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.split("\n") if line]


def recorded(name: str) -> dict[str, Any]:
    """Train a run in the current directory and return its losses, scores and output."""
    scene = SCENES[name]
    Path(f"{name}.toml").write_text(scene.run_file, encoding="utf-8")
    called(("train", f"{name}.toml", "--quiet", *scene.options))
    case_found = next(case for case in scene.cases if case.name == SAID[name])
    logged = lines((Path(scene.run) / "metrics.jsonl").read_text(encoding="utf-8"))
    return {
        "metrics": [{key: value for key, value in line.items() if key not in UNKEPT} for line in logged],
        "scores": json.loads(called(("evaluate", scene.run, "--json")))["scores"],
        "said": lines(called(case_found.words, case_found.stdin)),
    }


def named(value: Any, renamed: Mapping[str, str]) -> Any:
    """A recorded value under current names; also renames parts of longer names, such as loss in valid_loss."""
    if isinstance(value, dict):
        return {named(key, renamed): named(inner, renamed) for key, inner in value.items()}
    if isinstance(value, list):
        return [named(inner, renamed) for inner in value]
    if isinstance(value, str) and renamed:
        pattern = "|".join(map(re.escape, sorted(renamed, key=len, reverse=True)))
        return re.sub(f"(?<![a-zA-Z0-9])({pattern})(?![a-zA-Z0-9])", lambda match: renamed[match[1]], value)
    return value


def differences(location: str, expected: Any, actual: Any) -> Iterator[str]:
    """Where two values differ: numbers by more than the tolerance, everything else exactly."""
    numbers = all(isinstance(item, float | int) and not isinstance(item, bool) for item in (expected, actual))
    if numbers and math.isclose(expected, actual, rel_tol=CLOSE, abs_tol=1e-6):
        return
    if isinstance(expected, dict) and isinstance(actual, dict) and list(expected) == list(actual):
        for key, value in expected.items():
            yield from differences(f"{location}.{key}", value, actual[key])
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for index, (item, other) in enumerate(zip(expected, actual, strict=True)):
            yield from differences(f"{location}[{index}]", item, other)
    elif expected != actual or isinstance(expected, bool) != isinstance(actual, bool):
        yield f"{location}: {expected!r} was recorded, {actual!r} is found"


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("goldens")
    golden_data.make(folder)
    return folder


@pytest.fixture(scope="module")
def records() -> dict[str, Any]:
    return dict(json.loads(RECORDED.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", SAID)
def test_run_matches_its_golden_record(work_dir, records, monkeypatch, name):
    monkeypatch.chdir(work_dir)
    actual = list(differences(name, named(records["runs"][name], records["renamed"]), recorded(name)))
    assert not actual, "\n" + "\n".join(actual[:10])


def test_every_golden_record_has_a_case(records):
    assert list(records["runs"]) == list(SAID)


def test_renamed_entries_are_compared_by_value():
    renamed = {"loss": "loss", "span": "qa"}
    assert named({"valid_loss": [1.0, "span_f1|span", "spans"]}, renamed) == {"valid_loss": [1.0, "qa_f1|qa", "spans"]}
    assert list(differences("x", {"a": [1.0, None]}, {"a": [1.0009, None]})) == []
    assert list(differences("x", {"a": [1.0]}, {"a": [1.01]})) == ["x.a[0]: 1.0 was recorded, 1.01 is found"]
    assert list(differences("x", {"a": 1}, {"b": 1})) == ["x: {'a': 1} was recorded, {'b': 1} is found"]
    assert list(differences("x", True, 1)) == ["x: True was recorded, 1 is found"]


def rewrite() -> None:
    """Record all runs again and clear the list of renamed entries."""
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as directory:
        golden_data.make(Path(directory))
        os.chdir(directory)
        actual = {"renamed": {}, "runs": {name: recorded(name) for name in SAID}}
        os.chdir(ROOT)
    RECORDED.write_text(json.dumps(actual, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    rewrite()
