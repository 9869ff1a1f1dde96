"""Text generation: stop strings, streaming, ragged batches, memory limits and ensembles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from toy_decoding import TOY_MODELS, Bigram, ByteTokenizer, Hashed, StringTokenizer, TinyGRU, chain_model

from weft.decode.batch_size import COPIES
from weft.decode.beam import BeamOptions, beam_search
from weft.decode.detokenize import CachedDecoder, StopStringFilter, StreamingText, added_text, decode_until_stop
from weft.decode.ensemble import Ensemble, LinearEnsemble, LogLinearEnsemble
from weft.decode.generate import Frame, generate, stream
from weft.decode.options import GenerationConfig
from weft.errors import ResourceError, UsageError
from weft.models.config import LanguageModelConfig
from weft.models.lm import language_model
from weft.models.ngram import NgramConfig, fit
from weft.nn.state import tree_leaves
from weft.resources import format_bytes, measure_peak_memory
from weft.text.tokenizers import TYPES, TokenizerConfig, train_tokenizer

LETTERS = StringTokenizer("abcdefghij")
every_toy = pytest.mark.parametrize("toy", TOY_MODELS.values(), ids=TOY_MODELS.keys())


def pieces(speller, prompt, tokens, stops=()):
    text = StreamingText(speller, prompt, stops)
    return [*(text.push(token) for token in tokens), text.finish()]


class KeepsConstant(TinyGRU):
    """Makes a tensor at its first call, which gradients need later."""

    scale: torch.Tensor | None = None

    def log_probs(self, state):
        if self.scale is None:
            self.scale = torch.linspace(0.5, 1.0, self.vocab_size)
        return (super().log_probs(state) * self.scale).log_softmax(1)


def test_models_of_others_can_be_trained_after_generation():
    model = KeepsConstant(LETTERS.vocab_size)
    generate(model, LETTERS, ["ab"], GenerationConfig(max_new_tokens=3), frame=Frame(None))
    log_probs, _ = model.start(torch.tensor([[1, 3]]))
    log_probs[0, 3].backward()
    assert model.head.weight.grad is not None


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=40) | st.text(max_size=20).map(str.encode), st.text(max_size=5))
@example("é€😀".encode()[:-1], "é")
@example(b"\xf0\x9f\xff\x98a\xe2\x82", "")
def test_incremental_decoding_of_any_bytes_equals_decoding_at_once(raw, prompt):
    before = [1, *ByteTokenizer().ids(prompt)]
    actual = pieces(ByteTokenizer(), before, [3 + byte for byte in raw])
    assert "".join(actual) == raw.decode(errors="replace")


@pytest.mark.parametrize("limit", [0, 1, 1 << 16])
def test_a_decoder_with_a_cache_returns_the_same_texts(monkeypatch, limit):
    monkeypatch.setattr("weft.decode.detokenize.MAX_CACHED_TEXTS", limit)
    tokenizer = ByteTokenizer()
    cached = CachedDecoder(tokenizer)
    assert (cached.unk_id, cached.bos_id, cached.eos_id) == (tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id)
    rows = [tokenizer.encode(text).tolist() for text in ("naïve", "na", "ü", "", "naïve naïve")]
    for row in rows * 2:
        for end in range(len(row) + 1):
            assert cached.decode(row[:end]) == tokenizer.decode(row[:end])
        assert decode_until_stop(cached, row[:1], row[1:], ()) == decode_until_stop(tokenizer, row[:1], row[1:], ())


def test_a_character_is_emitted_when_it_is_complete():
    actual = pieces(ByteTokenizer(), [1], [3 + byte for byte in "a€b".encode()])
    assert actual == ["a", "", "", "€", "b", ""]


def test_words_after_a_prompt_start_with_their_space():
    words = StringTokenizer(["the", "cat", "sat"], between=" ")
    assert pieces(words, [1, 3, 4], [5, 3]) == [" sat", " the", ""]
    assert pieces(words, [1], [5, 3]) == ["sat", " the", ""]


KINDS_OF_TEXT = ["the cat sat on the mat.\nthe dog didn't.\n", "Ünïcode 😀 and tabs\t too\n"] * 8


@pytest.mark.parametrize("tokenizer_type", TYPES)
def test_incremental_decoding_equals_decoding_at_once_for_every_tokenizer(tokenizer_type):
    tokenizer = train_tokenizer(TokenizerConfig(type=tokenizer_type, vocab_size=300), iter(KINDS_OF_TEXT))
    rng = np.random.default_rng(0)
    for prompt in ("", "the cat", "the cat sat\n", "Ünïcode"):
        before = [1, *tokenizer.encode(prompt).tolist()]
        for _ in range(15):
            tokens = rng.integers(3, tokenizer.vocab_size, size=rng.integers(1, 25)).tolist()
            assert "".join(pieces(tokenizer, before, [*tokens, 2])) == added_text(tokenizer, before, tokens)
    # prompt and continuation join to the text that all tokens decode to
    text = tokenizer.encode(KINDS_OF_TEXT[0]).tolist()
    full = tokenizer.decode(text)
    for index in range(len(text)):
        assert tokenizer.decode(text[:index]) + "".join(pieces(tokenizer, [1, *text[:index]], text[index:])) == full


def naive_cut(text, stops):
    """The text before the stop string that is complete first."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end - max(map(len, ended))]
    return text


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.text("abc", max_size=3), max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
)
@example(["a", "b", "c"], ["abc", "b"])
def test_stop_position_does_not_depend_on_the_chunks(parts, stops):
    stopping = StopStringFilter(stops)
    actual = [stopping.push(part) for part in parts]
    sure = "".join(actual)
    full = naive_cut("".join(parts), stops)
    assert full.startswith(sure)
    assert sure + stopping.finish() == full


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(3, 258), max_size=30), st.lists(st.text("ab\ufffdé", min_size=1, max_size=3), max_size=2))
def test_a_stream_emits_the_text_before_a_stop_string(tokens, stops):
    text = ByteTokenizer().decode(tokens)
    full = naive_cut(text, stops) if stops else text
    assert decode_until_stop(ByteTokenizer(), [1], tokens, stops) == (full, any(stop in text for stop in stops))


