"""Trained language models in Python: every architecture is trained briefly, loaded, sampled, scored and evaluated."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft.config import override
from weft.decode.ensemble import Ensemble, LinearEnsemble
from weft.decode.generate import Frame, generate
from weft.decode.options import GenerationConfig
from weft.errors import DataError, ModelError, UsageError
from weft.runs.job import train, with_tokenizer_from
from weft.runs.run import Run
from weft.tasks.lm.predict import TextScore
from weft.tasks.lm.presets import PRESETS as LM
from weft.tensors import read_tensors, write_tensors

# all parts differ, so validation and test data are distinguishable
NAMES = random.Random(0).choices(["anna", "bob", "hannah", "zoë", "otto", "eve", "ada", "élise"], k=160)
SENTENCES = "\n".join(random.Random(0).choices(["der Hund läuft.", "the cat sat on the mat.", "", "to be or not to be"], k=160))


class Silent:
    """A callback that prints nothing and records its events."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps, self.scores = 0, list[dict[str, float]]()
        self.parameters = 0

    def on_note(self, text: str) -> None:
        self.notes.append(text)

    def on_data(self, summary: str) -> None:
        self.notes.append(summary)

    def on_progress(self, name: str, done: int, total: int) -> None:
        assert 0 <= done <= total

    def on_step(self, loop: Any, loss: float, seconds: float) -> None:
        self.steps += 1

    def on_validation(self, loop: Any, scores: dict[str, float]) -> None:
        self.scores.append(scores)

    def on_fit(self, num_parameters: int, scores: dict[str, float]) -> None:
        self.parameters = num_parameters
        self.scores.append(scores)

    def should_stop(self) -> bool:
        return False


