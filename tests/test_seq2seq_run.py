"""Seq2seq runs from files to outputs: training, resuming, loading, scoring, ensembles, and `weft predict`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import expect_error, set_stdin
from safetensors import safe_open
from seq2seq_runs import MODELS, Seq2SeqRuns, make_pairs, seq2seq_run_file
from small_runs import SilentCallback, run_hashes, train_here

import weft
from weft import files
from weft.cli.main import main
from weft.decode.predict import max_new_tokens_for
from weft.decode.predict_options import PredictionConfig
from weft.decode.prediction import Prediction
from weft.errors import DataError, TrainingInterrupted, UsageError
from weft.metrics.metric import metric_names
from weft.runs.job import with_tokenizer_from
from weft.runs.load import load
from weft.runs.run import AnyRun
from weft.tasks.encoder_decoder import predictor as translator
from weft.tasks.lm.task import LM
from weft.tasks.seq2seq.task import SEQ2SEQ
from weft.tasks.spec import InvalidInput
from weft.training import checkpoint

pytestmark = pytest.mark.usefixtures("restore_openmp_env")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Seq2SeqRuns(tmp_path_factory.mktemp("runs"))


every_model = pytest.mark.parametrize("name", MODELS)
WORDS = ["abc", "fade", "", "cab", "b", "  ", "deaf", "aaaaa", "ef"]


def loaded(runs: Seq2SeqRuns, name: str, *settings: str) -> AnyRun:
    return load(runs.run_dir(name, *settings), SEQ2SEQ, device="cpu")


def error_message(error: type[Exception], action: Any) -> str:
    with pytest.raises(error) as caught:
        action()
    assert type(caught.value) is error
    return str(caught.value)


def same(actual: Sequence[Prediction], expected: Sequence[Prediction]) -> None:
    assert [(item.text, item.token_ids) for item in actual] == [(item.text, item.token_ids) for item in expected]
    for value in ("score", "log_prob"):
        assert [getattr(item, value) for item in actual] == pytest.approx([getattr(item, value) for item in expected], abs=1e-4)


def records(folder: Path, name: str) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl that contain `name`."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if name in line]


# ---- training


@every_model
def test_every_architecture_trains_and_loads(runs, name):
    folder = runs.run_dir(name)
    run = weft.load(folder, device="cpu")
    assert run.task == "seq2seq" and not run.model.training
    joint = name == "joint"
    tokenizer_files = {"tokenizer.json"} if joint else {"tokenizer.source.json", "tokenizer.target.json"}
    assert {path.name for path in folder.glob("tokenizer*")} == tokenizer_files
    assert run.vocabulary.is_shared == joint
    assert run.model.vocabulary == run.vocabulary.target.hash
    valid = records(folder, "valid_loss")
    assert [line["step"] for line in valid] == [10, 20]
    assert set(valid[0]) == {
        "step",
        "crc32",
        *(f"valid_{score}" for score in metric_names(run.spec.validation_suites)),
    }
    assert valid[-1]["valid_loss"] < valid[0]["valid_loss"]
    info = run.info()
    assert (info["task"], info["arch"], info["path"]) == ("seq2seq", MODELS[name]["arch"], str(folder))
    assert info["vocabulary"] == {"source": run.vocabulary.source.vocab_size, "target": run.vocabulary.target.vocab_size}
    assert info["parameters"] == sum(weight.numel() for weight in run.model.parameters())
    assert info["config"]["model"]["arch"] == MODELS[name]["arch"]


def test_a_shared_and_tied_embedding_is_saved_once_and_loaded_tied(runs):
    run = loaded(runs, "joint")
    with safe_open(run.directory.weights, "pt") as tensors:
        saved = {"encoder.embedder.embedding.weight", "decoder.embedder.embedding.weight", "head.head.weight"} & set(
            tensors.keys()
        )
    assert len(saved) == 1
    assert run.model.head.head.weight is run.model.encoder.embedder.embedding.weight


@pytest.mark.parametrize(("name", "stop"), [("lstm", 7), ("bahdanau", 1), ("transformer", 8), ("joint", 3)])
def test_a_resumed_run_equals_an_uninterrupted_run(tmp_path, name, stop):
    pairs = make_pairs(tmp_path / "pairs.tsv", 80)
    settings = (
        "train.max_steps=10",
        "train.num_validations=1",
        "model.dropout=0.2",
        "train.batch_tokens=100",
        "train.label_smoothing=0.1",
    )
    values = seq2seq_run_file(pairs, name, *settings)
    train_here(values, tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        train_here(values, tmp_path / "cut", SilentCallback(stop_at=stop))
    train_here(values, tmp_path / "cut")
    assert run_hashes(tmp_path / "cut") == run_hashes(tmp_path / "whole")


def test_an_untrained_run_is_reported_before_reading_input(tmp_path, capsys, monkeypatch):
    values, folder = seq2seq_run_file(make_pairs(tmp_path / "pairs.tsv", 80), "lstm", "train.max_steps=10"), tmp_path / "run"
    with pytest.raises(TrainingInterrupted):
        train_here(values, folder, SilentCallback(stop_at=1))
    assert main(["info", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "\nTask       seq2seq\nModel      lstm, not trained yet\n" in out
    assert " (not finished)\n" in out and "\nTraining   1 of 10 steps, " in out

    class Unread:
        buffer = property(lambda self: pytest.fail("standard input was read"))

    monkeypatch.setattr(sys, "stdin", Unread())
    for words in (["predict"], ["score"], ["explain"], ["predict", "--ensemble", str(folder)]):
        assert main([words[0], str(folder), *words[1:]]) == 4
        assert capsys.readouterr().err == (f"weft: error: {folder}: not trained yet; run weft train\n")


@pytest.mark.parametrize("monitor", ["exact_match", "token_error_rate", None])
def test_the_monitored_metric_selects_the_weights(runs, monitor):
    settings = [
        "train.num_validations=6",
        "train.max_steps=24",
        "train.lr=0.02",
        "model.hidden_size=12",
        "train.ema_decay=0",
    ]
    folder = runs.run_dir(f"lstm-{monitor}", *settings, *([] if monitor is None else [f"train.monitor={monitor}"]))
    metric = monitor or "loss"
    values = [(line["step"], line[f"valid_{metric}"]) for line in records(folder, f"valid_{metric}")]
    assert len(values) == 6
    best = (max if metric == "exact_match" else min)(value for _, value in values)
    cursor = files.read_json(folder / "checkpoints" / checkpoint.names(folder)[-1] / "train_state.json")
    assert (cursor["best"], cursor["best_step"]) == (best, next(step for step, value in values if value == best))
    # the saved weights are those of the best step
    run, valid_file = weft.load(folder, device="cpu"), folder.parent / "valid.tsv"
    valid_file.write_text("\n".join(runs.pairs.read_text().splitlines()[192:216]) + "\n")
    actual = {score.name: score.value for score in run.evaluate(valid_file, PredictionConfig(beam_size=1))}
    assert actual[metric] == pytest.approx(best, abs=1e-4)


def test_the_choice_of_monitor_matters(runs):
    """The previous test is meaningless if all metrics agree."""
    best = {}
    for monitor in ("exact_match", "token_error_rate", None):
        folder = runs.directory / f"lstm-{monitor}"
        best[monitor] = files.read_json(folder / "checkpoints" / checkpoint.names(folder)[-1] / "train_state.json")["best_step"]
    assert len(set(best.values())) > 1


def test_training_reaches_correct_outputs(tmp_path):
    pairs = make_pairs(tmp_path / "pairs.tsv", 600)
    settings = (
        "train.max_steps=150",
        "model.hidden_size=48",
        "model.dropout=0.0",
        "train.ema_decay=0.9",
        "train.num_validations=1",
    )
    train_here(seq2seq_run_file(pairs, "lstm", *settings), tmp_path / "run")
    run = load(tmp_path / "run", SEQ2SEQ, device="cpu")
    assert [best.text for best in run.predict(["abc", "fade", "cab"])] == ["A BB C", "F A DD E", "C A BB"]
    assert {score.name: score.value for score in run.evaluate()}["exact_match"] >= 90


def test_a_source_beyond_learned_positions_is_rejected_before_training(tmp_path):
    pairs = make_pairs(tmp_path / "pairs.tsv", 20)
    text = pairs.read_text().splitlines()
    pairs.write_text("\n".join([*text[:3], f"{'a' * 16}\tA", *text[3:]]) + "\n")
    assert error_message(DataError, lambda: train_here(seq2seq_run_file(pairs, "learned"), tmp_path / "run")) == (
        f"{pairs}:4: source has 17 tokens, more than data.max_length (16); increase it or set data.truncate = true"
    )
    train_here(seq2seq_run_file(pairs, "learned", "data.truncate=true", "train.max_steps=2"), tmp_path / "cut")


# ---- predicting


@every_model
def test_empty_lines_stay_empty_and_all_lines_keep_their_order(runs, name):
    run = loaded(runs, name)
    predictions = run.predict(WORDS, max_new_tokens=9)
    assert len(predictions) == len(WORDS)
    for word, best in zip(WORDS, predictions, strict=True):
        if not word.strip():
            assert best == Prediction("", [], 0.0, 0.0)
        else:
            same([best], run.predict(word, max_new_tokens=9).ranked())
            assert best.text == run.vocabulary.target.decode(best.token_ids)
    assert run.predict([]) == [] and run.predict(["", " "]) == [Prediction("", [], 0.0, 0.0)] * 2


@every_model
def test_a_batch_of_32_words_equals_one_at_a_time(runs, name):
    run, words = loaded(runs, name), [line.split("\t")[0] for line in runs.pairs.read_text().splitlines()[:32]]
    together = run.predict(words, beam_size=4, n_best=2, max_new_tokens=9)
    for index in range(0, 32, 9):
        same(together[index].ranked(), run.predict(words[index], beam_size=4, n_best=2, max_new_tokens=9).ranked())


@every_model
def test_scoring_again_gives_the_same_number_and_a_prefix_is_not_counted(runs, name):
    run, words = loaded(runs, name), ["abc", "fade", "cab", "b"]
    end, prefix = run.vocabulary.target.eos_id, "A BB"
    for prefixes in (None, [prefix] * 4):
        predictions = run.predict(words, beam_size=5, n_best=3, length_penalty=0.6, max_new_tokens=12, target_prefixes=prefixes)
        flat = [
            (word, prediction)
            for word, best in zip(words, predictions, strict=True)
            for prediction in best.ranked()
            if prediction.token_ids[-1] == end
        ]
        assert flat  # outputs cut by the limit have no </s>, which scoring adds
        again = run.score([(word, prediction.text) for word, prediction in flat])
        skipped = 0 if prefixes is None else len(run.vocabulary.target.encode(prefix))
        for (_, prediction), score in zip(flat, again, strict=True):
            assert prediction.text.startswith(prefix if prefixes else "")
            assert prediction.log_prob == pytest.approx(sum(score.token_log_probs[skipped:]), abs=1e-4)
            assert prediction.score == pytest.approx(prediction.log_prob / len(prediction.token_ids) ** 0.6, abs=1e-4)


def test_options_are_passed_as_an_object_or_by_name(runs):
    run = loaded(runs, "lstm")
    assert run.predict("abc", beam_size=3, n_best=2) == run.predict("abc", PredictionConfig(beam_size=3, n_best=2))
    assert len(run.predict("abc", num_samples=3).ranked()) == 3
    assert error_message(UsageError, lambda: run.predict("abc", PredictionConfig(), beam_size=3)) == (
        "options: are given as an object and by name (beam_size); use one of the two"
    )
    assert error_message(UsageError, lambda: run.predict("abc", bem=3)).startswith(
        "bem: unknown option; did you mean 'beam_size'?"
    )
    assert error_message(UsageError, lambda: run.predict(["a", "b"], target_prefixes=["A"])) == (
        "target_prefixes: expected one per line (2), got 1"
    )
    assert error_message(UsageError, lambda: run.predict(["a", "b"], target_prefixes=[])) == (
        "target_prefixes: expected one per line (2), got 0"
    )
    assert error_message(UsageError, lambda: run.predict(["a"], target_prefix="A", target_prefixes=["A"])) == (
        "target_prefix: cannot be combined with `target_prefixes`; set only one of them"
    )
    assert run.predict(["a", "b"], target_prefix="A") == run.predict(["a", "b"], target_prefixes=["A", "A"])
    message = "layer: requires `return_alignments`"
    assert error_message(UsageError, lambda: run.predict("a", layer=1)) == message
    calls: list[tuple[int, int]] = []
    run.predict(["a", "", "b"], progress=lambda what, *done: calls.append(done))
    assert calls == [(2, 2)]


def test_invalid_text_is_rejected(runs):
    run = loaded(runs, "lstm")
    assert error_message(DataError, lambda: run.predict(["a", "b\0"])) == ("line 2: NUL at character 1; is this binary data?")
    half = "lone surrogate U+D800 at character 0; use whole characters"
    assert error_message(DataError, lambda: run.predict("a", target_prefixes=["\ud800"])) == f"target prefix 1: {half}"
    assert error_message(DataError, lambda: run.score([("a", "A"), ("b", "\ud800")])) == f"line 2: {half}"


def test_a_too_long_line_is_rejected_with_its_number_or_truncated(runs):
    run, long = loaded(runs, "learned"), "abcde" * 4
    message = "line 3: 21 tokens exceed the model's limit of 16; shorten it or set `truncate`"
    assert error_message(DataError, lambda: run.predict(["ab", "c", long, long + "a"])) == message
    assert error_message(DataError, lambda: run.score([("ab", "A"), ("c", "C"), (long, "A")])) == message
    assert run.predictor.invalid_inputs(["ab", "c", long]) == {2: message.removeprefix("line 3: ")}
    assert run.predictor.invalid_inputs([long], truncate=True) == {}
    same(run.predict(long, truncate=True).ranked(), run.predict(long[:15]).ranked())
    truncated, full = run.score([(long, "A B")], truncate=True)[0], run.score([(long[:15], "A B")])[0]
    assert truncated.token_log_probs == pytest.approx(full.token_log_probs, abs=1e-5)
    assert error_message(DataError, lambda: run.score([("ab", "A"), ("ab", "A " * 16)])) == (
        "line 2: 17 target tokens exceed the model's limit of 16; shorten it"
    )
    assert len(run.score([("ab", "A " * 15)])[0].tokens) == 16


def test_a_target_prefix_with_unknown_tokens_is_rejected(runs):
    run = loaded(runs, "lstm")
    assert error_message(UsageError, lambda: run.predict(["abc", "b"], target_prefixes=["A", "A ZZ"])) == (
        "target_prefix: 'A ZZ' contains a token that is not in the target vocabulary"
    )


def test_banned_tokens_are_not_generated(runs):
    run = loaded(runs, "lstm")
    generated = {token for best in run.predict(["abc", "fade"]) for token in best.text.split()}
    remaining = {token for best in run.predict(["abc", "fade"], banned_tokens=sorted(generated)) for token in best.text.split()}
    assert generated and not generated & remaining
    assert error_message(UsageError, lambda: run.predict("abc", banned_tokens=["A BB"])) == (
        "banned_tokens: 'A BB' is 2 tokens; ban single tokens"
    )


# ---- scoring and evaluating


@every_model
def test_a_target_is_scored_token_by_token(runs, name):
    run = loaded(runs, name)
    pairs = [("abc", "A BB C"), ("f", ""), ("fade", "F A DD E")] * 30  # more than one batch
    scores = run.score(pairs)
    assert [(item.source, item.target) for item in scores] == pairs
    for (source, target), item in zip(pairs[:3], scores[:3], strict=True):
        ids = [*run.vocabulary.target.encode(target).tolist(), run.vocabulary.target.eos_id]
        assert item.tokens == [run.vocabulary.target.token_text(token) for token in ids]
        assert item.log_prob == pytest.approx(sum(item.token_log_probs)) and all(value <= 0 for value in item.token_log_probs)
        assert item.perplexity == pytest.approx(math.exp(-item.log_prob / len(ids)))
        tokens, state = [run.vocabulary.target.bos_id, *ids], None
        with torch.no_grad():
            ends = torch.tensor([[*run.vocabulary.source.encode(source).tolist(), run.vocabulary.source.eos_id]])
            state = run.model.encode(ends, torch.ones_like(ends, dtype=torch.bool))
            for index in range(len(ids)):
                read = torch.tensor([tokens[index]])
                log_probs, state = run.model.start(read[None], None, state) if index == 0 else run.model.step(read, state)
                assert item.token_log_probs[index] == pytest.approx(log_probs[0, ids[index]].item(), abs=1e-4)
    for item, again in zip(scores[:3], scores[-3:], strict=True):
        assert item.token_log_probs == pytest.approx(again.token_log_probs, abs=1e-5)
    assert run.score([]) == []


@every_model
def test_evaluate_counts_predictions(runs, name):
    run = loaded(runs, name)
    pairs = [tuple(line.split("\t")) for line in runs.pairs.read_text().splitlines()[216:]]
    options = PredictionConfig(beam_size=2, max_new_tokens=9)
    scores = {score.name: score for score in run.evaluate(None, options)}
    written = [best.text.split() for best in run.predict([source for source, _ in pairs], options)]
    exact = np.mean([prediction == target.split() for prediction, (_, target) in zip(written, pairs, strict=True)])
    assert scores["exact_match"].value == pytest.approx(100 * exact)
    assert "beam:2/alpha:1" in scores["exact_match"].signature
    scored = run.score([(source, target) for source, target in pairs])
    nats = -sum(one.log_prob for one in scored) / sum(len(one.tokens) for one in scored)
    assert scores["loss"].value == pytest.approx(nats)
    (runs.directory / "test.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    evaluation = run.evaluate([str(runs.directory / "test.tsv")], options)
    again, items = list(evaluation), evaluation.items
    assert [(one.name, one.value) for one in again] == [(one.name, pytest.approx(one.value)) for one in scores.values()]
    assert [line.split() for line in items.outputs or []] == written


def test_evaluate_without_data_is_rejected(tmp_path):
    pairs = make_pairs(tmp_path / "pairs.tsv", 30)
    values = seq2seq_run_file(pairs, "sutskever", "train.max_steps=1")
    values["data"] = {"train": str(pairs), "max_length": 16}
    run = load(train_here(values, tmp_path / "run").path, SEQ2SEQ, device="cpu")
    assert error_message(UsageError, run.evaluate) == (
        f"{tmp_path / 'run'}: the run has no test or validation data; set `data`"
    )


def test_a_too_long_source_is_rejected_in_evaluation_or_truncated(runs, tmp_path):
    run, path = loaded(runs, "lstm"), tmp_path / "long.tsv"
    path.write_text(f"abc\tA BB C\n{'ab' * 10}\tA BB\n")
    assert error_message(DataError, lambda: run.evaluate(path).scores).startswith(
        f"{path}:2: 21 tokens exceed the model's limit of 16; "
    )
    scores = {score.name: score.value for score in run.evaluate(path, PredictionConfig(truncate=True))}
    assert math.isfinite(scores["loss"])


# ---- several models as one


def test_ensemble_averages_the_probabilities_of_its_members(runs):
    names = ["lstm", "transformer", "sutskever"]
    folders = [runs.run_dir(name) for name in names]
    ensemble, pairs = weft.ensemble(folders, device="cpu"), [("abc", "A BB C"), ("fade", "F A DD E")]
    alone = [[pair_score.token_log_probs for pair_score in weft.load(folder, device="cpu").score(pairs)] for folder in folders]
    for weights in (None, [0.5, 0.25, 0.25]):
        ensemble = weft.ensemble(folders, weights=weights, device="cpu")
        shares = np.array(weights or [1 / 3] * 3)
        for number, pair_score in enumerate(ensemble.score(pairs)):
            mean = np.log(np.einsum("m,mt->t", shares, np.exp([member[number] for member in alone])))
            assert pair_score.token_log_probs == pytest.approx(mean.tolist(), abs=1e-4)
        for word, best in zip(["abc", "fade"], ensemble.predict(["abc", "fade"], beam_size=4), strict=True):
            again = ensemble.score((word, best.text))
            assert best.log_prob == pytest.approx(again.log_prob, abs=1e-4)
    assert {score.name for score in ensemble.evaluate(None, PredictionConfig(beam_size=1))} >= {
        "exact_match",
        "loss",
    }
    assert error_message(UsageError, lambda: weft.ensemble(folders, weights=[0.5, 0.5])) == (
        "ensemble: 3 models, but 2 weights"
    )
    assert error_message(UsageError, lambda: weft.ensemble(str(folders[0]))) == (
        "ensemble: expected a list of run directories, got one path; use [path]"
    )
    assert error_message(UsageError, lambda: weft.ensemble(folders[:2], weights=[0.9, 0.9])) == (
        "ensemble: the weights of a linear ensemble must sum to 1, got 1.8"
    )


def test_an_ensemble_of_one_run_equals_the_run(runs):
    run, ensemble = loaded(runs, "lstm"), weft.ensemble([runs.run_dir("lstm")], weights=[1.0], device="cpu")
    assert ensemble.predict(WORDS) == run.predict(WORDS)
    assert error_message(UsageError, lambda: weft.ensemble([runs.run_dir("lstm")], weights=[0.5, 0.5])) == (
        "ensemble: 1 models, but 2 weights"
    )
    assert error_message(UsageError, lambda: weft.ensemble([runs.run_dir("lstm")], weights="fitted")) == (
        "weights: 'fitted' is not available for task 'seq2seq'; set a weight for each run"
    )
    assert error_message(UsageError, lambda: weft.load(runs.run_dir("lstm"), cache=True)) == (
        "cache: not available for task 'seq2seq'"
    )
    assert error_message(UsageError, lambda: weft.ensemble([])) == "ensemble: no runs; pass at least one run directory"


def test_ensemble_members_may_have_different_source_tokenizers(runs):
    values = with_tokenizer_from(seq2seq_run_file(runs.pairs, "transformer", "train.max_steps=4"), runs.run_dir("lstm"))
    values["tokenizer"]["source"] = {"type": "bpe", "vocab_size": 270}
    other = runs.directory / "pieces"
    train_here(values, other)
    ensemble, pairs = weft.ensemble([runs.run_dir("lstm"), other], device="cpu"), [("abcab", "A BB C A BB")]
    sizes = [len(member.sources(["abcab"])[0]) for member in ensemble.predictor.members]
    assert sizes[0] == 6 and sizes[1] < 6
    alone = [weft.load(folder, device="cpu").score(pairs)[0].token_log_probs for folder in (runs.run_dir("lstm"), other)]
    assert ensemble.score(pairs)[0].token_log_probs == pytest.approx(np.log(np.exp(alone).mean(0)).tolist(), abs=1e-4)
    # the member that cannot read a line reports it
    assert list(ensemble.predictor.invalid_inputs(["ab" * 9])) == [0]


def test_ensemble_sums_parameters_and_uses_the_lowest_output_limit(runs):
    values = with_tokenizer_from(
        seq2seq_run_file(runs.pairs, "learned", "train.max_steps=2", "data.max_length=9"), runs.run_dir("lstm")
    )
    train_here(values, short := runs.directory / "short")
    lstm, lm = runs.run_dir("lstm"), runs.run_dir("lm-ngram")
    alone = {folder: weft.load(folder, device="cpu").info()["parameters"] for folder in (lstm, short, lm)}
    for folders in ([lstm, short], [short, lstm]):  # in any order
        ensemble = weft.ensemble(folders, device="cpu")
        assert ensemble.info()["parameters"] == alone[lstm] + alone[short]
        assert ensemble.predictor.invalid_inputs(["abcdef" * 3]) == {
            0: "19 tokens exceed the model's limit of 9; shorten it or set `truncate`"
        }
        assert ensemble.predictor.invalid_pairs([("abc", "A " * 12)]) == {
            0: "13 target tokens exceed the model's limit of 9; shorten it"
        }
    fused = weft.ensemble([lstm], lm=lm, device="cpu")
    assert fused.info()["parameters"] == alone[lstm] + alone[lm]


def test_output_limit_of_an_ensemble_does_not_depend_on_member_order(runs, monkeypatch):
    """The tokens of a line are counted by the member with the fewest."""
    values = with_tokenizer_from(
        seq2seq_run_file(runs.pairs, "luong", "train.max_steps=2", "data.max_length=200"), runs.run_dir("lstm")
    )
    train_here(values, letters := runs.directory / "letters")
    values["tokenizer"]["source"] = {"type": "bpe", "vocab_size": 270}
    train_here(values, pieces := runs.directory / "pieces-long")
    line = "abcdef" * 9
    limits: list[int] = []
    monkeypatch.setattr(
        translator, "search", lambda request, options, progress: limits.append(max_new_tokens_for(request, 0, options)) or []
    )
    for folders in ([letters, pieces], [pieces, letters]):
        ensemble = weft.ensemble(folders, device="cpu")
        fewest = min(len(member.sources([line])[0]) for member in ensemble.predictor.members)
        assert fewest < 55 == max(len(member.sources([line])[0]) for member in ensemble.predictor.members)
        with pytest.raises(ValueError, match="zip"):  # no result
            ensemble.predict([line])
    assert limits == [2 * (-(-fewest // 16) * 16) + 32] * 2


def test_an_ensemble_with_different_target_vocabularies_is_rejected(runs):
    first, second = runs.run_dir("lstm"), runs.run_dir("joint")
    hashes = [weft.load(folder).vocabulary.target.hash[:8] for folder in (first, second)]
    assert error_message(UsageError, lambda: weft.ensemble([first, second], device="cpu")) == (
        f"ensemble: models 1 and 2 have different tokenizers ({hashes[0]}, {hashes[1]}); train both with `tokenizer_from`"
    )


@pytest.mark.parametrize("kind", ["ngram", "gru"])
def test_shallow_fusion_adds_lm_log_probs(runs, kind):
    folders, lm = [runs.run_dir("lstm"), runs.run_dir("transformer")], runs.run_dir(f"lm-{kind}")
    pairs = [("abc", "A BB C"), ("fade", "F A DD E"), ("b", "")]
    helper = [pair_score.token_log_probs for pair_score in weft.load(lm, device="cpu").score([target for _, target in pairs])]
    for members in (folders[:1], folders):
        plain = weft.ensemble(members, device="cpu").score(pairs)
        fused = weft.ensemble(members, lm=lm, lm_weight=0.7, device="cpu")
        for pair_score, without, lm_score in zip(fused.score(pairs), plain, helper, strict=True):
            expected = np.array(without.token_log_probs) + 0.7 * np.array(lm_score)
            assert pair_score.token_log_probs == pytest.approx(expected.tolist(), abs=1e-4)
        for best in fused.predict(["abc", "", "fade"], n_best=2):
            for pair_score in best.ranked():
                assert pair_score.score == pytest.approx(pair_score.log_prob / max(1, len(pair_score.token_ids)), abs=1e-4)
        best = fused.predict("abc")
        assert best.log_prob == pytest.approx(fused.score([("abc", best.text)])[0].log_prob, abs=1e-4)


def test_incompatible_combinations_are_rejected(runs):
    lstm, lm = runs.run_dir("lstm"), runs.run_dir("lm-ngram")
    assert error_message(UsageError, lambda: weft.ensemble([lstm, lm])) == (
        f"ensemble: {lstm} has task 'seq2seq', {lm} has task 'lm'"
    )
    for wrong in (lstm, runs.run_dir("lm-gru-running", "data.read_as=stream", "data.context_length=8")):
        assert error_message(UsageError, lambda wrong=wrong: weft.ensemble([lstm], lm=wrong)) == (
            f"lm: {wrong} is not a language model of lines (task 'lm' with data.read_as = 'lines')"
        )
    assert error_message(UsageError, lambda: weft.ensemble([lstm], lm=lm, lm_weight=0.0)) == (
        "lm_weight: must be above 0, got 0; leave out `lm` to predict without a language model"
    )
    joint = runs.run_dir("joint")
    hashes = [weft.load(folder).model.vocabulary[:8] for folder in (joint, lm)]
    assert error_message(UsageError, lambda: weft.ensemble([joint], lm=lm)) == (
        f"ensemble: models 1 and 2 have different tokenizers ({hashes[0]}, {hashes[1]}); train both with `tokenizer_from`"
    )


def test_loading_a_run_as_another_task_is_rejected(runs):
    lstm, lm = runs.run_dir("lstm"), runs.run_dir("lm-ngram")
    assert error_message(UsageError, lambda: load(lstm, LM)) == (f"{lstm}: is a seq2seq model; use weft predict")
    assert error_message(UsageError, lambda: load(lm, SEQ2SEQ)) == (f"{lm}: is a language model; use weft generate")


# ---- where predictions looked


@pytest.mark.parametrize("name", ["lstm", "luong", "bahdanau", "transformer", "joint"])
@pytest.mark.parametrize(
    "options", [{"beam_size": 4}, {"beam_size": 1}, {"num_samples": 1, "temperature": 0.5}], ids=["beam", "greedy", "sampled"]
)
def test_alignment_covers_the_prediction_with_its_prefix(runs, name, options):
    run, words = loaded(runs, name), ["abc", "fade", "b"]
    outputs = run.predict(words, target_prefixes=["A", "", "B"], max_new_tokens=6, **options)
    for word, output, item in zip(words, outputs, run.predictor.align(words, outputs), strict=True):
        assert item.source_tokens == [*word, "</s>"]
        assert item.target_tokens == [run.vocabulary.target.token_text(token) for token in [*output.prefix, *output.token_ids]]
        assert item.weights.shape == (len(item.target_tokens), len(item.source_tokens))
        np.testing.assert_allclose(item.weights.sum(1), 1.0, atol=1e-5)
    again = run.predictor.align(words[1:2], outputs[1:2])[0]  # not padded
    np.testing.assert_allclose(again.weights, run.predictor.align(words, outputs)[1].weights, atol=1e-5)


def test_alignments_of_several_batches(runs):
    run, words = loaded(runs, "bahdanau"), ["abc", "fade", "b"] * 30
    actual = run.predictor.align(words, run.predict(words, beam_size=1, max_new_tokens=6))
    assert len(actual) == 90
    np.testing.assert_allclose(actual[0].weights, actual[87].weights, atol=1e-5)
    assert run.predictor.align([], []) == []


def test_ensembles_have_no_alignment(runs):
    ensemble = weft.ensemble([runs.run_dir("lstm"), runs.run_dir("transformer")], device="cpu")
    fused = weft.ensemble([runs.run_dir("lstm")], lm=runs.run_dir("lm-ngram"), device="cpu")
    for run in (ensemble, fused):
        message = error_message(UsageError, lambda run=run: run.predictor.align(["a"], [Prediction("A", [3, 2], 0.0, 0.0)]))
        assert message == "return_alignments: not available for several models; align with one run"


# ---- weft predict


def predicted(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str], str]:
    """Exit code, lines of standard output, standard error."""
    code = main(["predict", *words, "--device", "cpu"])
    captured = capsys.readouterr()
    assert captured.out.endswith("\n") or not captured.out
    return code, captured.out.split("\n")[:-1], captured.err


def test_predict_command_gives_one_line_per_line(runs, capsys, monkeypatch):
    folder, run = str(runs.run_dir("lstm")), loaded(runs, "lstm")
    expected = [best.text for best in run.predict(["abc", "", "fade"])]
    set_stdin(monkeypatch, b"abc\n\nfade\n")
    assert predicted(capsys, folder) == (0, expected, "")
    assert predicted(capsys, folder, "abc") == (0, expected[:1], "")
    (runs.directory / "words.txt").write_text("abc\r\n\nfade")
    assert predicted(capsys, folder, "--input", str(runs.directory / "words.txt")) == (0, expected, "")
    set_stdin(monkeypatch, b"")
    assert predicted(capsys, folder) == (0, [], "")
    greedy = [best.text for best in run.predict(["abc", "fade"], beam_size=1, banned_tokens=["A"], max_new_tokens=4)]
    set_stdin(monkeypatch, b"abc\nfade\n")
    assert predicted(capsys, folder, "--beam-size", "1", "--ban-token", "A", "--max-new-tokens", "4") == (0, greedy, "")
    prefixed = run.predict("abc", target_prefixes=["CC"]).text
    assert predicted(capsys, folder, "abc", "--target-prefix", "CC") == (0, [prefixed], "") and prefixed.startswith("CC")


def test_n_best_and_samples_have_line_number_and_score(runs, capsys, monkeypatch):
    folder, run = str(runs.run_dir("lstm")), loaded(runs, "lstm")
    set_stdin(monkeypatch, b"abc\nfade\n")
    code, lines, _ = predicted(capsys, folder, "--n-best", "2", "--length-penalty", "0.5")
    predictions = run.predict(["abc", "fade"], n_best=2, length_penalty=0.5)
    expected = [
        f"{number}\t{prediction.score:.4f}\t{prediction.text}"
        for number, best in enumerate(predictions, 1)
        for prediction in best.ranked()
    ]
    assert (code, lines) == (0, expected)
    code, lines, _ = predicted(capsys, folder, "abc", "--num-samples", "3", "--seed", "4")
    assert [line.split("\t")[2] for line in lines] == [
        prediction.text for prediction in run.predict("abc", num_samples=3, seed=4).ranked()
    ]


def test_samples_depend_on_the_line_number(runs, capsys, monkeypatch):
    folder, run = str(runs.run_dir("lstm")), loaded(runs, "lstm")
    drawn = [
        [prediction.text for prediction in samples.ranked()]
        for samples in run.predict(["abc", "fade", "abc", "bad"], num_samples=2, seed=4)
    ]
    assert drawn[0] != drawn[2]
    again = run.predict(["abc", "bad"], num_samples=2, seed=4, numbers=[3, 4])
    assert [[prediction.text for prediction in samples.ranked()] for samples in again] == drawn[2:]
    message = "numbers: expected one per line (2), got 1"
    assert error_message(UsageError, lambda: run.predict(["a", "b"], numbers=[1])) == message
    # invalid lines, too long lines and batch boundaries do not change the samples of other lines
    monkeypatch.setattr("weft.tasks.encoder_decoder.lines.OutputLines.batch_size", 3)
    set_stdin(monkeypatch, b"\xff\n" + b"ab" * 10 + b"\nabc\nbad\n")
    code, lines, _ = predicted(capsys, folder, "--num-samples", "2", "--seed", "4")
    rows = [line.split("\t") for line in lines]
    assert (code, [row[0] for row in rows]) == (3, ["1", "2", "3", "3", "4", "4"])
    assert [row[2] for row in rows] == ["", "", *drawn[2], *drawn[3]]


def test_json_is_one_object_per_line(runs, capsys, monkeypatch):
    folder, run = str(runs.run_dir("lstm")), loaded(runs, "lstm")
    set_stdin(monkeypatch, b"abc\n\n")
    code, lines, _ = predicted(capsys, folder, "--json", "--n-best", "2")
    predictions = run.predict("abc", n_best=2).ranked()
    assert code == 0
    first, second = (json.loads(line) for line in lines)
    assert first == {
        "source": "abc",
        "predictions": [
            {
                "text": item.text,
                "score": item.score,
                "log_prob": item.log_prob,
                "tokens": len(item.token_ids),
                "truncated": item.truncated,
            }
            for item in predictions
        ],
    }
    assert second == {
        "source": "",
        "predictions": [{"text": "", "score": 0.0, "log_prob": 0.0, "tokens": 0, "truncated": False}],
    }


def test_an_invalid_line_gives_an_empty_line_and_others_are_answered(runs, capsys, monkeypatch):
    folder, run = runs.run_dir("lstm"), loaded(runs, "lstm")
    expected = [best.text for best in run.predict(["abc", "fade"])]
    fault = "21 tokens exceed the model's limit of 16; shorten it or set --truncate"
    set_stdin(monkeypatch, b"abc\n" + b"ab" * 10 + b"\nfade\n")
    assert predicted(capsys, str(folder)) == (3, [expected[0], "", expected[1]], f"weft: warning: line 2: {fault}; skipped\n")
    set_stdin(monkeypatch, b"abc\n" + b"ab" * 10 + b"\n")
    code, lines, _ = predicted(capsys, str(folder), "--json")
    assert code == 3
    assert json.loads(lines[1]) == {"source": "ab" * 10, "predictions": [], "error": fault}
    # line numbers continue over batches
    monkeypatch.setattr("weft.tasks.encoder_decoder.lines.OutputLines.batch_size", 2)
    set_stdin(monkeypatch, b"abc\nfade\n" + b"ab" * 10 + b"\nabc\n")
    code, lines, output = predicted(capsys, str(folder))
    assert (code, lines, output) == (3, [*expected, "", expected[0]], f"weft: warning: line 3: {fault}; skipped\n")
    set_stdin(monkeypatch, b"ab" * 10 + b"\n")
    assert predicted(capsys, str(folder), "--truncate") == (0, [run.predict(("ab" * 10)[:15]).text], "")


def test_invalid_pairs_are_reported_among_the_others(runs):
    run = loaded(runs, "lstm")
    first, long, last = run.try_score([("abc", "A"), ("ab" * 10, "A"), ("fade", "A BB")])
    assert [first, last] == run.score([("abc", "A"), ("fade", "A BB")])
    reason = "21 tokens exceed the model's limit of 16; shorten it or set `truncate`"
    assert long == InvalidInput(reason)
    assert error_message(DataError, lambda: run.score([("abc", "A"), ("ab" * 10, "A")])) == f"line 2: {reason}"


def test_ensemble_and_shallow_fusion_on_the_command_line(runs, capsys):
    lstm, other, lm = (str(runs.run_dir(name)) for name in ("lstm", "transformer", "lm-ngram"))
    ensemble = weft.ensemble([lstm, other], lm=lm, lm_weight=0.5, device="cpu").predict("abc").text
    assert predicted(capsys, lstm, "abc", "--ensemble", other, "--lm", lm, "--lm-weight", "0.5") == (0, [ensemble], "")
    ensemble = weft.ensemble([lstm, other], device="cpu").predict("abc").text
    assert predicted(capsys, lstm, "abc", "--ensemble", other) == (0, [ensemble], "")


def test_alignments_are_written_for_each_line(runs, capsys, monkeypatch, tmp_path):
    folder, directory = str(runs.run_dir("bahdanau")), tmp_path / "looks" / "here"
    set_stdin(monkeypatch, b"abc\n\n" + b"ab" * 10 + b"\nfade\n")
    code, lines, _ = predicted(capsys, folder, "--save-alignments", str(directory))
    assert (code, len(lines)) == (3, 4)
    assert sorted(path.name for path in directory.iterdir()) == ["000001.json", "000001.svg", "000004.json", "000004.svg"]
    actual = files.read_json(directory / "000004.json")
    assert (actual["source"], actual["text"]) == (["f", "a", "d", "e", "</s>"], lines[3])
    assert " ".join(actual["target"]).removesuffix(" </s>") == lines[3]
    assert np.array(actual["weights"]).shape == (len(actual["target"]), 5)
    assert np.array(actual["weights"]).sum(1) == pytest.approx(np.ones(len(actual["target"])), abs=1e-3)
    assert (directory / "000001.svg").read_text().startswith("<svg")


def test_command_errors(runs, capsys, tmp_path):
    lstm, lm, blind = (str(runs.run_dir(name)) for name in ("lstm", "lm-ngram", "sutskever"))
    some = tmp_path / "some.txt"
    some.write_text("abc\n")
    looks = ("--save-alignments", str(tmp_path / "looks"))
    for words, message in [
        ((lstm, "abc", "--save-alignments", str(some)), f"--save-alignments: {some} is a file; name a directory"),
        ((lstm, "abc", "--save-alignments", str(some / "x")), f"--save-alignments: {some} is a file; name a directory"),
        ((lm, "abc"), f"{lm}: is a language model; use weft generate"),
        ((lstm, "abc", "--input", str(some)), "--input: cannot be combined with a text argument"),
        ((lstm, "abc", "--layer", "1"), "--layer: requires --save-alignments"),
        ((lstm, "abc", "--head", "1"), "--head: requires --save-alignments"),
        ((lstm, "abc", "--n-best", "9"), "--n-best: 9 is more than --beam-size (5)"),
        ((lstm, "abc", "--ban-token", "A BB"), "--ban-token: 'A BB' is 2 tokens; ban single tokens"),
        ((lstm, "abc", "--ensemble", lm), f"--ensemble: {lstm} has task 'seq2seq', {lm} has task 'lm'"),
        ((lstm, "abc", *looks, "--layer", "2"), "--layer: must be from 1 to 1, got 2"),
        (
            (blind, "abc", *looks),
            "--save-alignments: the model has no cross-attention; train one with model.attention = 'additive'",
        ),
        (
            (lstm, "abc", "--ensemble", str(runs.run_dir("transformer")), *looks),
            "--save-alignments: not available for several models; align with one run",
        ),
    ]:
        assert expect_error(capsys, "predict", *words) == (2, message)
    assert expect_error(capsys, "generate", lstm, "abc") == (
        2,
        f"{lstm}: is a seq2seq model; use weft predict",
    )