def test_stop_strings_match_across_tokens_and_their_tokens_count():
    # a b b c ..., from tokens of one or two letters
    speller = StringTokenizer(["a", "bb", "bc", "cd"])
    model = chain_model([1, 3, 4, 5, 6, 3], 7)
    [[actual]] = generate(
        model, speller, [""], GenerationConfig(max_new_tokens=9, stop=["bcc"], temperature=0.0), frame=Frame(None)
    )
    assert actual.text == "abb"
    assert actual.token_ids == [3, 4, 5, 6]
    assert list(
        stream(model, speller, "", GenerationConfig(max_new_tokens=9, stop=["bcc"], temperature=0.0), frame=Frame(None))
    ) == [
        "a",
        "b",
        "b",
    ]


@pytest.mark.parametrize("search", [{"temperature": 0.0}, {"beam_size": 2}], ids=["greedy", "beam"])
def test_finish_reason_of_a_continuation(search):
    tokenizer = StringTokenizer(["a", "bb", "bc", "cd"])
    model = chain_model([1, 3, 4, 5, 6, 2], 7)

    def finish_reason(frame: Frame, **options: Any) -> str:
        [[continuation]] = generate(model, tokenizer, [""], GenerationConfig(**search, **options), frame=frame)
        return continuation.finish_reason

    assert finish_reason(Frame(2), max_new_tokens=9) == "eos"
    assert finish_reason(Frame(2), max_new_tokens=5) == "eos"
    assert finish_reason(Frame(2), max_new_tokens=4) == "length"
    assert finish_reason(Frame(2), max_new_tokens=9, stop=["bcc"]) == "stop"
    assert finish_reason(Frame(2), max_new_tokens=9, stop=["d"]) == "stop"
    assert finish_reason(Frame(2), max_new_tokens=9, stop=["x"]) == "eos"