class Runs:
    """Runs by name, each trained on first use, with one tokenizer per `read_as`."""

    def __init__(self, place: Path) -> None:
        self.directory, self.watchers = place, dict[str, Silent]()
        (place / "names.txt").write_text("\n".join(NAMES) + "\n", encoding="utf-8")
        (place / "text.txt").write_text(SENTENCES, encoding="utf-8")

    def run_dir(self, name: str, settings: Sequence[str] = ()) -> Path:
        """Run directory of `arch-read_as`, or `arch-read_as-suffix` with its own options."""
        folder = self.directory / name
        if folder.exists():
            return folder
        arch, read, *_ = name.split("-")
        lines = read == "lines"
        data = {"train": "names.txt" if lines else "text.txt", "valid": 0.1, "test": 0.1, "read_as": read, "context_length": 16}
        values: dict[str, Any] = {"task": "lm", "data": data, "model": {"arch": arch}}
        if arch != "ngram":
            values["model"] |= {"hidden_size": 8, "num_layers": 1}
            values["train"] = {"max_steps": 4, "batch_tokens": 128, "num_validations": 2, "device": "cpu"}
        shared = self.directory / ("ngram-lines" if lines else "ngram-windows")
        if name != shared.name:
            self.run_dir(shared.name)
            values = with_tokenizer_from(values, shared)
        self.watchers[name] = Silent()
        train(override(values, settings), folder, base=self.directory, callback=self.watchers[name])
        return folder

    def __getitem__(self, name: str) -> Run:
        return weft.load(self.run_dir(name), device="cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


FAMILIES = [*(f"{arch}-windows" for arch in LM), "lstm-stream", "gpt-stream", *(f"{arch}-lines" for arch in LM)]
every_run = pytest.mark.parametrize("name", FAMILIES)
a_few = pytest.mark.parametrize("name", ["ngram-lines", "ngram-windows", "lstm-lines", "transformer-lines", "gpt-windows"])


def error_message(error: type[Exception], action: Any) -> str:
    with pytest.raises(error) as caught:
        action()
    assert type(caught.value) is error
    return str(caught.value)


def first(run: Run) -> list[int]:
    """Tokens before a text: a blank line, or BOS if lines are examples."""
    return [1] if run.config.data.read_as == "lines" else run.vocabulary.encode("\n\n").tolist()


def log_probs_of(run: Run, ids: list[int]) -> list[float]:
    """Log-probability of each token of a single text, from the model."""
    with torch.no_grad():
        actual: list[float] = run.model.score(torch.tensor([[*first(run), *ids]]))[0].tolist()
    return actual[len(first(run)) - 1 :]


# ---- training and loading


@every_run
def test_every_architecture_trains_and_loads(runs, name):
    run = runs[name]
    watcher = runs.watchers[name]
    arch, _, read = name.partition("-")
    assert (run.config.arch, run.config.data.read_as, run.predictor.reads_lines) == (arch, read, read == "lines")
    assert run.predictor.eos_id == (2 if run.predictor.reads_lines else None)
    assert run.model.vocabulary == run.vocabulary.hash
    assert (watcher.steps, len(watcher.scores)) == ((0, 1) if arch == "ngram" else (4, 2))
    assert all(math.isfinite(scores["loss"]) for scores in watcher.scores)
    if arch == "ngram":
        assert watcher.parameters == run.num_parameters
    else:
        assert not run.model.training


def test_models_are_loaded_lazily(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs.run_dir("lstm-lines"), folder)
    (folder / "model.safetensors").rename(tmp_path / "away")
    run = weft.load(str(folder), device="cpu")
    assert (run.config.arch, run.vocabulary.vocab_size) == ("lstm", runs["lstm-lines"].vocabulary.vocab_size)
    assert "model" not in vars(run)
    assert error_message(ModelError, lambda: run.model) == (f"{folder}: not trained yet; run weft train")
    (tmp_path / "away").rename(folder / "model.safetensors")
    assert run.model is run.model  # loaded once


def test_invalid_run_directories_are_rejected(runs, tmp_path):
    assert (
        error_message(ModelError, lambda: weft.load(tmp_path / "nowhere")) == f"{tmp_path / 'nowhere'}: run directory not found"
    )
    assert (
        error_message(ModelError, lambda: weft.load(tmp_path)) == f"{tmp_path}: not a run directory (resolved.toml is missing)"
    )
    assert error_message(UsageError, lambda: weft.load(runs.run_dir("lstm-lines"), device="gpu")) == (
        "device: unknown device 'gpu'; did you mean 'cuda'?"
    )


def test_missing_gpu_is_rejected(runs, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert error_message(UsageError, lambda: weft.load(runs.run_dir("lstm-lines"), device="cuda")) == (
        "device: no CUDA GPU found; use 'auto' or 'cpu'"
    )
    assert weft.load(runs.run_dir("lstm-lines"), device="auto").device == torch.device("cpu")


def test_weights_of_another_shape_are_rejected(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs.run_dir("lstm-lines"), folder)
    tensors, notes = read_tensors(folder / "model.safetensors")
    smaller = {name: tensor.clone() for name, tensor in tensors.items() if name != "head.bias"}
    write_tensors(folder / "model.safetensors", smaller, notes)
    assert error_message(ModelError, lambda: weft.load(folder, device="cpu").model) == (
        f"{folder / 'model.safetensors'}: does not match resolved.toml: head.bias is missing"
    )


def test_the_tokenizer_of_another_run_is_rejected(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs.run_dir("lstm-lines"), folder)
    shutil.copy(runs["gpt-windows"].directory.tokenizer, folder / "tokenizer.json")
    assert error_message(ModelError, lambda: weft.load(folder, device="cpu").model) == (
        f"{folder / 'tokenizer.json'}: not the file that the weights were trained with"
    )


def test_moved_runs_are_loaded(runs, tmp_path):
    shutil.copytree(runs.run_dir("gpt-windows"), tmp_path / "moved")
    moved, run = weft.load(tmp_path / "moved", device="cpu"), runs["gpt-windows"]
    assert moved.score(["the cat"]) == run.score(["the cat"])
    assert moved.evaluate().scores == run.evaluate().scores  # the data has not moved


def test_run_info(runs):
    for name in ("ngram-lines", "lstm-lines"):
        run, info = runs[name], runs[name].info()
        assert list(info) == ["path", "task", "arch", "parameters", "vocabulary", "tokenizer", "config"]
        assert (info["path"], info["task"], info["arch"]) == (str(runs.directory / name), "lm", name.split("-")[0])
        assert (info["vocabulary"], info["tokenizer"]) == (run.vocabulary.vocab_size, run.vocabulary.hash)
        assert info["config"] == run.config.to_dict()
    d, v = 8, info["vocabulary"]
    assert info["parameters"] == v * d + 4 * (2 * d * d + 2 * d) + v * d + v
    assert runs["ngram-lines"].info()["parameters"] == sum(runs["ngram-lines"].model.counts)


# ---- generating


@every_run
def test_greedy_text_is_deterministic_and_independent_of_the_batch(runs, name):
    run, options = runs[name], GenerationConfig(max_new_tokens=8, temperature=0.0)
    prompts = ["an", "", "otto"]
    actual = run.generate(prompts, options)
    assert [continuation.alternatives for continuation in actual] == [(), (), ()]
    assert [continuation.token_ids for continuation in actual] == [
        continuation.token_ids for continuation in runs[name].generate(prompts, options)
    ]
    for prompt, continuation in zip(prompts, actual, strict=True):
        alone = run.generate(prompt, options)
        assert (alone.token_ids, alone.text) == (continuation.token_ids, continuation.text)
        assert alone.log_prob == pytest.approx(continuation.log_prob, abs=1e-4)
        # the argmax path, each prefix read from the start
        tokens = [*first(run), *run.vocabulary.encode(prompt).tolist()]
        for token in alone.token_ids:
            with torch.no_grad():
                log_probs = run.model.start(torch.tensor([tokens]))[0][0]
            log_probs[[0, 1, *([] if run.predictor.reads_lines else [2])]] = -math.inf
            assert token == int(log_probs.argmax())
            tokens.append(token)


@every_run
@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"top_k": 5, "seed": 3}, {"beam_size": 3}], ids=str)
def test_stream_equals_generate(runs, name, options):
    run, options = runs[name], GenerationConfig(max_new_tokens=9, **options)
    for prompt in ("", "th"):
        assert "".join(run.stream(prompt, options)) == run.generate([prompt], options)[0].text


