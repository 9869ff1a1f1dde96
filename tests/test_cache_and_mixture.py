"""The neural cache and mixtures of language models: equal to their equations, and what is fitted is the best."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import expect_error
from small_runs import SilentCallback

import weft
from weft.cli.main import main
from weft.decode.cache import cache_log_probs
from weft.decode.cache_options import Cache, CacheConfig
from weft.errors import UsageError
from weft.runs.job import train, with_tokenizer_from
from weft.tasks.lm.cache import SIZES, HiddenStates, choose_cache
from weft.tasks.lm.mixture import mixture_weights

CACHE = {"size": 20, "theta": 0.3, "weight": 0.25}
ARCHS = {
    "lstm": {"arch": "lstm", "hidden_size": 8, "num_layers": 1},
    "gpt": {"arch": "gpt", "hidden_size": 8, "num_layers": 1, "num_heads": 2},
    "ngram": {"arch": "ngram", "order": 3},
}
pytestmark = pytest.mark.usefixtures("restore_openmp_env")


def repetitive_text(lines: int) -> str:
    """Each line is about one of many names, and so are its neighbors."""
    rng = random.Random(0)
    names = [f"{first}{last}" for first in ("an", "bo", "ce", "di", "el") for last in ("ra", "to", "mi", "ko")]
    return "".join(
        f"{names[line // 6 % 20]} {rng.choice(['sees', 'hears'])} {names[line // 6 % 20]} .\n" for line in range(lines)
    )


class Runs:
    """Small language models with one tokenizer for each way of reading, each trained when it is first used."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "text.txt").write_text(repetitive_text(400), encoding="utf-8")

    def path(self, arch: str, read_as: str = "windows", **data: Any) -> Path:
        folder = self.directory / "-".join([arch, read_as, *data])
        if folder.exists():
            return folder
        options = {"train": "text.txt", "valid": 0.2, "test": 0.2, "read_as": read_as, "context_length": 16, **data}
        values: dict[str, Any] = {
            "task": "lm",
            "data": {name: value for name, value in options.items() if value is not None},
            "tokenizer": {"type": "word"},
            "model": ARCHS[arch],
        }
        if arch != "ngram":
            values["train"] = {"max_steps": 4, "batch_tokens": 128, "device": "cpu"}
        if folder.name != (shared := f"ngram-{read_as}"):
            values = with_tokenizer_from(values, self.path(*shared.split("-")))
        train(values, folder, base=self.directory, callback=SilentCallback())
        return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def mixed_by_definition(hidden: np.ndarray, tokens: np.ndarray, nll: np.ndarray, cache: Cache) -> list[float]:
    """The equation of the cache, token by token in float64."""
    results = list[float]()
    for t, token in enumerate(tokens):
        past = range(max(0, t - cache.size), t)
        scores = {i: math.exp(cache.theta * float(hidden[t] @ hidden[i])) for i in past}
        model = math.exp(-float(nll[t]))
        cached = sum(score for i, score in scores.items() if tokens[i] == token) / sum(scores.values()) if scores else model
        results.append(-math.log((1 - cache.weight) * model + cache.weight * cached))
    return results