@every_toy
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_k": 9, "repetition_penalty": 1.2},
        {"top_p": 0.8, "stop": ["ab", "j"]},
        {"min_p": 0.1, "no_repeat_ngram_size": 3},
        {"beam_size": 3, "length_penalty": 0.7, "stop": ["c"]},
    ],
    ids=lambda options: "-".join(options),
)
@pytest.mark.parametrize("end", [None, 2], ids=["running", "lines"])
def test_stream_equals_generate(toy, options, end):
    model, options = toy(13), GenerationConfig(max_new_tokens=30, **options)
    for prompt in ("", "abc"):
        [[full]] = generate(model, LETTERS, [prompt], options, frame=Frame(end))
        assert "".join(stream(model, LETTERS, prompt, options, frame=Frame(end))) == full.text
        assert all(stop not in full.text for stop in options.stop)


@pytest.mark.parametrize("seed", range(4))
def test_byte_stream_equals_generate(seed):
    model, options = TinyGRU(259, seed=seed), GenerationConfig(max_new_tokens=80, seed=seed, stop=["\ufffd\ufffd"])
    [[full]] = generate(model, ByteTokenizer(), ["é"], options, frame=Frame(None))
    assert "".join(stream(model, ByteTokenizer(), "é", options, frame=Frame(None))) == full.text


@every_toy
@pytest.mark.parametrize("alpha", [0.0, 1.0])
@pytest.mark.parametrize("rows", [4, 64])
def test_an_interrupted_search_returns_its_best_hypotheses(toy, alpha, rows, monkeypatch):
    """Equals a search with this maximum number of tokens: finished hypotheses, and unfinished ones as they are."""
    monkeypatch.setattr("weft.decode.generate.MAX_BATCH_ROWS", rows)
    model, prompts, requests = toy(13), ["abc", "", "jj"], []
    search = {"beam_size": 4, "n_best": 3, "length_penalty": alpha}

    def going(done, total):
        requests.append((done, total))
        return done % 100_000 < 6

    actual = generate(
        model, LETTERS, prompts, GenerationConfig(max_new_tokens=100_000, **search), frame=Frame(2), should_continue=going
    )
    expected = generate(model, LETTERS, prompts, GenerationConfig(max_new_tokens=6, **search), frame=Frame(2))
    assert [[item[:2] for item in best] for best in actual] == [[item[:2] for item in best] for best in expected]
    for actual_row, expected_row in zip(actual, expected, strict=True):
        assert [item.score for item in actual_row] == pytest.approx([item.score for item in expected_row], abs=1e-4)
    batches = 3 if rows == 4 else 1
    assert {total for _, total in requests} == {batches * 100_000}
    assert requests[0][0] == 1 and requests == sorted(requests) and requests[-1][0] <= (batches - 1) * 100_000 + 6


@every_toy
@pytest.mark.parametrize("options", [{"num_samples": 3, "seed": 5}, {"beam_size": 4, "n_best": 3}], ids=["samples", "beam"])
def test_results_do_not_depend_on_the_batch(toy, options, monkeypatch):
    model, options = toy(13), GenerationConfig(max_new_tokens=15, **options)
    prompts = ["abcdef", "", "jj", "a", "hihihihi"]
    full = generate(model, LETTERS, prompts, options, frame=Frame(2))
    for rows in (1, 7):
        monkeypatch.setattr("weft.decode.generate.MAX_BATCH_ROWS", rows)
        small = generate(model, LETTERS, prompts, options, frame=Frame(2))
        for samples, few in zip(full, small, strict=True):
            assert [item[:2] for item in samples] == [item[:2] for item in few]
            assert [item.log_prob for item in samples] == pytest.approx([item.log_prob for item in few], abs=1e-4)
    assert [len(samples) for samples in full] == [3] * 5


