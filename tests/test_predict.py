"""Beam search and sampling in seq2seq models: brute-force comparison, batch independence and options."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from toy_decoding import StringTokenizer
from toy_seq2seq import ATTENTION, BOS, EOS, large_weight_model

from weft.config import parse_config
from weft.decode.beam import BeamOptions, beam_search
from weft.decode.ensemble import Ensemble, LinearEnsemble, LogLinearEnsemble, ShallowFusion
from weft.decode.logits_processors import ban_tokens
from weft.decode.predict import PredictionRequest, max_new_tokens_for, predict
from weft.decode.predict_options import PredictionConfig
from weft.decode.prediction import Prediction
from weft.errors import UsageError
from weft.models.config import LanguageModelConfig
from weft.models.lm import language_model
from weft.models.ngram import NgramConfig, fit
from weft.models.seq2seq import EncoderDecoder

SPELLER = StringTokenizer("abcdefgh")
DECODERS: dict[str, dict[str, Any]] = {
    "cho": {"layer_type": "gru-reset-before", "feed_context": True, "encoder": {"bidirectional": False}},
    "bahdanau": {"layer_type": "gru-reset-before", "attention": "additive", "attention_placement": "before"},
    "luong": {"layer_type": "lstm", "attention": "multiplicative", "input_feeding": True},
    "transformer": {**ATTENTION, "position_encoding": "sinusoidal"},
    "copying": {"layer_type": "lstm", "attention": "dot", "copy_mechanism": True},
}
every_decoder = pytest.mark.parametrize("name", DECODERS)
CPU = torch.device("cpu")


@cache
def model_of(name: str, *, words: int = 11) -> EncoderDecoder:
    model = large_weight_model(**DECODERS[name], vocab_size=words)
    with torch.no_grad():
        # outputs depend on earlier tokens: targets of several different tokens, most of which end before the limit
        model.decoder.embedder.embedding.weight.mul_(3)
        model.head.head.weight.mul_(2.5)
        model.head.head.bias.zero_()
    return model


def source_tokens(count: int, *, words: int = 11, seed: int = 0) -> list[list[int]]:
    """Sources of 1 to 9 tokens, including </s>."""
    random = np.random.default_rng(seed)
    return [[*random.integers(3, words, random.integers(0, 9)).tolist(), EOS] for _ in range(count)]


def encoded(model: Any, sources: Sequence[Sequence[int]]) -> Any:
    width = max(map(len, sources))
    rows = torch.tensor([[*source, *[0] * (width - len(source))] for source in sources])
    return model.encode(rows, torch.arange(width) < torch.tensor([len(source) for source in sources])[:, None])


def asking(
    model: Any, sources: list[list[int]], *, prefixes: list[list[int]] | None = None, encode: Any = None, speller: Any = SPELLER
) -> PredictionRequest:
    """A request for targets of these sources."""

    def chosen(rows: Sequence[int]) -> Any:
        return (encode or (lambda some: encoded(model, some)))([sources[row] for row in rows])

    lengths = [len(source) for source in sources]
    return PredictionRequest(model, speller, chosen, lengths, prefixes or [[] for _ in sources], CPU)


def ask(model: Any, sources: list[list[int]], *, prefixes: Any = None, encode: Any = None, **options: Any) -> Any:
    return predict(asking(model, sources, prefixes=prefixes, encode=encode), PredictionConfig(**options))


def same(actual: Sequence[Prediction], expected: Sequence[Prediction]) -> None:
    assert [(item.text, item.token_ids, item.prefix) for item in actual] == [
        (item.text, item.token_ids, item.prefix) for item in expected
    ]
    for value in ("score", "log_prob"):
        assert [getattr(item, value) for item in actual] == pytest.approx([getattr(item, value) for item in expected], abs=1e-4)


# ---- greedy


@every_decoder
def test_beam_size_1_is_greedy(name):
    model, sources = model_of(name), source_tokens(4)
    options = PredictionConfig(beam_size=1, length_penalty=0.7, max_new_tokens=8)
    searched = beam_search(
        model,
        torch.full((4, 1), BOS),
        options=BeamOptions(beam_size=1, max_new_tokens=8, eos_id=EOS),
        state=encoded(model, sources),
        processor=ban_tokens([0, BOS]),
    )
    for source, (actual,), (hypothesis,) in zip(sources, predict(asking(model, sources), options), searched, strict=True):
        log_probs, state = model.start(torch.tensor([[BOS]]), None, encoded(model, [source]))
        tokens: list[int] = []
        total = 0.0
        while len(tokens) < 8 and EOS not in tokens:
            log_probs[:, :2] = -math.inf
            tokens.append(int(log_probs.argmax()))
            total += log_probs[0, tokens[-1]].item()
            log_probs, state = model.step(torch.tensor(tokens[-1:]), state)
        assert actual.token_ids == tokens == hypothesis.tokens
        assert actual.text == SPELLER.decode(tokens)
        assert actual.log_prob == pytest.approx(total, abs=1e-4)
        assert actual.log_prob == pytest.approx(hypothesis.log_prob, abs=1e-4)
        assert actual.score == pytest.approx(total / len(tokens) ** 0.7, abs=1e-4)


# ---- against every sequence there is

WORDS = 6  # <unk>, <s>, </s> and three more
LIMIT = 3


def sequences() -> list[list[int]]:
    """All possible outputs: ended by </s>, or as long as the limit."""
    every = itertools.chain.from_iterable(itertools.product(range(2, WORDS), repeat=size) for size in range(1, LIMIT + 1))
    ended = [list(tokens) for tokens in every if EOS not in tokens[:-1]]
    return [tokens for tokens in ended if tokens[-1] == EOS or len(tokens) == LIMIT]


def rows_of(sequences: Sequence[Sequence[int]], prefix: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    width = max(map(len, sequences))
    rows = [[BOS, *prefix, *tokens, *[0] * (width - len(tokens))] for tokens in sequences]
    keep = [[True] * (1 + len(prefix) + len(tokens)) + [False] * (width - len(tokens)) for tokens in sequences]
    return torch.tensor(rows), torch.tensor(keep)


@torch.no_grad()
def log_probs_by_part(model: Any, source: list[int], prefix: Sequence[int] = ()) -> Tensor:
    """(sequences, LIMIT): log-probability of each token of each sequence, 0 after its end, in one pass."""
    every = sequences()
    tokens, keep = rows_of(every, prefix)
    state = encoded(model, [source] * len(every)) if isinstance(model, EncoderDecoder) else None
    return model.score(tokens, keep, state)[:, len(prefix) :].double()


def check_best(actual: Sequence[Prediction], totals: Tensor, alpha: float) -> None:
    """Assert that the three best are those of all sequences by length-penalized log-probability."""
    ranked = sorted(zip(sequences(), totals.tolist(), strict=True), key=lambda pair: -pair[1] / len(pair[0]) ** alpha)[:3]
    assert [item.token_ids for item in actual] == [tokens for tokens, _ in ranked]
    assert [item.log_prob for item in actual] == pytest.approx([total for _, total in ranked], abs=1e-4)
    assert [item.score for item in actual] == pytest.approx(
        [total / len(tokens) ** alpha for tokens, total in ranked], abs=1e-4
    )


@every_decoder
@pytest.mark.parametrize("alpha", [0.0, 0.7])
@pytest.mark.parametrize("prefix", [[], [4, 3]], ids=["", "prefix"])
def test_a_wide_beam_finds_the_global_optimum(name, alpha, prefix):
    model, sources = model_of(name, words=WORDS), [[3, 5, 4, EOS], [5, EOS]]
    actual = ask(model, sources, prefixes=[prefix] * 2, beam_size=200, length_penalty=alpha, n_best=3, max_new_tokens=LIMIT)
    for source, best in zip(sources, actual, strict=True):
        check_best(best, log_probs_by_part(model, source, prefix).sum(1), alpha)
        assert {item.text[: len(prefix)] for item in best} == {SPELLER.decode(prefix)}


def language_of(kind: str) -> Any:
    if kind == "ngram":
        tokens = np.array([3, 4, EOS, 4, 4, 5, EOS, 5, 3, 3, EOS, EOS])
        return fit(tokens, np.array([0, 3, 7, 11, 12]), NgramConfig(order=3), vocab_size=WORDS, vocabulary="ab12cd34" * 8)
    torch.manual_seed(3)
    table = parse_config(
        LanguageModelConfig, {"layer_type": "gru", "hidden_size": 8, "num_layers": 1}, prefix="model"
    ).with_defaults()
    model = language_model(table, vocab_size=WORDS, context_length=16, vocabulary="ab12cd34" * 8).eval()
    with torch.no_grad():
        model.head.weight.mul_(4)
    return model


@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_an_ensemble_is_the_weighted_mean_of_probabilities(alpha):
    parts = [model_of("luong", words=WORDS), model_of("transformer", words=WORDS), model_of("copying", words=WORDS)]
    weights, source = [0.5, 0.3, 0.2], [3, 5, 4, EOS]
    ensemble = Ensemble(parts, LinearEnsemble(weights))

    def encode(some: Any) -> Any:
        return tuple(encoded(part, some) for part in parts)

    values = torch.stack([log_probs_by_part(part, source) for part in parts])
    explicit = (values.exp() * torch.tensor(weights)[:, None, None]).sum(0).log().sum(1)
    check_best(
        ask(ensemble, [source], encode=encode, beam_size=200, length_penalty=alpha, n_best=3, max_new_tokens=LIMIT)[0],
        explicit,
        alpha,
    )
    tokens, keep = rows_of(sequences())
    with torch.no_grad():
        again = ensemble.score(tokens, keep, encode([source] * len(tokens))).sum(1)
    torch.testing.assert_close(again.double(), explicit, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["ngram", "gru"])
@pytest.mark.parametrize("name", ["luong", "transformer"])
def test_shallow_fusion_adds_lm_log_probs(kind, name):
    model, lm, source = model_of(name, words=WORDS), language_of(kind), [3, 5, 4, EOS]
    fused = Ensemble([model, lm], ShallowFusion([1.0, 0.4]))

    def encode(some: Any) -> Any:
        return encoded(model, some), None

    explicit = (log_probs_by_part(model, source) + 0.4 * log_probs_by_part(lm, source)).sum(1)
    check_best(
        ask(fused, [source], encode=encode, beam_size=200, length_penalty=0.7, n_best=3, max_new_tokens=LIMIT)[0], explicit, 0.7
    )
    tokens, keep = rows_of(sequences())
    with torch.no_grad():
        again = fused.score(tokens, keep, encode([source] * len(tokens))).sum(1)
    torch.testing.assert_close(again.double(), explicit, atol=1e-4, rtol=0)
    # the language model has an effect: without it, some outputs differ
    assert (explicit - log_probs_by_part(model, source).sum(1)).abs().max() > 0.1


def test_ensemble_with_shallow_fusion_fuses_the_mixture():
    parts, lm, source = [model_of("luong", words=WORDS), model_of("transformer", words=WORDS)], language_of("gru"), [5, 3, EOS]
    fused = Ensemble([Ensemble(parts, LinearEnsemble([0.5, 0.5])), lm], ShallowFusion([1.0, 0.3]))

    def encode(some: Any) -> Any:
        return tuple(encoded(part, some) for part in parts), None

    mean = torch.stack([log_probs_by_part(part, source) for part in parts]).exp().mean(0).log()
    explicit = (mean + 0.3 * log_probs_by_part(lm, source)).sum(1)
    check_best(
        ask(fused, [source], encode=encode, beam_size=200, length_penalty=1.0, n_best=3, max_new_tokens=LIMIT)[0], explicit, 1.0
    )


def test_product_ensembles_are_normalized_and_shallow_fusion_is_not():
    rows = [torch.randn(2, 5, generator=torch.Generator().manual_seed(seed)).log_softmax(-1) for seed in (0, 1)]
    fused, product = ShallowFusion([1.0, 0.5])(rows), LogLinearEnsemble([1.0, 0.5])(rows)
    torch.testing.assert_close(fused, rows[0] + 0.5 * rows[1])
    torch.testing.assert_close(product, fused.log_softmax(-1))
    assert ShallowFusion.pointwise and not LogLinearEnsemble.pointwise


# ---- a batch and one at a time


@every_decoder
@pytest.mark.parametrize(
    "options",
    [{"beam_size": 4, "n_best": 3}, {"beam_size": 1}, {"num_samples": 2, "seed": 5}],
    ids=["beam", "greedy", "samples"],
)
def test_a_batch_of_32_equals_one_at_a_time(name, options):
    model, sources = model_of(name), source_tokens(32)
    together = ask(model, sources, max_new_tokens=10, **options)
    numbers = range(0, 32, 5)
    for number in numbers:
        # samples depend on the index of a source, so the sources before it are included
        alone = ask(
            model, sources[: number + 1] if "num_samples" in options else [sources[number]], max_new_tokens=10, **options
        )[-1]
        same(together[number], alone)


def test_sources_of_several_batches_keep_their_order(monkeypatch):
    monkeypatch.setattr("weft.decode.predict.MAX_BATCH_SOURCES", 3)
    model, sources, calls = model_of("luong"), [*source_tokens(10), [3] * 40 + [EOS]], []
    actual = predict(asking(model, sources), PredictionConfig(beam_size=2), progress=lambda *done: calls.append(done))
    monkeypatch.undo()
    for item, expected in zip(actual, ask(model, sources, beam_size=2), strict=True):
        same(item, expected)
    assert calls == [(3, 11), (6, 11), (9, 11), (11, 11)]  # the longest ones first, whatever their limits
    assert ask(model, [], beam_size=2) == []


@pytest.mark.parametrize("options", [{"beam_size": 3, "patience": 0}, {"num_samples": 2, "seed": 3}], ids=["beam", "samples"])
def test_sources_of_different_limits_share_a_batch(options):
    model = model_of("luong", words=12)
    sources = [[3, 4] * 20 + [EOS], [3, EOS], [5] * 17 + [EOS]]
    config = PredictionConfig(**options, min_new_tokens=60)  # longer than two of the limits: those outputs are truncated
    request = asking(model, sources, speller=StringTokenizer("abcdefghi"))
    together = predict(request, config)
    lengths = [max(len(item.token_ids) for item in items) for items in together]
    assert lengths[1] == max_new_tokens_for(request, 1, config) < lengths[0] <= max_new_tokens_for(request, 0, config)
    for row, items in enumerate(together):
        alone = asking(model, sources[row : row + 1], speller=request.tokenizer)._replace(indices=[row])
        same(items, predict(alone, config)[0])


def test_patience_stops_a_search_early():
    model, sources, counted = deepcopy(model_of("transformer")), source_tokens(6), []
    model.head.head.bias.data[EOS] += 4.0  # outputs end early

    class Counted:
        def __getattr__(self, name):
            return getattr(model, name)

        def step(self, token, state):
            counted.append(len(token))
            return model.step(token, state)

        def stepper(self):
            return self.step

    results, rows = [], []
    for options in ({}, {"patience": 2}, {"patience": 0}, {"patience": 1000}):
        counted.clear()
        results.append(ask(Counted(), sources, beam_size=3, length_penalty=1.0, encode=lambda s: encoded(model, s), **options))
        rows.append(sum(counted))
    assert results[0] == results[1] and rows[0] == rows[1] < rows[2] == rows[3]
    assert results[2] == results[3]
    assert ask(model, sources, beam_size=3, length_penalty=0.0) == ask(
        model, sources, beam_size=3, length_penalty=0.0, patience=0
    )


# ---- scores


@every_decoder
@pytest.mark.parametrize("alpha", [0.0, 1.0, None])
def test_scores_are_sorted_length_penalized_log_probs_and_match_rescoring(name, alpha):
    model, sources, prefixes = model_of(name), source_tokens(5), [[], [4], [5, 6, 7], [], [3]]
    for source, prefix, actual in zip(
        sources,
        prefixes,
        ask(model, sources, prefixes=prefixes, beam_size=5, n_best=5, length_penalty=alpha, max_new_tokens=9),
        strict=True,
    ):
        assert [item.score for item in actual] == sorted((item.score for item in actual), reverse=True)
        for item in actual:
            assert item.prefix == prefix and item.text == SPELLER.decode([*prefix, *item.token_ids])
            assert item.score == pytest.approx(
                item.log_prob / len(item.token_ids) ** (1.0 if alpha is None else alpha), abs=1e-4
            )
            with torch.no_grad():
                again = model.score(torch.tensor([[BOS, *prefix, *item.token_ids]]), None, encoded(model, [source]))
            assert item.log_prob == pytest.approx(again[0, len(prefix) :].sum().item(), abs=1e-4)


@every_decoder
@pytest.mark.parametrize("options", [{"beam_size": 3, "n_best": 2}, {"beam_size": 1}], ids=["beam", "greedy"])
def test_prefixes_of_several_lengths_equal_each_alone(name, options):
    model, sources, prefixes = model_of(name), source_tokens(4), [[3, 4, 5], [], [6], [7, 7]]
    together = ask(model, sources, prefixes=prefixes, max_new_tokens=7, **options)
    for source, prefix, actual in zip(sources, prefixes, together, strict=True):
        same(actual, ask(model, [source], prefixes=[prefix], max_new_tokens=7, **options)[0])
        assert all(item.text.startswith(SPELLER.decode(prefix)) for item in actual)


# ---- what may be written


@every_decoder
def test_banned_tokens_never_appear(name):
    model, sources = model_of(name), source_tokens(12)
    for options in ({"beam_size": 4, "n_best": 4}, {"beam_size": 1}, {"num_samples": 4}):
        counts = Counter(
            token for actual in ask(model, sources, max_new_tokens=8, **options) for item in actual for token in item.token_ids
        )
        often = [token for token, _ in counts.most_common() if token != EOS][:2]
        restricted = ask(
            model, sources, max_new_tokens=8, banned_tokens=[SPELLER.decode([token]) for token in often], **options
        )
        remaining = {token for actual in restricted for item in actual for token in item.token_ids}
        assert len(often) == 2 and not {0, BOS, *often} & remaining


@every_decoder
def test_min_and_max_new_tokens_are_respected(name):
    model, sources = model_of(name), source_tokens(8)
    for options in ({"beam_size": 3, "n_best": 3}, {"beam_size": 1}, {"num_samples": 3}):
        for actual in ask(model, sources, max_new_tokens=5, min_new_tokens=3, **options):
            for item in actual:
                assert item.token_ids.index(EOS) >= 3 if EOS in item.token_ids else len(item.token_ids) == 5
                assert len(item.token_ids) <= 5
        assert {len(item.token_ids) for actual in ask(model, sources, max_new_tokens=1, **options) for item in actual} == {1}


def test_default_max_new_tokens_depends_on_the_source_only():
    model = model_of("luong")
    request = asking(model, [[3] * size for size in (1, 16, 17, 200)])
    assert [max_new_tokens_for(request, row, PredictionConfig()) for row in range(4)] == [64, 64, 96, 448]
    assert [max_new_tokens_for(request, row, PredictionConfig(max_new_tokens=7)) for row in range(4)] == [7] * 4
    # EOS may follow this number of tokens, so there is a position for it
    assert [max_new_tokens_for(request, row, PredictionConfig(min_new_tokens=100)) for row in range(4)] == [101, 101, 101, 448]


@pytest.mark.parametrize("options", [{"beam_size": 2}, {"beam_size": 1}, {"num_samples": 2}], ids=["beam", "greedy", "samples"])
def test_learned_positions_limit_the_output_length(options):
    model = large_weight_model(**ATTENTION, position_encoding="learned", max_positions=12)
    sources, prefixes = source_tokens(4), [[3] * 11, [], [4] * 5, []]
    with torch.no_grad():
        model.head.head.bias[EOS] = -50.0  # it never ends by itself
    actual = ask(model, sources, prefixes=prefixes, **options)
    assert [len(best[0].token_ids) for best in actual] == [1, 12, 7, 12]
    with pytest.raises(UsageError) as caught:
        ask(model, sources, max_new_tokens=13, **options)
    assert str(caught.value) == (
        "max_new_tokens: 1 prompt tokens and 13 new tokens exceed the model's 12 positions; use at most 12"
    )
    with pytest.raises(UsageError) as caught:
        ask(model, sources, prefixes=[[3] * 12] * 4, **options)
    assert str(caught.value) == (
        "max_new_tokens: 13 prompt tokens and 1 new tokens exceed the model's 12 positions; "
        "shorten the prompt to at most 12 tokens"
    )


def test_a_banned_string_must_be_one_token():
    unknown = "is not in the vocabulary and is never generated; remove it"
    several = "tokens; ban single tokens"
    for text, fault in (("ab", f"is 2 {several}"), ("z", unknown), ("", f"is 0 {several}")):
        with pytest.raises(UsageError) as caught:
            ask(model_of("luong"), source_tokens(1), banned_tokens=[text])
        assert str(caught.value) == f"banned_tokens: {text!r} {fault}"


# ---- sampling


def test_samples_depend_on_the_seed():
    model, sources = model_of("luong"), source_tokens(6)

    def drawn(**options: Any) -> list[list[list[int]]]:
        return [[item.token_ids for item in actual] for actual in ask(model, sources, max_new_tokens=8, **options)]

    first = drawn(num_samples=4, seed=1)
    assert first == drawn(num_samples=4, seed=1)
    assert first != drawn(num_samples=4, seed=2)
    assert [actual[:2] for actual in first] == drawn(num_samples=2, seed=1)  # more samples do not change the first
    assert all(len({tuple(tokens) for tokens in actual}) > 1 for actual in first)
    greedy = drawn(beam_size=1)
    assert drawn(temperature=0.0) == drawn(top_k=1) == drawn(top_p=1e-6) == greedy
    assert drawn(temperature=1e-3) == greedy
    assert drawn(temperature=1.0) != greedy


def test_sample_frequencies_match_probabilities():
    model, source = model_of("copying", words=WORDS), [4, 5, EOS]
    actual = ask(model, [source], num_samples=4000, max_new_tokens=LIMIT)[0]
    counts = Counter(tuple(item.token_ids) for item in actual)
    # banned tokens are excluded: probabilities are renormalized over the rest
    with torch.no_grad():
        state = encoded(model, [source])
        first = model.start(torch.tensor([[BOS]]), None, state)[0][0].exp()
    allowed = first[2:] / first[2:].sum()
    for token, share in enumerate(allowed.tolist(), 2):
        seen = sum(count for tokens, count in counts.items() if tokens[0] == token) / 4000
        assert seen == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 4000) + 1e-3)
    totals = dict(zip(map(tuple, sequences()), log_probs_by_part(model, source).sum(1).tolist(), strict=True))
    for item in actual[:50]:
        assert item.log_prob == item.score == pytest.approx(totals[tuple(item.token_ids)], abs=1e-4)


# ---- options


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"bem": 3}, "bem: unknown option; did you mean 'beam_size'?"),
    ({"stop": ["x"]}, "stop: unknown option; did you mean 'top_p'?"),
    ({"beam_size": "wide"}, "beam_size: expected an integer, got 'wide'"),
    ({"beam_size": 0}, "beam_size: must be at least 1, got 0"),
    ({"beam_size": 1001}, "beam_size: must be at most 1000, got 1001"),
    ({"length_penalty": -0.5}, "length_penalty: must be at least 0, got -0.5"),
    ({"length_penalty": 11.0}, "length_penalty: must be at most 10, got 11.0"),
    ({"patience": 0.5}, "patience: must be 0 or from 1 to 1000, got 0.5"),
    ({"patience": -1}, "patience: must be 0 or from 1 to 1000, got -1"),
    ({"patience": 1001}, "patience: must be 0 or from 1 to 1000, got 1001"),
    (
        {"num_samples": 2, "patience": 2},
        "patience: cannot be combined with sampling; remove it, or `num_samples`, `temperature`, `top_k` and `top_p`",
    ),
    ({"n_best": 0}, "n_best: must be at least 1, got 0"),
    ({"n_best": 6}, "n_best: 6 is more than `beam_size` (5)"),
    ({"n_best": 2, "beam_size": 1}, "n_best: 2 is more than `beam_size` (1)"),
    ({"max_new_tokens": 0}, "max_new_tokens: must be at least 1, got 0"),
    ({"max_new_tokens": 10**6 + 1}, "max_new_tokens: must be at most 1000000, got 1000001"),
    ({"min_new_tokens": -1}, "min_new_tokens: must be at least 0, got -1"),
    ({"max_new_tokens": 3, "min_new_tokens": 4}, "min_new_tokens: 4 is more than `max_new_tokens` (3)"),
    ({"seed": -1}, "seed: must be at least 0, got -1"),
    ({"temperature": -1.0}, "temperature: must be at least 0, got -1"),
    ({"temperature": math.nan}, "temperature: expected a finite number, got nan"),
    ({"top_k": 0}, "top_k: must be at least 1, got 0"),
    ({"top_p": 0.0}, "top_p: must be in (0, 1], got 0"),
    ({"top_p": 1.5}, "top_p: must be in (0, 1], got 1.5"),
    ({"num_samples": 0}, "num_samples: must be at least 1, got 0"),
    ({"num_samples": 10**4 + 1}, "num_samples: must be at most 10000, got 10001"),
    (
        {"num_samples": 2, "beam_size": 3},
        "beam_size: cannot be combined with sampling; remove it, or `num_samples`, `temperature`, `top_k` and `top_p`",
    ),
    (
        {"top_k": 2, "length_penalty": 0.5},
        "length_penalty: cannot be combined with sampling; remove it, or `num_samples`, `temperature`, `top_k` and `top_p`",
    ),
    ({"top_p": 0.5, "n_best": 3}, "n_best: cannot be combined with sampling; use `num_samples` 3"),
    ({"temperature": 0.0, "num_samples": 3}, "num_samples: a `temperature` of 0 gives one output; increase it"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[message[:50] for _, message in REFUSED])
def test_error_messages(options, message):
    with pytest.raises(UsageError) as caught:
        PredictionConfig(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "beam:5/alpha:1/patience:2"),
        ({"patience": 0}, "beam:5/alpha:1"),  # as in signatures of versions that had no patience
        ({"patience": 1.5}, "beam:5/alpha:1/patience:1.5"),
        ({"length_penalty": 0}, "beam:5/alpha:0"),  # the bound is tight
        ({"length_penalty": 0, "patience": 3}, "beam:5/alpha:0/patience:3"),
        ({"beam_size": 1}, "greedy"),
        ({"beam_size": 10, "length_penalty": 0.6}, "beam:10/alpha:0.6/patience:2"),
        ({"max_new_tokens": 9, "min_new_tokens": 2, "truncate": True}, "beam:5/alpha:1/patience:2/length:9/least:2/truncate"),
        ({"beam_size": 1, "banned_tokens": ["z", "a/b|c", "z"]}, "greedy/ban:a%2Fb%7Cc,z"),
        ({"top_k": 3, "min_new_tokens": 2}, "sampling/top_k:3/seed:0/least:2"),
        ({"num_samples": 3}, "sampling/seed:0"),
        ({"top_p": 0.9, "temperature": 0.5, "seed": 4}, "sampling/temperature:0.5/top_p:0.9/seed:4"),
    ],
)
def test_search_signature(options, words):
    assert PredictionConfig(**options).describe() == words
