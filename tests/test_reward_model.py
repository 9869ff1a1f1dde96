"""Reward models: preferences, the Bradley-Terry loss, linear models, evaluation by group, and initialization."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import weft
from weft.cli.main import main
from weft.errors import ConfigError, DataError, ModelError, UsageError
from weft.metrics.preferences import preference_items
from weft.models import preference_regression
from weft.models.encoder import EncoderInput
from weft.tasks.reward_model.linear import fit_linear, with_column
from weft.tasks.reward_model.objective import PreferenceObjective
from weft.text.feature_union import FeatureUnion
from weft.text.features import FeatureConfig, Sparse

GOOD, BAD = ("good", "fine", "lovely"), ("bad", "awful", "poor")
NOUNS = ("soup", "film", "book", "song", "game")


def pairs(count: int = 60, *, prompt: bool = False) -> list[dict]:
    rng = np.random.default_rng(0)
    rows = []
    for index in range(count):
        noun, good, bad = rng.choice(NOUNS), rng.choice(GOOD), rng.choice(BAD)
        row = {
            "chosen": f"a {good} {noun}",
            "rejected": f"a {bad} {noun} " + "indeed " * int(rng.integers(0, 2)),
            "topic": str(noun),
        }
        rows.append({**row, **({"prompt": f"What do you think, number {index}?"} if prompt else {})})
    return rows


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def run_file(path: Path, **sections: dict) -> dict:
    data = {"train": str(path), "valid": 0.2, "test": 0.2, "group_column": "topic", **sections.get("data", {})}
    model = {"arch": "gru", "hidden_size": 16, **sections.get("model", {})}
    train = {"max_steps": 20, "lr": 0.02, "batch_tokens": 512, "num_validations": 2, "device": "cpu"}
    if model["arch"] == "linear":
        model.pop("hidden_size")
    return {"task": "reward-model", "data": data, "model": model, "train": {**train, **sections.get("train", {})}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rewards")
    write_jsonl(folder / "pairs.jsonl", pairs())
    write_jsonl(folder / "prompts.jsonl", pairs(prompt=True))
    return folder


@pytest.fixture(scope="module")
def run(folder) -> weft.Run:
    return weft.train(run_file(folder / "pairs.jsonl", model={"length_feature": True}), output_dir=folder / "gru")


# ---- data


def test_equal_texts_are_refused_with_file_line_and_fix(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [*pairs(3), {"chosen": "same", "rejected": "same", "topic": "x"}])
    with pytest.raises(DataError) as error:
        weft.train(run_file(path), output_dir=tmp_path / "run")
    assert str(error.value) == f"{path}:4: chosen and rejected are equal; remove the pair"


def test_columns_must_differ(folder):
    with pytest.raises(ConfigError, match="data: two options name the same column"):
        weft.train(run_file(folder / "pairs.jsonl", data={"group_column": "chosen"}), output_dir=folder / "refused")


# ---- the loss and the metrics


def test_loss_equals_the_equation_in_float64(run):
    network = run.spec.presets["gru"].estimator.network_task
    from weft.data.corpus import corpus_from_lines

    rows = pairs(5)
    columns = [corpus_from_lines(run.vocabulary, [row[name] for row in rows]) for name in ("chosen", "rejected")]
    data = network.encode(run.config, run.vocabulary, _Records(rows), columns, learned=True)
    model = run.model.double()
    try:
        batch = data.batch(np.arange(5))
        rewards = [model(EncoderInput(*batch[start : start + 3])).detach().numpy() for start in (0, 3)]
        margins = rewards[0] - rewards[1]
        for smoothing in (0.0, 0.2):
            loss = PreferenceObjective(valid=None, device=torch.device("cpu"), smoothing=smoothing).loss(model, batch, None)
            wrong = smoothing / 2
            expected = (1 - wrong) * np.log1p(np.exp(-margins)) + wrong * np.log1p(np.exp(margins))
            assert loss.total.item() == pytest.approx(expected.sum(), rel=1e-6)
            assert int(loss.count) == 5
    finally:
        model.float()


class _Records:
    def __init__(self, rows: list[dict]) -> None:
        self.rows = rows

    def records(self):
        return (type("Record", (), {"texts": (row["chosen"], row["rejected"])}) for row in self.rows)


def test_statistics_of_pairs():
    items = preference_items(np.array([1.0, 0.0, 2.0]), np.array([0.0, 1.0, 2.0]), np.array([[3, 2], [1, 1], [1, 2]]))
    assert items.statistics["correct"].tolist() == [1.0, 0.0, 0.5]
    assert items.statistics["longer"].tolist() == [1.0, 0.5, 0.0]
    assert items.statistics["nats"] == pytest.approx([np.log1p(np.exp(-1)), np.log1p(np.exp(1)), np.log(2)])


# ---- linear models


def random_features(rng: np.random.Generator) -> Sparse:
    dense = rng.random((20, 6)) * (rng.random((20, 6)) < 0.5)
    rows, columns = np.nonzero(dense)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=20))])
    return Sparse(indptr, columns, dense[rows, columns], 6)


def dense(features: Sparse) -> np.ndarray:
    matrix = np.zeros((features.rows, features.columns))
    matrix[np.repeat(np.arange(features.rows), np.diff(features.indptr)), features.indices] = features.values
    return matrix


@pytest.mark.parametrize("C", [0.1, 10.0])
def test_linear_weights_equal_those_of_scikit_learn(C):
    rng = np.random.default_rng(0)
    features, pairs = random_features(rng), rng.integers(0, 20, (50, 2))
    weight = preference_regression.fit(features, pairs, C)
    differences = dense(features)[pairs[:, 0]] - dense(features)[pairs[:, 1]]
    reference = LogisticRegression(C=C / 2, fit_intercept=False, tol=1e-10, max_iter=10_000)
    reference.fit(np.vstack([differences, -differences]), np.repeat([1, 0], 50))
    # scikit-learn sees each pair twice, with half of the weight
    assert weight == pytest.approx(reference.coef_[0], abs=2e-3)


def test_with_column_appends_a_feature():
    features = random_features(np.random.default_rng(1))
    column = np.arange(20.0) + 1
    assert np.array_equal(dense(with_column(features, column)), np.column_stack([dense(features), column]))


def test_rewards_of_a_linear_model_are_sums_over_terms():
    texts, choices = ["good soup", "bad soup", "good long book"], np.array([[0, 1], [2, 1]])
    features = FeatureUnion.fit(texts, FeatureConfig.model_validate({"max_char_ngram": 0}))
    model = fit_linear(texts, choices, features, C=1.0, length_feature=True)
    expected = dense(features.transform(texts)) @ model.weight + model.length_weight * np.log1p([len(text) for text in texts])
    assert model.score(texts) == pytest.approx(expected)
    assert model.score(texts)[0] > model.score(texts)[1]
    assert fit_linear(texts, choices, features, C=1.0, length_feature=False).length_weight == 0.0


@pytest.mark.parametrize("C", [None, 0.5])
def test_linear_run(folder, tmp_path, C):
    values = run_file(folder / "pairs.jsonl", model={"arch": "linear", **({} if C is None else {"C": C})})
    run = weft.train(values, output_dir=tmp_path / "run")
    assert run.evaluate()["accuracy"].value == 100.0
    assert run.predict("a good soup").value > run.predict("a bad soup").value
    assert run.num_parameters == run.model.weight.size + 1
    (tmp_path / "run" / "metrics.jsonl").read_text()


def test_linear_runs_refuse_initial_weights_and_damaged_files(folder, tmp_path, run):
    values = run_file(folder / "pairs.jsonl", model={"arch": "linear"}, train={"init_from": str(run.path)})
    with pytest.raises(
        ConfigError, match=r"train.init_from: not available for linear, which has no initial weights; remove it"
    ):
        weft.train(values, output_dir=tmp_path / "refused")
    linear = weft.train(run_file(folder / "pairs.jsonl", model={"arch": "linear"}), output_dir=tmp_path / "run")
    from weft.tasks.reward_model.linear import _vocabulary_hash

    key = _vocabulary_hash(linear.vocabulary, linear.model.features)
    linear.directory.write_weights({"weight": np.zeros(2), "length": np.zeros(1)}, key, 1)
    with pytest.raises(ModelError, match="corrupted: its arrays do not match the features"):
        _ = weft.load(tmp_path / "run").model


# ---- networks


def test_a_network_learns_and_reports_groups_and_length(run, capsys):
    evaluation = run.evaluate()
    assert evaluation["accuracy"].value > 90
    assert evaluation["length_accuracy"].value < 70
    assert evaluation.report.startswith("\ngroup  pairs  accuracy  length alone\n")
    groups = [line.split() for line in evaluation.report.strip().split("\n")[1:]]
    assert sum(int(count) for _, count, _, _ in groups) == 12
    assert main(["evaluate", str(run.path)]) == 0
    assert "accuracy of length alone" in capsys.readouterr().out


def test_predictions_and_lines(run, folder, tmp_path, capsys):
    rewards = run.predict(["a good soup", "a bad soup"])
    assert rewards[0].value > rewards[1].value
    (tmp_path / "lines.txt").write_text("a good soup\n\na bad soup\n")
    assert main(["predict", str(run.path), "--input", str(tmp_path / "lines.txt")]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines == [f"{rewards[0].value:.4f}", "", f"{rewards[1].value:.4f}", ""]
    assert main(["predict", str(run.path), "--input", str(tmp_path / "lines.txt"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.split("\n")[0])["reward"] == pytest.approx(rewards[0].value)
    assert run.invalid_inputs([("a", "b")]) == {0: "expected one text"}


def test_prompts_are_read_with_the_texts(folder, tmp_path, capsys):
    values = run_file(folder / "prompts.jsonl", data={"prompt_column": "prompt", "max_length": 12}, train={"max_steps": 2})
    run = weft.train(values, output_dir=tmp_path / "run")
    assert run.predict(("What?", "a good soup")).value != run.predict(("Which?", "a good soup")).value
    assert run.predict(("What do you think, number 5?", "a good soup")).truncated
    assert run.invalid_inputs(["a"]) == {0: "expected a prompt and a response"}
    (tmp_path / "lines.txt").write_text("a good soup\n")
    assert main(["predict", str(run.path), "--input", str(tmp_path / "lines.txt")]) == 3
    assert "expected a prompt, a tab and a response, got 0 tabs" in capsys.readouterr().err
    assert run.explain("What?\ta good soup", "attribution", method="input-x-gradient").data
    with pytest.raises(DataError, match="expected 2 tab-separated texts, got 1"):
        run.explain("a good soup", "attribution")


def test_explanations_name_the_outcome(run):
    assert run.explain("a good soup", "attribution", target="wins").data
    with pytest.raises(UsageError, match="target: must be loses or wins, got 'draws'"):
        run.explain("a good soup", "attribution", target="draws")


def test_a_causal_reward_model_starts_from_a_language_model(folder, tmp_path):
    (tmp_path / "text.txt").write_text("".join(f"{row['chosen']}. {row['rejected']}.\n" for row in pairs()))
    weft.train(
        {
            "task": "lm",
            "data": {"train": str(tmp_path / "text.txt"), "context_length": 32},
            "tokenizer": {"type": "word"},
            "model": {"hidden_size": 16, "num_layers": 1},
            "train": {"max_steps": 2, "batch_tokens": 256, "device": "cpu"},
        },
        output_dir=tmp_path / "lm",
    )
    values = run_file(
        folder / "pairs.jsonl",
        data={"max_length": 32},
        model={"arch": "gpt", "num_layers": 1},
        train={"init_from": str(tmp_path / "lm"), "max_steps": 1, "lr": 1e-12},
    )
    values["tokenizer"] = {"file": str(tmp_path / "lm" / "tokenizer.json")}
    run = weft.train(values, output_dir=tmp_path / "run")
    ours, theirs = run.model.encoder.stack.state_dict(), weft.load(tmp_path / "lm").model.stack.state_dict()
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, msg=name)