def test_seeds_are_reproducible_and_samples_differ():
    model, options = Hashed(13), GenerationConfig(max_new_tokens=20, num_samples=4, seed=1)
    first = generate(model, LETTERS, ["ab", "ab"], options, frame=Frame(None))
    assert first == generate(model, LETTERS, ["ab", "ab"], options, frame=Frame(None))
    assert len({item.text for samples in first for item in samples}) == 8
    other = generate(model, LETTERS, ["ab"], options.model_copy(update={"seed": 2}), frame=Frame(None))
    assert {item.text for item in other[0]}.isdisjoint(item.text for item in first[0])
    # one more sample does not change the earlier ones
    more = generate(model, LETTERS, ["ab"], options.model_copy(update={"num_samples": 5}), frame=Frame(None))
    assert more[0][:4] == first[0]


@every_toy
@pytest.mark.parametrize(
    "options", [{"num_samples": 2}, {"beam_size": 3, "n_best": 3, "length_penalty": 0.5}], ids=["samples", "beam"]
)
def test_log_probabilities_equal_scoring_again(toy, options):
    model = toy(13)
    [actual] = generate(model, LETTERS, ["abc"], GenerationConfig(max_new_tokens=12, **options), frame=Frame(2))
    for item in actual:
        again = model.score(torch.tensor([[1, 3, 4, 5, *item.token_ids]]))[0, 3:].sum().item()
        assert item.log_prob == pytest.approx(again, abs=1e-4)
        assert item.text == LETTERS.decode(item.token_ids)
    assert [item.score for item in actual] == sorted((item.score for item in actual), reverse=True) or "samples" in options


@pytest.mark.parametrize("options", [{"num_samples": 40}, {"beam_size": 4, "n_best": 4}], ids=["samples", "beam"])
def test_special_tokens_are_never_generated(options):
    table = torch.full((13, 13), -4.0)
    table[:, :3] = 0.0  # otherwise the model would generate little else
    model, options = Bigram(13, table=table.log_softmax(1)), GenerationConfig(max_new_tokens=8, **options)
    [running] = generate(model, LETTERS, [""], options, frame=Frame(None))
    assert all(min(continuation.token_ids) > 2 and len(continuation.token_ids) == 8 for continuation in running)
    [lines] = generate(model, LETTERS, [""], options, frame=Frame(2))
    assert {min(continuation.token_ids) for continuation in lines} == {2}
    assert all(2 not in continuation.token_ids[:-1] for continuation in lines)


def test_eos_is_blocked_until_min_new_tokens():
    table = torch.full((13, 13), -4.0)
    table[:, 2] = 0.0
    model = Bigram(13, table=table.log_softmax(1))
    for more in ({}, {"temperature": 0.0}, {"beam_size": 2}):
        [[continuation]] = generate(
            model, LETTERS, [""], GenerationConfig(max_new_tokens=9, min_new_tokens=4, **more), frame=Frame(2)
        )
        assert len(continuation.token_ids) >= 5
        assert continuation.token_ids.index(2) >= 4


NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NO_GPU)])
@pytest.mark.parametrize("mixer", ["attention", "lstm", "conv"])
def test_log_probs_of_real_models_equal_their_scores(mixer, device):
    torch.manual_seed(0)
    table = LanguageModelConfig(layer_type=mixer, num_layers=2, hidden_size=16).with_defaults()
    model = language_model(table, vocab_size=13, context_length=32, vocabulary="").eval().to(device)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    asked = [
        {"num_samples": 2, "top_p": 0.9, "repetition_penalty": 1.1},
        {"beam_size": 3, "n_best": 2, "no_repeat_ngram_size": 2, "stop": ["ab", "j"]},
    ]
    prompts = ["abc", "", "fghij"]
    for options in asked:
        actual = generate(
            model, LETTERS, prompts, GenerationConfig(max_new_tokens=10, **options), frame=Frame(2), device=device
        )
        for prompt, samples in zip(prompts, actual, strict=True):
            before = [1, *LETTERS.ids(prompt)]
            for item in samples:
                tokens = torch.tensor([before + item.token_ids], device=device)
                again = model.score(tokens)[0, len(before) - 1 :].sum().item()
                assert item.log_prob == pytest.approx(again, abs=1e-3)