def test_default_seed_is_0(runs):
    run = runs["lstm-lines"]
    assert [run.generate("a")] == run.generate(["a"], GenerationConfig())
    assert run.generate("a", GenerationConfig(seed=1, max_new_tokens=30)) != run.generate(
        "a", GenerationConfig(max_new_tokens=30)
    )
    assert run.generate([]) == []
    assert "".join(run.stream()) == run.generate().text


def test_attention_generates_beyond_its_context_length(runs):
    actual = runs["gpt-windows"].generate("to be", GenerationConfig(max_new_tokens=60, temperature=0.0))
    assert len(actual.token_ids) == 60 and math.isfinite(actual.log_prob)
    assert error_message(
        UsageError, lambda: runs["transformer-windows"].generate("to be", GenerationConfig(max_new_tokens=60))
    ) == ("max_new_tokens: 7 prompt tokens and 60 new tokens exceed the model's 16 positions; use at most 10")


BAD = {
    "a\0b": "NUL at character 1; is this binary data?",
    "\ud800": "lone surrogate U+D800 at character 0; use whole characters",
    "ok \udc80": "lone surrogate U+DC80 at character 3; use whole characters",
}


@pytest.mark.parametrize("text", BAD, ids=ascii)
@pytest.mark.parametrize("name", ["ngram-lines", "gpt-windows"])
def test_invalid_text_is_rejected(runs, name, text):
    run = runs[name]
    assert error_message(DataError, lambda: run.generate(["fine", text])) == f"prompt 2: {BAD[text]}"
    assert error_message(DataError, lambda: run.generate(text)) == f"prompt 1: {BAD[text]}"
    assert error_message(DataError, lambda: run.stream(text)) == f"prompt: {BAD[text]}"
    assert error_message(DataError, lambda: run.score(["fine", "also", text])) == f"line 3: {BAD[text]}"


# ---- scoring


@every_run
def test_score_of_a_line_is_the_sum_over_its_tokens(runs, name):
    run = runs[name]
    lines = ["anna", "", "zoë", "a", "never seen: ☃", "otto\u2028x", "bob"]
    scores = run.score(lines)
    assert [line.text for line in scores] == lines
    for line in scores:
        ids = run.vocabulary.encode(line.text).tolist() + ([2] if run.predictor.reads_lines else [])
        assert line.tokens == [run.vocabulary.token_text(token) for token in ids] and len(line.token_log_probs) == len(ids)
        assert line.log_prob == pytest.approx(sum(line.token_log_probs), abs=1e-6)
        if ids:
            alone = log_probs_of(run, ids)
            assert line.token_log_probs == pytest.approx(alone, abs=1e-4)
            assert line.perplexity == pytest.approx(math.exp(-line.log_prob / len(ids)))


