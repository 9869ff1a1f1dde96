"""Averages of the weights of runs: equal to the mean, evaluated on validation data, and refused if runs do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from command_line import expect_error
from label_runs import LabelRuns
from seq2seq_runs import Seq2SeqRuns, seq2seq_run_file
from small_runs import make_text, run_file, train_here

import weft
from weft import files
from weft.cli.main import main
from weft.config import override
from weft.errors import UsageError
from weft.runs.average import share_initialization
from weft.runs.distill import student_run_file
from weft.runs.job import with_tokenizer_from
from weft.runs.load import load
from weft.tensors import read_tensors

pytestmark = pytest.mark.usefixtures("restore_openmp_env")


class Runs(Seq2SeqRuns):
    def fine_tuned(self, seed: int) -> Path:
        """A run that continues the training of the run `lstm`."""
        out, start = self.directory / f"tuned-{seed}", self.run_dir("lstm")
        if not out.exists():
            settings = [f"seed={seed}", f"train.init_from={start}", "train.lr=1e-3", "train.max_steps=5"]
            train_here(with_tokenizer_from(override(seq2seq_run_file(self.pairs), settings), start), out)
        return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def tensors(path: Path) -> dict[str, torch.Tensor]:
    return read_tensors(path / "model.safetensors")[0]


def test_weights_are_the_mean(runs: Runs, tmp_path: Path) -> None:
    paths = [runs.fine_tuned(seed) for seed in (1, 2, 3)]
    result = weft.average(paths, tmp_path / "average", device="cpu")
    members, actual = [tensors(path) for path in paths], tensors(tmp_path / "average")
    for name, weight in actual.items():
        expected = torch.stack([member[name].double() for member in members]).mean(0)
        torch.testing.assert_close(weight.double(), expected, rtol=0, atol=1e-7)
    assert result.share_initialization and result.used == result.runs == paths
    assert result.run.predict("abc").text == load(tmp_path / "average").predict("abc").text


def test_scores_are_those_of_the_validation_data(runs: Runs, tmp_path: Path) -> None:
    paths = [runs.fine_tuned(1), runs.fine_tuned(2)]
    result = weft.average(paths, tmp_path / "average", device="cpu")
    assert result.metric is not None and result.metric.name == "chrf"
    for path, score in zip([*paths, tmp_path / "average"], [*result.scores, result.score], strict=True):
        run = load(path, device="cpu")
        run.config.hide_test_data()
        assert run.evaluate()["chrf"].value == score
    assert result.is_better == (result.score is not None and result.score > max(result.scores))


def test_the_run_records_where_its_weights_come_from(runs: Runs, tmp_path: Path) -> None:
    paths = [runs.fine_tuned(1), runs.fine_tuned(2)]
    weft.average(paths, tmp_path / "average", device="cpu")
    record = files.read_json(tmp_path / "average" / "average.json")
    expected = [(str(path), files.sha256(path / "model.safetensors")) for path in paths]
    assert [(run["run"], run["sha256"]) for run in record["runs"]] == expected
    config = load(tmp_path / "average").config
    assert config.train.init_from == str(tmp_path / "average")
    assert (tmp_path / "average" / "run.toml").is_file()


@pytest.mark.slow
def test_a_greedy_soup_leaves_out_what_hurts(runs: Runs, tmp_path: Path) -> None:
    """The average with an independently trained run is worse, so that run is not used."""
    paths = [runs.run_dir("lstm-other", "seed=9", "train.max_steps=20"), runs.fine_tuned(1), runs.fine_tuned(1)]
    result = weft.average(paths, tmp_path / "greedy", greedy=True, device="cpu")
    assert result.score is not None and result.score >= max(result.scores)
    assert not result.share_initialization
    uniform = weft.average(paths, tmp_path / "uniform", device="cpu")
    assert uniform.score is not None and uniform.score < result.score
    assert len(result.used) < 3


def test_runs_of_one_seed_or_one_origin_share_their_initialization(runs: Runs) -> None:
    first, other = load(runs.run_dir("lstm")), load(runs.run_dir("lstm-other", "seed=9", "train.max_steps=20"))
    tuned = [load(runs.fine_tuned(seed)) for seed in (1, 2)]
    assert share_initialization(tuned) and share_initialization([first, *tuned]) and share_initialization([first, first])
    assert not share_initialization([first, other]) and not share_initialization([other, *tuned])


@pytest.mark.parametrize("name", ["labels-lstm", "spans-lstm"])
def test_classifiers_and_taggers(tmp_path: Path, name: str) -> None:
    label_runs = LabelRuns(tmp_path)
    for lr in (0.02, 0.01):
        train_here(label_runs.values(name, f"train.lr={lr}", "train.max_steps=10"), tmp_path / str(lr))
    result = weft.average([tmp_path / "0.02", tmp_path / "0.01"], tmp_path / "average", device="cpu")
    assert result.share_initialization and len(result.scores) == 2 and result.score is not None


def test_language_models_without_validation_data(tmp_path: Path) -> None:
    values = run_file(make_text(tmp_path / "text.txt"), "lstm", train__max_steps=3)
    del values["data"]["valid"]
    for lr in ("0.01", "0.02"):
        train_here(override(values, [f"train.lr={lr}"]), tmp_path / lr)
    paths = [tmp_path / "0.01", tmp_path / "0.02"]
    result = weft.average(paths, tmp_path / "average", device="cpu")
    assert result.score is None and result.metric is None and not result.is_better
    with pytest.raises(UsageError, match="greedy: the run has no validation data; set `data`"):
        weft.average(paths, tmp_path / "greedy", greedy=True, device="cpu")
    assert not (tmp_path / "greedy").exists()
    result = weft.average(paths, tmp_path / "greedy", greedy=True, data=tmp_path / "text.txt", device="cpu")
    assert result.metric is not None and result.metric.name == "loss"


def refused(paths: list[Path], out: Path) -> str:
    with pytest.raises(UsageError) as caught:
        weft.average(paths, out, device="cpu")
    assert not out.exists()
    return str(caught.value)


def test_differing_runs_are_refused(runs: Runs, tmp_path: Path) -> None:
    first = runs.run_dir("lstm")
    wide = runs.run_dir("lstm-wide", "model.hidden_size=16", "train.max_steps=2")
    fix = "average runs of one architecture"
    assert refused([first, wide], tmp_path / "out") == (
        f"average: {first} and {wide} have other weights: decoder.embedder.embedding.weight is 15x24 and 15x16; {fix}"
    )
    assert "have other weights: only one of them has " in refused([first, runs.run_dir("transformer")], tmp_path / "out")
    heads = [runs.run_dir(f"transformer-{count}", f"model.num_heads={count}", "train.max_steps=2") for count in (2, 4)]
    assert "have different options: model.encoder.head_dim, model.encoder.num_heads" in refused(heads, tmp_path / "out")
    lm = runs.run_dir("lm-lstm")
    assert refused([first, lm], tmp_path / "out") == f"average: {first} and {lm} have tasks 'seq2seq' and 'lm'; {fix}"


def test_other_tokenizers_are_refused(runs: Runs, tmp_path: Path) -> None:
    other = tmp_path / "other"
    train_here(seq2seq_run_file(runs.pairs, "lstm", "tokenizer.target.type=char", "train.max_steps=2"), other)
    assert "have different target tokenizers; " in refused([runs.run_dir("lstm"), other], tmp_path / "out")


def test_models_without_weights_are_refused(tmp_path: Path) -> None:
    label_runs = LabelRuns(tmp_path)
    paths = [label_runs.run_dir("labels-naive-bayes"), label_runs.run_dir("labels-logistic-regression")]
    assert "; only networks have weights" in refused(paths, tmp_path / "out")
    with pytest.raises(UsageError, match="expected two or more run directories"):
        weft.average(paths[:1], tmp_path / "out")


def test_a_run_is_not_overwritten(runs: Runs) -> None:
    with pytest.raises(UsageError, match="already contains a run"):
        weft.average([runs.fine_tuned(1), runs.fine_tuned(2)], runs.run_dir("lstm"), device="cpu")


def test_the_command(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(runs.fine_tuned(1)), str(runs.fine_tuned(2))]
    assert main(["average", *paths, "-o", str(tmp_path / "average")]) == 0
    output = capsys.readouterr()
    assert "valid chrF" in output.out and "average of 2" in output.out and "the average is " in output.err
    assert "warning" not in output.err
    other = str(runs.run_dir("lstm-other", "seed=9", "train.max_steps=20"))
    assert main(["average", paths[0], other, "-o", str(tmp_path / "two"), "--json"]) == 0
    output = capsys.readouterr()
    assert "warning: the runs did not start from the same weights" in output.err
    assert json.loads(output.out)["share_initialization"] is False
    code, message = expect_error(capsys, "average", *paths, "-o", str(tmp_path / "two"))
    assert code == 2 and "already contains a run" in message and "--output-dir" in message


def test_a_student_of_an_average_does_not_start_from_its_teacher(runs: Runs, tmp_path: Path) -> None:
    tuned = runs.fine_tuned(1)
    weft.average([tuned, runs.fine_tuned(2)], tmp_path / "average", device="cpu")
    assert "init_from" not in student_run_file([tmp_path / "average"])["train"]
    assert student_run_file([tuned])["train"]["init_from"] == str(runs.run_dir("lstm"))