# ---- memory

STACKS = {
    "window": {"layer_type": "conv", "kernel_size": 4},
    "lstm": {"layer_type": "lstm"},
    "gru-before": {"layer_type": "gru-reset-before", "skip_connection": "dense"},
    "rotary": {"layer_type": "attention", "position_encoding": "rotary"},
    "heads": {"layer_type": "attention", "num_heads": [1, 4], "head_dim": 6},
}


@pytest.mark.parametrize("name", STACKS)
def test_estimated_state_size_equals_the_actual_size(name):
    torch.manual_seed(0)
    model = language_model(
        LanguageModelConfig(num_layers=2, hidden_size=8, **STACKS[name]).with_defaults(),
        vocab_size=20,
        context_length=5,
        vocabulary="",
    ).eval()
    state, maximum = None, 0
    for read in range(1, 31):
        _, state = model.start(torch.tensor([[3]]), None, state)
        maximum = max(maximum, sum(part.nbytes for part in tree_leaves(state)))
        estimate = model.bytes_per_row(read) - 2 * 4 * 20
        assert estimate == maximum if read < 10 else maximum <= estimate <= 10 / 9 * maximum
    assert model.bytes_per_row(10**9) == model.bytes_per_row(10)


def test_state_size_of_attention():
    """Keys and values (two heads of four numbers in each of two layers), a position, and one number for the length."""
    table = LanguageModelConfig(layer_type="attention", num_layers=2, hidden_size=8, num_heads=2).with_defaults()
    model = language_model(table, vocab_size=20, context_length=500, vocabulary="").eval()
    assert model.bytes_per_row(100) == 2 * 100 * (2 * 2 * 4 * 4 + 8) + 8 + 2 * 20 * 4
    again = language_model(table, vocab_size=20, context_length=1, vocabulary="").eval()
    assert again.bytes_per_row(100) == 2 * 1 * (2 * 2 * 4 * 4 + 8) + 8 + 2 * 20 * 4


def test_state_size_of_ngram_models_and_ensembles():
    trigram = fit(np.array([3, 4, 5, 3]), None, NgramConfig(order=3), vocab_size=6, vocabulary="v")
    assert trigram.bytes_per_row(7) == trigram.bytes_per_row(7000) == 8 * 2 + 2 * 4 * 6
    ensemble = Ensemble([trigram, trigram], LinearEnsemble([0.5, 0.5]))
    assert ensemble.bytes_per_row(7) == 2 * trigram.bytes_per_row(7)


def held(monkeypatch, number):
    monkeypatch.setattr("weft.decode.generate.MIN_CHECKED_TOKENS", 0)
    for attribute in ("batch_size", "generate"):
        monkeypatch.setattr(f"weft.decode.{attribute}.free_device_memory", lambda device: number)


@pytest.mark.parametrize("search_options", [{"beam_size": 4}, {"num_samples": 3}, {"temperature": 0.0}])
def test_a_row_that_exceeds_memory_is_rejected_before_the_first_step(monkeypatch, search_options):
    toy, rows = Hashed(13), search_options.get("beam_size", 1)
    options = GenerationConfig(max_new_tokens=50, **search_options)
    needed = COPIES * rows * (toy.bytes_per_row(54) + 8 * 54)
    held(monkeypatch, needed)
    assert generate(toy, LETTERS, ["abcd"], options, frame=Frame(2))
    toy.steps_taken.clear()
    held(monkeypatch, needed - 1)
    unit, cure = ("a beam of 4 rows", "`beam_size` or `max_new_tokens`") if rows > 1 else ("a row", "`max_new_tokens`")
    for call in (generate, stream):
        with pytest.raises(ResourceError) as caught:
            call(toy, LETTERS, ["a", "abcd"] if call is generate else "abcd", options, frame=Frame(2))
        assert str(caught.value) == (
            f"generate: {unit} of up to 54 tokens needs about {format_bytes(needed)}, {format_bytes(needed - 1)} are free; reduce {cure}"
        )
    assert toy.steps_taken == []


