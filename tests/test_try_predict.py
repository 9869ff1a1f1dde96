"""Invalid inputs among valid ones: `try_predict` and `try_score` return the error in place of the result, and every other
input gets its result; `predict` and `score` raise the first error. For every task, from lists and from generators."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from small_runs import train_here

import weft
from weft.config import read_toml
from weft.errors import DataError, UsageError
from weft.tasks.spec import InvalidInput

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import golden_data
from golden_cases import scenes

SCENES = {scene.name: scene for scene in scenes()}
NUL = "NUL at character 1; is this binary data?"
HALF = "lone surrogate U+D800 at character 0; use whole characters"
TWO = "expected a tuple of a question and a passage"
ASKED = "Eva bought a hat in Rome."
# two valid inputs, and invalid inputs with their reasons
INPUTS: dict[str, tuple[list[Any], dict[Any, str]]] = {
    "classification-lstm": (
        ["the film was good", "never again"],
        {"a\0b": NUL, "\ud800": HALF, 7: "expected a string, got int", ("a", "b"): "has 2 texts, but RUN expects 1"},
    ),
    "pairs-transformer": (
        [("the cat sleeps", "a cat"), ("a dog", "no dog")],
        {("a", "b\0"): NUL, "alone": "has 1 text, but RUN expects 2", ("a", None): "expected a string, got NoneType"},
    ),
    "tagging-lstm": (
        ["Ned leaves Paris", ("Eva", "sleeps")],
        {"a\0b": NUL, ("Eva", "\ud800"): HALF, None: "expected a string, got NoneType"},
    ),
    "qa-lstm": (
        [("Who bought a hat?", ASKED), ("Where?", ASKED)],
        {
            "alone": TWO,
            ("a", "b", "c"): TWO,
            ("a\0?", ASKED): NUL,
            (" ", ASKED): "empty question",
            ("Who?", ""): "empty passage",
            ("Who?", 7): "expected a string, got int",
        },
    ),
    "masked-transformer": (
        ["The cat [MASK] a hat.", "The [MASK] dog."],
        {
            "a\0[MASK]": NUL,
            "no mask": "no [MASK] in the text; write it where a token is missing",
            7: "expected a string, got int",
        },
    ),
    "bahdanau": (
        ["the cat sees a hat", "the dog"],
        {
            "a\0b": NUL,
            7: "expected a string, got int",
            "the cat " * 60: "121 tokens exceed the model's limit of 60; shorten it",
        },
    ),
}
SCORED: dict[str, tuple[list[Any], dict[Any, str]]] = {
    "lm-lstm-lines": (["The cat sees a hat.", "A dog."], {"a\0b": NUL, 7: "expected a string, got int"}),
    "bahdanau": (
        [("the cat", "le chat"), ("the dog", "le chien")],
        {
            ("the\0", "le"): NUL.replace("1", "3"),
            "alone": "expected a tuple of a source and a target",
            ("a", 7): "",
        },
    ),
}
SCORED["bahdanau"][1]["a", 7] = "expected a string, got int"


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    actual = tmp_path_factory.mktemp("runs")
    golden_data.make(actual)
    return actual


def loaded(work_dir: Path, name: str) -> Any:
    if not (work_dir / name).exists():
        (work_dir / f"{name}.toml").write_text(SCENES[name].run_file.replace("steps = 12", "steps = 1"), encoding="utf-8")
        train_here(read_toml(work_dir / f"{name}.toml"), work_dir / name)
    return weft.load(work_dir / name)


def reasons_given(run: Any, results: list[Any]) -> list[str | None]:
    return [
        item.reason.replace(str(run.directory.path), "RUN").replace(" or set `truncate`", "")
        if isinstance(item, InvalidInput)
        else None
        for item in results
    ]


@pytest.mark.parametrize("name", INPUTS)
def test_errors_take_the_place_of_predictions(name, work_dir):
    run, (good, bad) = loaded(work_dir, name), INPUTS[name]
    mixed = [good[0], *bad, good[1]]
    actual = run.try_predict(mixed)
    assert reasons_given(run, actual) == [None, *bad.values(), None]
    assert [actual[0], actual[-1]] == run.try_predict(good) == run.predict(good)
    assert run.try_predict(one for one in mixed) == actual
    assert run.predict(one for one in good) == run.predict(good)
    for one, reason in bad.items():
        with pytest.raises(DataError) as caught:
            run.predict([good[0], one])
        assert reasons_given(run, [InvalidInput(str(caught.value))]) == [f"line 2: {reason}"]
    assert run.try_predict([]) == [] and len(run.try_predict(good[0])) == 1


@pytest.mark.parametrize("name", SCORED)
def test_errors_take_the_place_of_scores(name, work_dir):
    run, (good, bad) = loaded(work_dir, name), SCORED[name]
    actual = run.try_score([good[0], *bad, good[1]])
    assert reasons_given(run, actual) == [None, *bad.values(), None]
    assert [actual[0].log_prob, actual[-1].log_prob] == pytest.approx([one.log_prob for one in run.score(good)], rel=1e-5)
    assert run.score(one for one in good) == run.score(good)
    for one, reason in bad.items():
        with pytest.raises(DataError) as caught:
            run.score([good[0], one])
        assert str(caught.value) == f"line 2: {reason}"


@pytest.mark.parametrize("value", [None, 7, b"the film"])
def test_values_that_are_no_inputs_are_refused(value, work_dir):
    message = f"inputs: expected a string or a list, got {type(value).__name__}"
    run = loaded(work_dir, "tagging-lstm")
    for method in (run.predict, run.try_predict, run.embed):
        with pytest.raises(DataError, match=f"^{message}$"):
            method(value)
    lm = loaded(work_dir, "lm-lstm-lines")
    for method in (lm.score, lm.try_score, lm.generate, loaded(work_dir, "bahdanau").score):
        with pytest.raises(DataError, match=f"^{message}$"):
            method(value)


def test_a_string_is_not_embedded_character_by_character(work_dir):
    run = loaded(work_dir, "classification-lstm")
    with pytest.raises(UsageError, match=r"^texts: expected a list of texts, got a string; use \[text\]$"):
        run.embed("never again")
    assert run.embed(text for text in ["never", "again"]).shape[0] == 2
    with pytest.raises(DataError, match=r"^line 2: expected a string, got NoneType$"):
        loaded(work_dir, "tagging-lstm").embed(["Ned sleeps", None])


def test_columns_are_inputs_and_their_names_are_not(work_dir):
    run = loaded(work_dir, "classification-lstm")
    texts = ["the film was good", "never again"]
    assert run.try_predict({"text": texts}) == run.predict({"text": texts}) == run.predict(texts)
    with pytest.raises(DataError, match=r"^inputs: expected a string or a list, got dict$"):
        loaded(work_dir, "lm-lstm-lines").score({"text": texts})
