"""Successive halving: trials, budgets and winner; test data is never read."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import make_text, run_file, train_here

from weft.comparison import tune
from weft.comparison.applicable_options import with_option
from weft.comparison.plan import PlannedRun, Variant
from weft.comparison.train import Outcome
from weft.errors import UsageError
from weft.metrics.lm import LANGUAGE
from weft.metrics.metric import metrics_of
from weft.metrics.seq2seq import TRANSLATION
from weft.runs.resolve import resolve
from weft.runs.status import best
from weft.training.config import TrainConfig

BASE = Path()
LSTM: dict[str, Any] = {
    "task": "lm",
    "data": {"train": "text.txt", "valid": 0.1, "test": "secret.txt"},
    "model": {"arch": "lstm", "hidden_size": 64},
    "train": {"max_steps": 80, "lr": 0.01},
}


COUNTED: dict[str, dict[str, Any]] = {
    "ngram": {**LSTM, "model": {"arch": "ngram"}, "train": {}},
    **{
        kind: {"task": "classification", "data": {"train": "t.tsv", "valid": 0.1, "test": "s.tsv"}, "model": {"arch": kind}}
        for kind in ("naive-bayes", "logistic-regression")
    },
}


def search(number: int, out: Path, score: Any, fixed: Sequence[str] = ()) -> tuple[list[PlannedRun], tune.Search]:
    """A search whose runs are scored by what they are, not trained; and the runs that it asked for."""
    asked: list[PlannedRun] = []

    def train(plan: Sequence[PlannedRun]) -> list[Outcome]:
        asked.extend(plan)
        return [Outcome(item, *((6, "the loss is nan") if score(item) is None else (0, ""))) for item in plan]

    def found(path: Path) -> tune.Best:
        return LANGUAGE[0], score(next(item for item in asked if item.output_dir == path))

    return asked, tune.Search(number, fixed, 3, out, train, found)


def trial_of(planned: PlannedRun) -> int:
    return int(planned.output_dir.name.rsplit("-", 1)[1])


def test_rungs_halve_the_trials_and_double_the_budget():
    assert tune.halving_rounds(8) == [(8, 0.125), (4, 0.25), (2, 0.5)]
    assert tune.halving_rounds(2) == [(2, 0.5)]
    assert tune.halving_rounds(5) == [(5, 0.125), (3, 0.25), (2, 0.5)]


def test_a_fraction_of_each_budget():
    assert tune.with_budget(LSTM, TrainConfig(max_steps=10), 0.25)["train"]["max_steps"] == 2
    assert tune.with_budget(LSTM, TrainConfig(max_steps=1), 0.25)["train"]["max_steps"] == 1
    assert tune.with_budget(LSTM, TrainConfig(max_tokens=100), 0.25)["train"]["max_tokens"] == 25
    assert tune.with_budget(LSTM, TrainConfig(max_epochs=3.0), 0.25)["train"]["max_epochs"] == 0.75
    assert tune.with_budget(LSTM, TrainConfig(max_minutes=1.0), 0.25)["train"]["max_minutes"] == 0.25


def test_trials_depend_only_on_the_seed():
    variant = Variant("lstm", LSTM)
    first = tune.trials(variant, 8, [], seed=3, base=BASE)
    assert first == tune.trials(variant, 8, [], seed=3, base=BASE)
    assert first != tune.trials(variant, 8, [], seed=4, base=BASE)
    assert first[1:] != tune.trials(variant._replace(name="gru"), 8, [], seed=3, base=BASE)[1:]
    assert first[0].values == LSTM  # its own settings are among those that are tried
    assert len({repr(trial.values) for trial in first}) == 8
    for trial in first[1:]:
        settings = resolve(trial.values, base=BASE)
        assert 0.002 <= settings.train.lr <= 0.05 and settings.model.dropout in tune.DROPOUTS
        assert settings.model.hidden_size % 8 == 0 and 32 <= settings.model.hidden_size <= 128


def test_fixed_options_are_not_sampled():
    result = tune.trials(Variant("lstm", LSTM), 4, ["hidden_size", "dropout"], seed=0, base=BASE)
    assert [sorted(trial.options) for trial in result] == [[], ["lr"], ["lr"], ["lr"]]
    assert len(tune.trials(Variant("lstm", LSTM), 4, ["hidden_size", "dropout", "lr"], seed=0, base=BASE)) == 1


def test_the_matrix_learning_rate_scales_with_lr():
    values = {**LSTM, "model": {"arch": "gpt", "hidden_size": 64}, "train": {"max_steps": 8, "lr": 0.004, "muon_lr": 0.02}}
    settings = resolve(values, base=BASE)
    result = tune.with_choices(values, settings, {"lr": 0.008, "hidden_size": 32})
    assert result["train"] == {"max_steps": 8, "lr": 0.008, "muon_lr": 0.04} and result["model"]["hidden_size"] == 32


def test_encoder_and_decoder_options_change_together():
    values = {
        "task": "seq2seq",
        "data": {"train": "pairs.tsv", "valid": 0.1},
        "model": {"arch": "lstm", "hidden_size": 64, "encoder": {"hidden_size": 32, "dropout": 0.1}},
    }
    settings = resolve(values, base=BASE)
    assert settings.model.hidden_size == 32
    model = resolve(tune.with_choices(values, settings, {"hidden_size": 16, "dropout": 0.4}), base=BASE).model
    assert [(side.hidden_size, side.dropout) for side in (model.encoder, model.decoder)] == [(16, 0.4)] * 2


def test_the_best_of_each_rung_continue_and_the_best_of_all_wins(tmp_path):
    order = [5, 2, 7, 0, 1, 3, 4, 6]  # from the best to the worst
    asked, expected = search(8, tmp_path, lambda item: float(order.index(trial_of(item))))
    (result,) = tune.tune([Variant("lstm", LSTM)], expected)
    by_rung = [[trial_of(item) for item in asked if f"-rung{rung}-" in item.output_dir.name] for rung in range(3)]
    assert by_rung == [list(range(8)), [5, 2, 7, 0], [5, 2]]
    assert [item.values["train"]["max_steps"] for item in asked] == [10] * 8 + [20] * 4 + [40] * 2
    assert result.trial.number == 5 and result.variant == Variant("lstm", result.trial.values)
    assert result.variant.values["train"]["max_steps"] == 80 and result.variant.values["data"]["test"] == "secret.txt"
    assert len(result.trials) == 14
    assert result.trials[-1] == {
        "rung": 2,
        "budget": 0.5,
        "trial": 2,
        "options": result.trials[2]["options"],
        "score": {"name": "loss", "value": 1.0},
    }
    assert {item.output_dir.parent for item in asked} == {tmp_path} and {item.seed for item in asked} == {3}


def test_higher_may_be_better_and_ties_go_to_the_first(tmp_path):
    trials = [tune.Trial(number, {}, {}) for number in range(4)]
    bleu = metrics_of([TRANSLATION], ["bleu"])["bleu"]
    ranked = tune._ranked([(trials[0], (bleu, 1.0)), (trials[1], (bleu, 3.0)), (trials[2], None), (trials[3], (bleu, 3.0))])
    assert [trial.number for trial in ranked] == [1, 3, 0, 2]


def test_a_trial_that_fails_loses(tmp_path):
    _, expected = search(4, tmp_path, lambda one: None if trial_of(one) < 3 else 1.0)
    (result,) = tune.tune([Variant("lstm", LSTM)], expected)
    assert result.trial.number == 3
    assert result.trials[0]["score"] is None and result.trials[0]["reason"] == "the loss is nan"


def test_invalid_tuning_options_are_refused():
    for number in (0, 1):
        with pytest.raises(UsageError) as caught:
            tune.check([Variant("lstm", LSTM)], number, base=BASE)
        assert str(caught.value) == f"tune_trials: must be at least 2, got {number}"
    with pytest.raises(UsageError) as caught:
        tune.check([Variant("lstm", with_option(LSTM, "data.valid", None))], 4, base=BASE)
    assert str(caught.value) == "tune_trials: requires validation data; set data.valid"
    tune.check([Variant("ngram", COUNTED["ngram"]), Variant("lstm", LSTM)], 2, base=BASE)


# ---- models that are counted, or solved in one go


@pytest.mark.parametrize("kind", COUNTED)
def test_baselines_have_as_many_trials_as_networks(kind, tmp_path):
    """Each is a whole run: they have no budget that could be shared out."""
    variant = Variant(kind, COUNTED[kind])
    asked, expected = search(6, tmp_path, lambda item: float(trial_of(item) != 4))
    (result,) = tune.tune([variant], expected)
    assert [item.output_dir.name for item in asked] == [f"{kind}-rung0-{index}" for index in range(6)]
    assert asked[0].values["model"] == variant.values["model"]  # its own settings are among those that are tried
    assert len({repr(item.values["model"]) for item in asked}) == 6
    assert all("test" not in item.values["data"] for item in asked)
    assert result.trial.number == 4 and result.variant.values["model"] == asked[4].values["model"]
    assert result.to_json()["chosen"] == 4 and [item["budget"] for item in result.trials] == [1.0] * 6
    assert result.trials[0]["options"] == tune.initial_options(resolve(variant.values, base=BASE))
    again, expected = search(6, tmp_path, lambda item: 0.0)
    tune.tune([variant], expected)
    assert [item.values for item in again] == [item.values for item in asked]


@pytest.mark.parametrize("kind", COUNTED)
def test_every_value_of_a_search_space_is_tried_and_valid(kind):
    result = tune.trials(Variant(kind, COUNTED[kind]), 60, [], seed=0, base=BASE)
    chosen = [trial.options for trial in result[1:]]
    for choice in resolve(COUNTED[kind], base=BASE).preset.search_space:
        seen = [item[choice.option] for item in chosen if choice.option in item]
        assert all(value in seen for value in choice.values)
        if choice.requires:
            assert all(item[choice.requires[0]] == choice.requires[1] for item in chosen if choice.option in item)
    for trial in result:
        resolve(trial.values, base=BASE)


def test_options_made_meaningless_by_others_are_removed():
    values = {**COUNTED["ngram"], "model": {"arch": "ngram", "smoothing": "add-delta", "delta": 0.3}}
    result = tune.trials(Variant("ngram", values), 20, [], seed=0, base=BASE)
    smoothed = [trial.values["model"] for trial in result if trial.values["model"]["smoothing"] != "add-delta"]
    assert smoothed and not any("delta" in model for model in smoothed)


def test_options_of_a_baseline_set_by_the_grid_are_kept():
    result = tune.trials(
        Variant("logistic-regression", COUNTED["logistic-regression"]), 9, ["C", "features.ngram_range"], seed=0, base=BASE
    )
    assert len(result) == 8  # all there is: sublinear or not, min_df 1 or 2, naive Bayes weights or not
    assert all(set(trial.options) <= {"features.sublinear_tf", "features.min_df", "naive_bayes_weights"} for trial in result)


def test_networks_and_baselines_are_tuned_together(tmp_path):
    asked, expected = search(4, tmp_path, lambda item: float(trial_of(item)))
    result = tune.tune([Variant("ngram", COUNTED["ngram"]), Variant("lstm", LSTM)], expected)
    names = [item.output_dir.name for item in asked]
    assert names == [f"{kind}-rung0-{index}" for kind in ("ngram", "lstm") for index in range(4)] + [
        "lstm-rung1-0",
        "lstm-rung1-1",
    ]
    assert [item.trial.number for item in result] == [0, 0]


def test_a_regression_that_is_tuned_is_better_than_its_defaults(tmp_path):
    """Labels that hang on pairs of words: single words tell nothing, and a strong penalty keeps the pairs from telling it."""
    rng = np.random.default_rng(0)
    words = ["good", "bad", "not", "so", "film", "plot"]
    lines = []
    for _ in range(400):
        text = [words[index] for index in rng.integers(0, 6, 8)]
        label = "yes" if sum(a == "not" and b == "good" for a, b in itertools.pairwise(text)) else "no"
        lines.append(f"{label}\t{' '.join(text)}\n")
    (tmp_path / "train.tsv").write_text("".join(lines))
    data = {"train": str(tmp_path / "train.tsv"), "valid": 0.3}
    values = {
        "task": "classification",
        "data": data,
        "model": {"arch": "logistic-regression", "features": {"ngram_range": [1, 1], "max_char_ngram": 0}},
        "train": {},
    }
    (tmp_path / "out").mkdir()
    (result,) = tune.tune([Variant("logistic-regression", values)], tune.Search(6, [], 0, tmp_path / "out", really, best))
    scores = [trial["score"]["value"] for trial in result.trials]
    assert result.trial.number > 0 and scores[result.trial.number] == max(scores) > scores[0] + 5


def really(plan: Sequence[PlannedRun]) -> list[Outcome]:
    for item in plan:
        train_here(item.values, item.output_dir)
    return [Outcome(item, 0) for item in plan]


def winner(text: Path, out: Path, test: Any) -> tune.TunedVariant:
    data = {"train": str(text), "valid": 0.1, "test": test, "read_as": "lines"}
    values = run_file(text, "lstm", data=data, train__max_steps=4, train__num_validations=1)
    del values["seed"]
    out.mkdir()
    (result,) = tune.tune([Variant("lstm", values)], tune.Search(2, ["hidden_size"], 0, out, really, best))
    return result


def test_no_test_data_is_read(tmp_path):
    """A test file that is not there, and then one that would be refused, change nothing: nobody opens it."""
    text = make_text(tmp_path / "text.txt")
    missing = winner(text, tmp_path / "a", str(tmp_path / "missing.txt"))
    (tmp_path / "binary").write_bytes(b"\0\xff")
    broken = winner(text, tmp_path / "b", str(tmp_path / "binary"))
    assert missing.trials == broken.trials and missing.trial.options == broken.trial.options
    assert not list(tmp_path.glob("*/*/data/test.*"))


def test_a_test_fraction_is_not_used_for_selection(tmp_path):
    """Where the test data is the end of the training file, other words at that end are chosen by as little."""
    lines = make_text(tmp_path / "text.txt", words=500).read_text().split("\n")[:-1]
    assert len(lines) == 100
    (tmp_path / "one.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "two.txt").write_text("\n".join([*lines[:90], *(line[::-1] for line in lines[90:])]) + "\n")
    results = [winner(tmp_path / f"{name}.txt", tmp_path / name, 0.1) for name in ("one", "two")]
    assert results[0].trials == results[1].trials