@pytest.mark.parametrize("search_options", [{"beam_size": 4}, {"num_samples": 3}])
def test_short_memory_reduces_the_batch_and_not_the_results(monkeypatch, search_options):
    toy, rows = Hashed(13), search_options.get("beam_size", 1)
    options, prompts = GenerationConfig(max_new_tokens=20, **search_options), ["abcd", "a", "fg", "", "abc"]
    full = generate(toy, LETTERS, prompts, options, frame=Frame(None))
    assert max(toy.steps_taken) == (20 if rows > 1 else 15)
    toy.steps_taken.clear()
    held(monkeypatch, 2 * COPIES * rows * (toy.bytes_per_row(24) + 8 * 24))
    assert generate(toy, LETTERS, prompts, options, frame=Frame(None)) == full
    assert max(toy.steps_taken) == 2 * rows


def test_memory_for_long_prompts_is_measured_on_one_prompt(monkeypatch):
    """The gates of a GRU at 401 positions need more memory than its state; a single prompt is not measured."""
    torch.manual_seed(0)
    model = language_model(
        LanguageModelConfig(layer_type="gru", hidden_size=64).with_defaults(), vocab_size=13, context_length=8, vocabulary=""
    ).eval()
    with torch.no_grad():
        peak = measure_peak_memory(lambda rows: model.start(torch.zeros(1, 401, dtype=torch.long)), 1)
    assert peak > COPIES * model.bytes_per_row(402)
    read = []
    monkeypatch.setattr(model, "start", lambda *given: read.append(given[0].shape) or type(model).start(model, *given))
    options, prompts = GenerationConfig(max_new_tokens=2), ["ab" * 200] * 20
    full = generate(model, LETTERS, prompts, options, frame=Frame(None))
    assert read == [(1, 401), (20, 401)]
    read.clear()
    held(monkeypatch, 3 * peak)
    assert [[peak.text for peak in actual] for actual in generate(model, LETTERS, prompts, options, frame=Frame(None))] == [
        [peak.text for peak in actual] for actual in full
    ]
    assert read == [(1, 401), *[(3, 401)] * 6, (2, 401)]
    read.clear()
    generate(model, LETTERS, prompts[:1], options, frame=Frame(None))
    assert read == [(1, 401)]


def test_no_prompt_gives_no_continuation():
    assert generate(Hashed(13), LETTERS, [], GenerationConfig(), frame=Frame(None)) == []


@pytest.mark.parametrize("function", [generate, stream])
def test_a_prompt_beyond_the_last_position_is_rejected_before_the_first_step(function):
    model, options = Bigram(13, max_positions=16), GenerationConfig(max_new_tokens=12)
    prompt = ["", "abcdef"] if function is generate else "abcdef"
    with pytest.raises(UsageError) as caught:
        function(model, LETTERS, prompt, options, frame=Frame(None))
    assert str(caught.value) == (
        "max_new_tokens: 7 prompt tokens and 12 new tokens exceed the model's 16 positions; use at most 10"
    )
    assert model.steps_taken == []


def both(combine):
    return Ensemble([TinyGRU(9, seed=1), Hashed(9), Bigram(9)], combine)


def explicit(models, weights, tokens, ensemble_type):
    """Log-probabilities of the ensemble after `tokens`, from the definition, in float64."""
    rows = torch.stack([model.start(torch.tensor([tokens]))[0][0].double() for model in models])
    weights = torch.tensor(weights, dtype=torch.float64).unsqueeze(1)
    if ensemble_type is LinearEnsemble:
        return (rows.exp() * weights).sum(0).log()
    return (rows * weights).sum(0).log_softmax(0)