def test_eos_is_scored_if_lines_are_examples(runs):
    first, empty = runs["lstm-lines"].score(["bob", ""])
    assert (first.tokens, empty.tokens) == (["b", "o", "b", "</s>"], ["</s>"])
    assert empty.log_prob == empty.token_log_probs[0] < 0
    first, empty = runs["lstm-windows"].score(["be\n", ""])
    assert (first.tokens, empty.tokens) == (["b", "e", "\n"], [])
    assert (empty.log_prob, empty.token_log_probs) == (0.0, [])
    assert math.isnan(empty.perplexity)
    assert runs["lstm-windows"].score(["", ""]) == [TextScore("", 0.0, [], [])] * 2
    assert runs["lstm-windows"].score([]) == []


@a_few
def test_batch_and_window_size_do_not_change_scores(runs, name, monkeypatch):
    run = runs[name]
    lines = [name[:length] for name in NAMES[:5] for length in range(5)]
    together = run.score(lines)
    for positions, piece in ((1, 4096), (20, 4096), (16384, 2)):
        monkeypatch.setattr("weft.tasks.lm.predict.BATCH_TOKENS", positions)
        monkeypatch.setattr("weft.tasks.lm.scoring.CHUNK_TOKENS", piece)
        for score, other in zip(run.score(lines), together, strict=True):
            assert (score.text, score.tokens) == (other.text, other.tokens)
            assert score.token_log_probs == pytest.approx(other.token_log_probs, abs=1e-4)


def test_a_string_is_one_line(runs):
    assert [runs["ngram-lines"].score("anna")] == runs["ngram-lines"].score(["anna"])


def test_a_line_beyond_the_last_position_is_rejected(runs):
    run = runs["transformer-lines"]
    assert len(run.score(["a" * 15])[0].tokens) == 16
    long = "17 tokens exceed the model's limit of 16; shorten it"
    assert error_message(DataError, lambda: run.score(["a", "a" * 16])) == f"line 2: {long}"
    assert run.predictor.invalid_inputs(["a" * 16, "a" * 15]) == {0: long}
    assert len(runs["gpt-lines"].score(["a" * 40])[0].tokens) == 41


# ---- evaluating


def by_name(scores: Any) -> dict[str, float]:
    return {score.name: score.value for score in scores}