def text_states(run: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hidden states, tokens and negative log-likelihoods of the test text, from one pass with a carried state or by line."""
    nll, corpus = run.predictor.token_losses(context=None if run.predictor.reads_lines else "carry")
    tokens, bos = np.asarray(corpus.tokens).astype(np.int64), list(corpus.bos_ids)
    edges = [0, len(tokens)] if corpus.starts is None else corpus.starts.tolist()
    hidden = list[torch.Tensor]()
    with torch.inference_mode():
        for low, high in pairwise(edges):
            y, _ = run.network(torch.tensor([[*bos, *tokens[low : high - 1].tolist()]]))
            hidden.append(y[0, len(bos) - 1 :])
    return torch.cat(hidden).double().numpy(), tokens, nll


# ---- the cache


@pytest.mark.parametrize(("arch", "read_as"), [("lstm", "stream"), ("lstm", "lines"), ("gpt", "lines")])
def test_evaluation_with_a_cache_equals_the_equation(runs: Runs, arch: str, read_as: str) -> None:
    hidden, tokens, nll = text_states(weft.load(runs.path(arch, read_as), device="cpu"))
    run = weft.load(runs.path(arch, read_as), device="cpu", cache=CACHE)
    actual, _ = run.predictor.token_losses(context=None if read_as == "lines" else "carry")
    assert run.cache == Cache(20, 0.3, 0.25)
    assert actual == pytest.approx(mixed_by_definition(hidden, tokens, nll, Cache(20, 0.3, 0.25)), abs=1e-3)
    assert not np.allclose(actual, nll, atol=1e-2)


@pytest.mark.parametrize("chunk", [7, 512])
def test_sizes_and_thetas_of_one_pass_equal_the_equation(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.decode.cache.MAX_QUERIES", chunk)
    generator = torch.Generator().manual_seed(0)
    hidden, tokens = torch.randn(2, 24, 3, generator=generator), torch.randint(5, (2, 24), generator=generator)
    thetas, sizes = [0.0, 0.8, 40.0], [1, 6, 100]  # 40: exponentials that underflow
    actual = cache_log_probs(hidden, tokens, 4, thetas=thetas, sizes=sizes)
    assert actual.shape == (3, 3, 2, 20)
    for i, theta in enumerate(thetas):
        for j, size in enumerate(sizes):
            for row in range(2):
                for t in range(4, 24):
                    past = torch.arange(max(0, t - size), t)
                    scores = (theta * (hidden[row, past] @ hidden[row, t]).double()).softmax(0)
                    expected = scores[tokens[row, past] == tokens[row, t]].sum().log()
                    torch.testing.assert_close(actual[i, j, row, t - 4].double(), expected, rtol=1e-3, atol=1e-3)


def test_an_empty_cache_leaves_the_model_alone(runs: Runs) -> None:
    plain, cached = (weft.load(runs.path("lstm", "lines"), device="cpu", cache=cache) for cache in (False, CACHE))
    before, after = (run.score("anra sees anra").token_log_probs for run in (plain, cached))
    assert after[0] == pytest.approx(before[0]) and after[2] != pytest.approx(before[2])


def test_scores_and_continuations_with_a_cache_agree(runs: Runs) -> None:
    """The cache of a text starts with it, whatever other texts are scored."""
    run = weft.load(runs.path("gpt"), device="cpu", cache=CACHE)
    together = run.score(["boto sees boto", "anra hears"])
    assert together[1].token_log_probs == pytest.approx(run.score("anra hears").token_log_probs, abs=1e-5)
    best = run.generate("boto sees", beam_size=1, max_new_tokens=3)
    whole = run.score("boto sees" + (best.text if best.text.startswith(" ") else f" {best.text}"))
    assert best.log_prob == pytest.approx(sum(whole.token_log_probs[-3:]), abs=1e-4)


def states_and_tokens() -> tuple[HiddenStates, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.arange(300)[None] // 20 % 5  # repeats itself
    hidden = torch.nn.functional.one_hot(tokens[0], 5).float() + 0.3 * torch.randn(300, 5, generator=generator)
    return HiddenStates(torch.full((300,), math.log(5)), hidden), tokens


def test_the_chosen_cache_has_the_highest_likelihood_of_the_grid() -> None:
    states, tokens = states_and_tokens()
    chosen = choose_cache(states, tokens, CacheConfig())

    def loss(cache: Cache) -> float:
        arrays = states.hidden.double().numpy(), tokens[0].numpy(), states.nll.numpy()
        return float(np.mean(mixed_by_definition(*arrays, cache)))

    assert chosen.size in SIZES and chosen.theta > 0 and 0.5 < chosen.weight < 1
    best = loss(chosen)
    assert best < math.log(5) - 0.5
    for other in (
        chosen._replace(theta=chosen.theta / 2),
        chosen._replace(theta=chosen.theta * 2),
        chosen._replace(weight=chosen.weight - 0.05),
        chosen._replace(weight=(1 + chosen.weight) / 2),
    ):
        assert loss(other) >= best
    fixed = choose_cache(states, tokens, CacheConfig(size=7, theta=0.5))
    assert fixed[:2] == (7, 0.5) and 0 < fixed.weight < 1


def test_a_fitted_cache_is_in_the_output_and_in_the_signature(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(runs.path("lstm"))
    assert main(["evaluate", folder, "--device", "cpu", "--json", "-q"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert main(["evaluate", folder, "--device", "cpu", "--cache", "--json", "-q"]) == 0
    result = json.loads(capsys.readouterr().out)
    cache = Cache(**result["cache"])
    assert cache == weft.load(folder, device="cpu", cache=True).cache
    assert f"|cache:{cache.signature()}|" in result["scores"][0]["signature"]
    assert "cache" not in alone["scores"][0]["signature"] and "cache" not in alone
    perplexities = [
        next(score["value"] for score in each["scores"] if score["name"] == "perplexity") for each in (alone, result)
    ]
    assert perplexities[1] < 0.9 * perplexities[0]
    assert main(["evaluate", folder, "--device", "cpu", "--cache", "--cache-weight", "0.125"]) == 0
    assert "\ncache: size " in (out := capsys.readouterr().out) and ", weight 0.125\n" in out


# ---- mixtures


def likelihood(log_probs: np.ndarray, weights: np.ndarray) -> float:
    return float(np.log(weights @ np.exp(log_probs)).mean())


@pytest.mark.parametrize("seed", range(4))
def test_em_finds_the_maximum_of_the_likelihood(seed: int) -> None:
    rng = np.random.default_rng(seed)
    log_probs = np.log(rng.uniform(0.001, 1, (3, 200)) ** rng.uniform(0.5, 3, (3, 1)))
    weights = mixture_weights(log_probs)
    assert weights.sum() == pytest.approx(1) and (weights >= 0).all()
    steps = np.linspace(0, 1, 101)
    grid = [np.array([a, b, 1 - a - b]) for a in steps for b in steps if a + b <= 1 + 1e-9]
    best = max(grid, key=lambda point: likelihood(log_probs, np.maximum(point, 0)))
    assert likelihood(log_probs, weights) >= likelihood(log_probs, np.maximum(best, 0)) - 1e-9
    assert weights == pytest.approx(best, abs=0.02)


def test_a_mixture_that_helps_nobody_is_the_best_model() -> None:
    worse = np.log(np.full((1, 50), 0.1))
    better = np.log(np.linspace(0.2, 0.9, 50))[None]
    assert mixture_weights(np.concatenate([worse, better])).tolist() == [0.0, 1.0]
    assert mixture_weights(np.concatenate([better, better, worse])).tolist() == [1.0, 0.0, 0.0]
    impossible = np.array([[-np.inf, -np.inf, 0.0], [-np.inf, 0.0, -np.inf]])
    assert mixture_weights(impossible) == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("read_as", ["windows", "lines"])
def test_a_mixture_averages_the_probabilities_of_its_models(runs: Runs, read_as: str) -> None:
    folders = [runs.path(arch, read_as) for arch in ("lstm", "ngram", "gpt")]
    alone = [weft.load(folder, device="cpu") for folder in folders]
    mixture = weft.ensemble(folders, weights=[0.5, 0.3, 0.2], device="cpu")
    probs = [np.exp(-run.predictor.token_losses()[0].astype(np.float64)) for run in alone]
    expected = -np.log(np.average(probs, axis=0, weights=[0.5, 0.3, 0.2]))
    assert mixture.predictor.token_losses()[0] == pytest.approx(expected, abs=1e-5)
    line = "anra sees anra ."
    lines = [np.exp(run.score(line).token_log_probs) for run in alone]
    assert mixture.score(line).token_log_probs == pytest.approx(
        np.log(np.average(lines, axis=0, weights=[0.5, 0.3, 0.2])), abs=1e-5
    )
    assert mixture.generate("anra", max_new_tokens=4, temperature=0).text


@pytest.mark.parametrize("cache", [False, CACHE])
def test_fitted_weights_are_never_worse_than_the_best_model(runs: Runs, cache: Any) -> None:
    """On the data that they are fitted on: here the validation data, since the runs have no test data."""
    folders = [runs.path(arch, "windows", test=None) for arch in ("lstm", "gpt", "ngram")]
    mixture = weft.ensemble(folders, weights="fitted", cache=cache, device="cpu")
    assert mixture.weights is not None and sum(mixture.weights) == pytest.approx(1)
    evaluation = mixture.evaluate()
    alone = [member.predictor.token_losses()[0].mean() for member in mixture.members]
    assert evaluation["loss"].value <= min(alone) + 1e-6
    assert "look too good" in evaluation.notes[0]
    assert "|mixture:" in evaluation["loss"].signature
    assert [member.cache is not None for member in mixture.members] == [bool(cache), bool(cache), False]


def test_weights_on_the_command_line(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(runs.path(arch)) for arch in ("lstm", "ngram")]
    command = ["evaluate", folders[0], "--ensemble", folders[1], "--device", "cpu"]
    assert main([*command, "--ensemble-weights", "0.25,0.75"]) == 0
    assert f"mixture: 0.250 {folders[0]}, 0.750 {folders[1]}\n" in capsys.readouterr().out
    assert main([*command, "--ensemble-weights", "fitted", "--json"]) == 0
    members = json.loads(capsys.readouterr().out)["ensemble"]
    assert [member["run"] for member in members] == folders
    expected = weft.ensemble(folders, weights="fitted", device="cpu").weights
    assert [member["weight"] for member in members] == pytest.approx(expected)


# ---- requests that are refused


def test_invalid_caches_and_mixtures_are_refused(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    lstm, ngram, lines = (
        str(runs.path(arch, way)) for arch, way in (("lstm", "windows"), ("ngram", "windows"), ("ngram", "lines"))
    )
    expected = {
        ("evaluate", ngram, "--cache"): f"--cache: {ngram} has no hidden states; use a neural model",
        ("evaluate", ngram, "--ensemble", ngram, "--cache"): "--cache: no run is a neural model",
        ("evaluate", lstm, "--cache-size", "5"): "--cache-size: requires --cache",
        ("score", lstm, "--cache", "--cache-size", "0"): "--cache-size: must be at least 1, got 0",
        ("generate", lstm, "--cache", "--cache-weight", "1"): "--cache-weight: must be less than 1, got 1.0",
        ("evaluate", lstm, "--ensemble-weights", "1"): "--ensemble-weights: requires --ensemble",
        ("evaluate", lstm, "--ensemble", ngram, "--ensemble-weights", "best"): (
            "--ensemble-weights: expected numbers separated by commas, or 'fitted', got 'best'"
        ),
        ("evaluate", lstm, "--ensemble", lines): (
            f"--ensemble: {lstm} reads running text, {lines} reads lines; set the same data.read_as"
        ),
        ("evaluate", lstm, "--lm", lines): "--lm: not available for task 'lm'; add it to the --ensemble",
    }
    for command, message in expected.items():
        assert expect_error(capsys, *command) == (2, message)
    with pytest.raises(UsageError, match="cache_sizes: unknown option"):
        weft.load(lstm, cache={"sizes": 5})
    with pytest.raises(UsageError, match="weights: expected numbers or 'fitted', got 'best'"):
        weft.ensemble([lstm, ngram], weights="best")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="explain: not available for a run with a cache; load the run without it"):
        weft.load(lstm, cache=CACHE, device="cpu").explain("anra sees")
    with pytest.raises(UsageError, match="explain: not available for an ensemble; explain one run"):
        weft.ensemble([lstm, ngram], device="cpu").explain("anra sees")


def test_what_cannot_be_fitted_is_refused(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = runs.path("lstm", "windows", valid=None, test=None)
    with pytest.raises(UsageError, match="the run has no validation data to fit on; set the values instead"):
        weft.load(alone, cache={"size": 20}, device="cpu")
    assert weft.load(alone, cache=CACHE, device="cpu").cache == Cache(**CACHE)
    monkeypatch.setattr("weft.tasks.lm.cache.free_memory", lambda: 1000)
    with pytest.raises(
        UsageError, match=r"cache: the hidden states of \d+ tokens need .* of memory, 1.0 kB are free; evaluate"
    ):
        weft.load(runs.path("lstm"), cache=True, device="cpu")