@pytest.mark.parametrize("ensemble_type", [LinearEnsemble, LogLinearEnsemble])
def test_ensemble_equals_its_definition(ensemble_type):
    weights = [0.5, 0.3, 0.2]
    model = both(ensemble_type(weights))
    tokens = [1, 4, 8, 3, 3, 5]
    log_probs, state = model.start(torch.tensor([tokens[:2]]))
    for index in range(2, len(tokens)):
        expected = explicit(model.models, weights, tokens[:index], ensemble_type)
        torch.testing.assert_close(log_probs[0].double(), expected, rtol=0, atol=1e-5)
        log_probs, state = model.step(torch.tensor(tokens[index : index + 1]), state)
    scores = model.score(torch.tensor([tokens]))[0]
    expected = [
        explicit(model.models, weights, tokens[:index], ensemble_type)[tokens[index]].item() for index in range(1, len(tokens))
    ]
    assert scores.tolist() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("ensemble_type", [LinearEnsemble, LogLinearEnsemble])
def test_ensemble_scores_ragged_rows_and_runs_beam_search(ensemble_type):
    model = both(ensemble_type([0.5, 0.3, 0.2]))
    tokens, keep = torch.tensor([[1, 4, 8, 3], [1, 5, 0, 0]]), torch.tensor([[True] * 4, [True] * 2 + [False] * 2])
    scores = model.score(tokens, keep)
    assert scores[1, 1:].tolist() == [0, 0]
    torch.testing.assert_close(scores[1:, :1], model.score(tokens[1:, :2]))
    assert model.score(tokens[:, :1]).shape == (2, 0)
    [actual] = beam_search(model, torch.tensor([[1]]), options=BeamOptions(beam_size=3, max_new_tokens=6, eos_id=2, n_best=2))
    for item in actual:
        assert item.log_prob == pytest.approx(model.score(torch.tensor([[1, *item.tokens]])).sum().item(), abs=1e-4)


def test_ensemble_members_with_disjoint_support_leave_no_token():
    one, other = chain_model([1, 3], 5), chain_model([1, 4], 5)
    log_probs, _ = Ensemble([one, other], LogLinearEnsemble([1.0, 0.5])).start(torch.tensor([[1]]))
    assert log_probs.tolist() == [[-math.inf] * 5]
    log_probs, _ = Ensemble([one, other], LinearEnsemble([0.25, 0.75])).start(torch.tensor([[1]]))
    torch.testing.assert_close(log_probs.exp(), torch.tensor([[0, 0, 0, 0.25, 0.75]]))


def test_max_positions_of_an_ensemble_is_that_of_its_shortest_member():
    parts = [Bigram(5), Bigram(5, max_positions=64), Bigram(5, max_positions=32)]
    assert Ensemble(parts, LogLinearEnsemble([1, 1, 1])).max_positions == 32
    assert Ensemble(parts[:1], LogLinearEnsemble([1])).max_positions is None


def test_incompatible_ensemble_members_are_rejected():
    model, other = Bigram(5), Bigram(5, vocabulary="99887766" * 8)
    with pytest.raises(UsageError) as caught:
        Ensemble([model, model, other], LogLinearEnsemble([1, 1, 1]))
    assert str(caught.value) == (
        "ensemble: models 1 and 3 have different tokenizers (ab12cd34, 99887766); train both with `tokenizer_from`"
    )
    with pytest.raises(UsageError) as caught:
        Ensemble([model, model], LogLinearEnsemble([1.0]))
    assert str(caught.value) == "ensemble: 2 models, but 1 weights"
    with pytest.raises(UsageError) as caught:
        LogLinearEnsemble([1.0, 0.0])
    assert str(caught.value) == "ensemble: weights must be positive, got [1.0, 0.0]"
    with pytest.raises(UsageError) as caught:
        LinearEnsemble([0.5, 0.6])
    assert str(caught.value) == "ensemble: the weights of a linear ensemble must sum to 1, got 1.1"