@pytest.mark.parametrize("name", [name for name in FAMILIES if name.endswith("lines")])
def test_scores_of_lines_are_explicit_sums(runs, name):
    run = runs[name]
    path = runs.directory / "new.txt"
    lines = ["hannah", "", "zoë", "bob"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    scored = run.score(lines)
    nats, tokens = -sum(line.log_prob for line in scored), sum(len(line.tokens) for line in scored)
    actual = by_name(run.evaluate(path))
    characters, size, words = len("hannahzoëbob") + 4, len("hannahzoëbob".encode()) + 4, 3 + 4
    assert tokens == characters == 16
    assert actual == pytest.approx(
        {
            "loss": nats / tokens,
            "bits_per_token": nats / tokens / math.log(2),
            "perplexity": math.exp(nats / tokens),
            "bits_per_char": nats / characters / math.log(2),
            "bits_per_byte": nats / size / math.log(2),
            "bits_per_word": nats / words / math.log(2),
            "word_perplexity": math.exp(nats / words),
        },
        rel=1e-5,
    )
    assert run.evaluate(path)["loss"].signature == (
        f"weft:{weft.__version__}|context:reset:line|unit:line|tokens:16|resamples:1000|seed:0|interval:95%"
        f"|tokenizer:{run.vocabulary.hash[:8]}"
    )


@pytest.mark.parametrize("name", ["ngram-windows", "conv-windows", "lstm-windows", "gpt-windows", "transformer-windows"])
def test_scores_of_running_text_are_explicit_sums(runs, name):
    run = runs[name]
    path = runs.directory / "short.txt"
    path.write_text("to be or not", encoding="utf-8")  # 12 tokens: one window
    ids = run.vocabulary.encode("to be or not").tolist()
    nats = -sum(log_probs_of(run, ids))
    for context in (None, "stride", "carry"):
        actual = list(run.evaluate([path], context=context))
        assert by_name(actual)["loss"] == pytest.approx(nats / 12, rel=1e-5)
        assert (actual[0].low, actual[0].high) == (None, None)  # one block
    policy = "full/carry:warm-64" if name[0] not in "gt" else "full/stride:8/16"
    assert f"|context:{policy}|unit:block/100|tokens:12|" in run.evaluate(path)["loss"].signature


def test_one_character_can_be_evaluated(runs):
    path = runs.directory / "one.txt"
    path.write_text("t")
    for name in ("ngram-windows", "lstm-stream", "gpt-windows", "lstm-lines"):
        run = runs[name]
        line = run.score(["t"])[0]
        assert by_name(run.evaluate(path))["loss"] == pytest.approx(-line.log_prob / len(line.tokens), rel=1e-5)


@a_few
def test_scoring_reports_progress_by_batches_and_windows(runs, name, monkeypatch):
    run, calls = runs[name], list[tuple[int, int]]()
    lines = ["ab" * 7, "a", "", "b" * 9]
    silent = run.score(lines)
    assert run.score(lines, progress=lambda what, done, total: calls.append((done, total))) == silent
    assert calls == []  # done before the first report
    monkeypatch.setattr("weft.tasks.lm.scoring.CHUNK_TOKENS", 5)
    monkeypatch.setattr("weft.tasks.lm.predict.BATCH_TOKENS", 12)
    scores = run.score(lines, progress=lambda what, done, total: calls.append((done, total)))
    torch.testing.assert_close([line.log_prob for line in scores], [line.log_prob for line in silent], rtol=1e-5, atol=1e-5)
    short, total = (sum(len(line.tokens) for line in part) for part in (silent[1:], silent))
    assert {told_of for _, told_of in calls} == {total}
    done = [part for part, _ in calls]
    assert done == sorted(set(done)) and done[-1] < total
    behind = len(first(run)) - 1  # positions before the text
    assert {short, short + 5 - behind, short + 10 - behind} <= set(done)


@a_few
def test_evaluate_uses_the_test_data_of_the_run_by_default(runs, name, tmp_path):
    run = runs[name]
    # the last tenth, in lines, or in characters from the nearest line end on
    ends = [index + 1 for index, letter in enumerate(SENTENCES) if letter == "\n"]
    boundary = min(ends, key=lambda end: abs(end - int(len(SENTENCES) * 0.9)))
    part = "\n".join(NAMES[144:]) + "\n" if run.predictor.reads_lines else SENTENCES[boundary:]
    (tmp_path / "test.txt").write_text(part, encoding="utf-8")
    calls: list[tuple[int, int]] = []
    assert (
        run.evaluate(progress=lambda what, done, total: calls.append((done, total))).scores
        == run.evaluate(tmp_path / "test.txt").scores
    )
    assert calls[-1][0] == calls[-1][1] > 0
    halves = [tmp_path / "one.txt", tmp_path / "two.txt"]
    truncated = part.index("\n", len(part) // 2) + 1
    for path, text in zip(halves, (part[:truncated], part[truncated:]), strict=True):
        path.write_text(text, encoding="utf-8")
    assert run.evaluate(halves).scores == run.evaluate().scores


def test_evaluate_uses_stored_tokens_if_the_text_is_missing(runs, tmp_path):
    run = runs["gpt-windows"]
    shutil.copytree(run.directory.path, tmp_path / "moved")
    text = tmp_path / "moved" / "resolved.toml"
    moved = weft.load(tmp_path / "moved", device="cpu")
    moved.model = run.model  # its own weights are rejected: resolved.toml was changed
    before = moved.evaluate().scores
    text.write_text(text.read_text().replace(str(runs.directory), str(tmp_path / "nowhere")))
    moved = weft.load(tmp_path / "moved", device="cpu")
    moved.model = run.model
    assert moved.evaluate().scores == before
    shutil.rmtree(tmp_path / "moved" / "data")
    assert error_message(DataError, moved.evaluate).endswith(": file not found")


def test_evaluate_falls_back_to_validation_data(runs):
    folder = runs.run_dir("lstm-lines-halves", ("data.valid=0.5", "data.test=names.txt"))
    text = folder / "resolved.toml"
    text.write_text("\n".join(line for line in text.read_text().split("\n") if not line.startswith("test =")))
    run = weft.load(folder, device="cpu")
    assert list(run.config.datasets) == ["train", "valid"]
    run.model = runs["lstm-lines"].model  # its own weights are rejected: resolved.toml was changed
    assert int(run.evaluate()["loss"].signature.split("tokens:")[1].split("|")[0]) == sum(len(name) + 1 for name in NAMES[80:])
    text.write_text("\n".join(line for line in text.read_text().split("\n") if not line.startswith("valid =")))
    run = weft.load(folder, device="cpu")
    assert error_message(UsageError, run.evaluate) == f"{folder}: the run has no test or validation data; set `data`"


def test_missing_data_files_are_rejected(runs):
    assert error_message(UsageError, lambda: runs["ngram-lines"].evaluate([]).scores) == "evaluate: `data` has no files"
    missing = runs.directory / "missing.txt"
    assert error_message(DataError, lambda: runs["ngram-lines"].evaluate(missing).scores) == f"{missing}: file not found"


def test_context_policies_depend_on_read_as(runs):
    lines, windows = runs["lstm-lines"], runs["lstm-windows"]
    assert error_message(UsageError, lambda: lines.evaluate(context="carry").scores) == (
        "context: 'carry' is not possible for data that is read as lines"
    )
    assert error_message(UsageError, lambda: windows.evaluate(context="reset").scores) == (
        "context: 'reset' is not possible for data that is read as running text"
    )
    assert lines.evaluate(context="reset").scores == lines.evaluate().scores
    full, carried = list(windows.evaluate()), list(windows.evaluate(context="carry"))
    assert [score[:4] for score in full] == [score[:4] for score in carried]
    assert full == list(windows.evaluate(context="full"))
    assert "|context:stride:4/16|" in windows.evaluate(context="stride:4")["loss"].signature


def test_carried_evaluation_beyond_the_last_position_is_rejected(runs):
    assert error_message(UsageError, lambda: runs["transformer-windows"].evaluate(context="carry").scores) == (
        "context: 'carry' needs more than the model's 16 positions; use 'stride'"
    )


def test_a_line_beyond_the_last_position_is_rejected_before_training(runs, tmp_path):
    (tmp_path / "long.txt").write_text("bob\n" * 30 + "hannah" * 3 + "\nbob\n")
    values = {
        "task": "lm",
        "data": {"train": "long.txt", "read_as": "lines", "context_length": 16},
        "model": {"arch": "transformer", "hidden_size": 8},
    }
    watcher = Silent()
    assert error_message(DataError, lambda: train(values, tmp_path / "run", base=tmp_path, callback=watcher)) == (
        "train:31: 19 tokens exceed the model's limit of 16; "
        "shorten it, or train with data.context_length = 19 or another position_encoding"
    )
    assert watcher.steps == 0


def test_learned_positions_under_a_recurrent_network_are_evaluated_in_windows(runs):
    """A carried state would exceed the last position."""
    folder = runs.run_dir("gru-windows-learned", ("model.position_encoding=learned",))
    run = weft.load(folder, device="cpu")
    assert "|context:full/stride:8/16|" in run.evaluate()["loss"].signature
    assert runs.watchers["gru-windows-learned"].scores


# ---- several runs


def test_runs_with_one_tokenizer_form_an_ensemble(runs):
    parts = [runs["ngram-lines"], runs["lstm-lines"]]
    ensemble = Ensemble([run.model for run in parts], LinearEnsemble([0.5, 0.5]))
    ids = [1, *parts[0].vocabulary.encode("hannah").tolist(), 2]
    with torch.no_grad():
        scores = ensemble.score(torch.tensor([ids]))[0].exp()
    means = np.mean([np.exp(run.score(["hannah"])[0].token_log_probs) for run in parts], axis=0)
    assert scores.tolist() == pytest.approx(means.tolist(), rel=1e-4)
    options = GenerationConfig(max_new_tokens=12, beam_size=3, n_best=2)
    texts = generate(ensemble, parts[0].vocabulary, ["an", ""], options, frame=Frame(parts[0].predictor.eos_id))
    assert [len(samples) for samples in texts] == [2, 2]
    single = Ensemble([runs["gpt-windows"].model], LinearEnsemble([1.0]))
    assert error_message(UsageError, lambda: Ensemble([ensemble, single], LinearEnsemble([0.5, 0.5]))) == (
        f"ensemble: models 1 and 2 have different tokenizers ({parts[0].vocabulary.hash[:8]}, "
        f"{runs['gpt-windows'].vocabulary.hash[:8]}); train both with `tokenizer_from`"
    )


def test_options_can_be_passed_by_name(runs):
    run = runs["ngram-windows"]
    by_name = run.generate("The", max_new_tokens=5, temperature=0)
    assert by_name == run.generate("The", GenerationConfig(max_new_tokens=5, temperature=0))
    assert "".join(run.stream("The", max_new_tokens=5, temperature=0)) == by_name.text
    message = error_message(UsageError, lambda: run.generate("The", GenerationConfig(), seed=1))
    assert message == "options: are given as an object and by name (seed); use one of the two"
    message = error_message(UsageError, lambda: run.generate("The", top_q=0.9))
    assert message == "top_q: unknown option; did you mean 'top_p'?"
