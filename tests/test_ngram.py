"""n-gram models: comparison with the published formulas, a worked example, and the step contract."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ngram_formulas import FORMULAS

from weft import tensors as tensor_files
from weft.config import parse_config, to_dict
from weft.errors import ConfigError, DataError, ModelError
from weft.models import ngram
from weft.models import ngram_counts as counts
from weft.models import ngram_index as lookup
from weft.models.ngram import NgramConfig, NgramModel, fit
from weft.models.ngram_index import NgramIndex, binary_search
from weft.nn.state import join, select

DATA = Path(__file__).parents[2] / "shared" / "data"
SIZE = 9  # <unk>, <s>, </s> and six words, of which the last never occurs
every_smoothing = pytest.mark.parametrize("smoothing", FORMULAS)


def text(seed: int, lines: int = 60) -> list[list[int]]:
    """Lines of skewed random words that depend slightly on the previous word, each with EOS."""
    generator = np.random.default_rng(seed)
    line_tokens = []
    for _ in range(lines):
        line, last = [], 0
        for _ in range(generator.integers(0, 9)):
            last = int(min(generator.geometric(0.4) + last % 2, 5)) + 2
            line.append(last)
        line_tokens.append([*line, 2])
    return line_tokens


def flat(lines: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.array([word for line in lines for word in line], np.uint32)
    return tokens, np.cumsum([0, *map(len, lines)])


def model_of(lines: list[list[int]], size: int = SIZE, **options) -> NgramModel:
    return fit(*flat(lines), NgramConfig(**options), vocab_size=size, vocabulary="v")


def contexts(seed: int, max_length: int) -> list[tuple[int, ...]]:
    generator = np.random.default_rng(seed)
    actual = [(), (1,), (0,), (8,)]
    for _ in range(25):
        length = int(generator.integers(1, max_length + 1))
        words = tuple(int(word) for word in generator.integers(2, 8, length))
        actual += [words, (1, *words)]
    return actual


def row(model: NgramModel, context: tuple[int, ...]) -> torch.Tensor:
    """Probabilities after a context, (V,); the empty context is queried with a word that nothing follows."""
    if not context:
        return model._next_log_probs(torch.full((1, model.order - 1), -1))[0].double().exp()
    return model.start(torch.tensor([context]))[0][0].double().exp()


@every_smoothing
@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("prune", [[], [0, 1], [0, 0, 2]])
@pytest.mark.parametrize("closed", [False, True])
def test_every_probability_matches_the_formulas(smoothing, order, prune, closed):
    lines, prune = text(order), prune[:order]
    options = {"delta": 0.3} if smoothing == "add-delta" else {}
    model = model_of(lines, order=order, smoothing=smoothing, prune=prune, closed_vocab=closed, **options)
    formulas = FORMULAS[smoothing](lines, order=order, size=SIZE, prune=prune, closed=closed, delta=0.3)
    for context in contexts(order, order):
        expected = torch.tensor([formulas.p(word, context) for word in range(SIZE)], dtype=torch.float64)
        torch.testing.assert_close(row(model, context), expected, rtol=1e-5, atol=1e-9, msg=f"after {context}")


def test_kneser_ney_discounts_come_from_the_counts_if_possible():
    lines = text(0, lines=400)
    model = model_of(lines, size=SIZE, order=3)
    assert len(model.notes) < 3
    formulas = FORMULAS["kneser-ney"](lines, order=3, size=SIZE)
    assert formulas.discounts[3] != {1: 0.5, 2: 1.0, 3: 1.5}
    for context in contexts(0, 3):
        expected = torch.tensor([formulas.p(word, context) for word in range(SIZE)], dtype=torch.float64)
        torch.testing.assert_close(row(model, context), expected, rtol=1e-5, atol=1e-9)


A, B, END, UNK = 3, 4, 2, 0
WORKED = {  # the lines "a b" and "a", order 2: worked out by hand
    # seen before a: <s>; before b: a; before </s>: a, b. All discounts fall back to 1/2, 1, 3/2.
    # singles: (1 - 1/2) / 4 + (1/2 + 1/2 + 1) / 4 * 1/4 = 1/4 for a and b, 3/8 for </s>, 1/8 for <unk>
    "kneser-ney": {
        (B, A): 1 / 4 + 1 / 2 * 1 / 4,
        (END, A): 1 / 4 + 1 / 2 * 3 / 8,
        (UNK, A): 1 / 2 * 1 / 8,
        (A, 1): 5 / 8,
    },
    "mle": {(B, A): 1 / 2, (END, A): 1 / 2, (UNK, A): 0, (A, 1): 1, (END, B): 1},
    # the mass is split over four words: a, b, </s>, <unk>
    "add-delta": {(B, A): 2 / 6, (END, A): 2 / 6, (UNK, A): 1 / 6, (A, 1): 3 / 6, (END, B): 2 / 5, (UNK, UNK): 1 / 4},
    # singles: b once, a and </s> twice: D = 1 / (1 + 4); <unk> gets 3 D / 5. Pairs: 3 once, 1 twice: D = 3/5.
    "backoff": {(B, A): 0.4 / 2, (END, B): 0.4, (UNK, A): 0.6 * 0.12 / (0.12 + 0.36), (A, A): 0.6 * 0.36 / 0.48},
}


@every_smoothing
def test_a_bigram_worked_by_hand(smoothing):
    model = model_of([[A, B, END], [A, END]], size=5, order=2, smoothing=smoothing)
    for (word, context), expected in WORKED[smoothing].items():
        assert row(model, (context,))[word].item() == pytest.approx(expected, rel=1e-6)


lines_of_ids = st.lists(st.lists(st.integers(3, 7), max_size=6).map(lambda line: [*line, 2]), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    lines=lines_of_ids,
    order=st.integers(1, 4),
    smoothing=st.sampled_from(list(FORMULAS)),
    prune=st.sampled_from([[], [0, 1], [0, 0, 1]]),
    closed=st.booleans(),
    running=st.booleans(),
)
def test_probabilities_after_any_context_sum_to_one(lines, order, smoothing, prune, closed, running):
    table = NgramConfig(order=order, smoothing=smoothing, prune=prune[:order], closed_vocab=closed)
    tokens, starts = flat(lines)
    model = fit(tokens, None if running else starts, table, vocab_size=SIZE, vocabulary="v")
    prompts = torch.tensor(np.random.default_rng(0).integers(0, SIZE, (30, 3)))
    for length in (1, 2, 3):
        log_probs, _ = model.start(prompts[:, :length])
        assert not log_probs.isnan().any()
        torch.testing.assert_close(log_probs.double().exp().sum(1), torch.ones(30, dtype=torch.float64))
        assert (log_probs[:, 1] == -math.inf).all()  # <s> is never predicted


def test_a_token_that_never_occurs_is_as_likely_as_the_unknown_one_unless_the_vocabulary_is_closed():
    lines = text(1)
    open_, closed = (row(model_of(lines, order=3, closed_vocab=flag), (3, 4)) for flag in (False, True))
    assert open_[8] == open_[0] > 0
    assert closed[8] == closed[0] == 0


def test_an_unknown_token_in_the_training_text_is_counted_like_any_other():
    model = model_of([[0, 3, 2]] * 3 + [[3, 2]], size=5, order=2, smoothing="mle")
    assert row(model, (1,))[0].item() == pytest.approx(3 / 4)
    assert row(model, (0,))[3].item() == pytest.approx(1)


@every_smoothing
@pytest.mark.parametrize("order", [1, 2, 4])
def test_start_step_and_score_agree(smoothing, order):
    model = model_of(text(2), order=order, smoothing=smoothing)
    tokens = torch.tensor([[1, 3, 4, 3, 5, 6, 2], [1, 7, 7, 3, 3, 4, 2], [1, 8, 3, 0, 4, 4, 2]])
    scores = model.score(tokens)
    log_probs, state = model.start(tokens[:, :1])
    for t in range(1, tokens.size(1)):
        torch.testing.assert_close(log_probs.gather(1, tokens[:, t : t + 1])[:, 0], scores[:, t - 1])
        at_once, same = model.start(tokens[:, : t + 1])
        log_probs, state = model.step(tokens[:, t], state)
        assert torch.equal(at_once, log_probs) and torch.equal(same, state)
        later = model.score(tokens[:, t:], state=model.start(tokens[:, :t])[1])
        assert torch.equal(later, scores[:, t:])
    assert state.shape == (3, order - 1)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_the_loss_of_a_text_read_in_two_parts_is_that_of_the_whole(order):
    model = model_of(text(2), order=order)
    tokens = torch.tensor([[1, 3, 4, 3, 5, 6, 2], [1, 7, 7, 3, 3, 4, 2]])
    full, state = model.loss(tokens[:, :-1], tokens[:, 1:])
    assert torch.equal(full, -model.score(tokens))
    first, middle = model.loss(tokens[:, :3], tokens[:, 1:4])
    second, last = model.loss(tokens[:, 3:-1], tokens[:, 4:], middle)
    assert torch.equal(torch.cat([first, second], dim=1), full)
    assert torch.equal(last, state) and torch.equal(state, model.start(tokens[:, :-1])[1])


def test_padding_on_the_right_changes_nothing():
    model = model_of(text(3), order=4)
    tokens = torch.tensor([[1, 3, 4, 3, 5], [1, 4, 0, 0, 0], [1, 7, 3, 2, 0]])
    keep = torch.tensor([[True] * 5, [True] * 2 + [False] * 3, [True] * 4 + [False]])
    log_probs, state = model.start(tokens, keep)
    scores = model.score(tokens, keep)
    for i, length in enumerate([5, 2, 4]):
        alone, row_log_probs = model.start(tokens[i : i + 1, :length])
        assert torch.equal(log_probs[i], alone[0]) and torch.equal(state[i], row_log_probs[0])
        assert torch.equal(scores[i, : length - 1], model.score(tokens[i : i + 1, :length])[0])
        assert (scores[i, length - 1 :] == 0).all()


def test_a_step_after_a_prompt_that_is_all_padding_for_one_row_keeps_its_past():
    model = model_of(text(3), order=3)
    _, state = model.start(torch.tensor([[1, 3], [1, 4]]))
    keep = torch.tensor([[True, True], [False, False]])
    _, new = model.start(torch.tensor([[5, 6], [0, 0]]), keep, state)
    assert new.tolist() == [[5, 6], [1, 4]]


def test_rows_of_different_age_join_and_select():
    model = model_of(text(4), order=4)
    _, young = model.start(torch.tensor([[1]]))
    _, old = model.start(torch.tensor([[1, 3, 4, 3, 5]]))
    joined = join(young, old)
    assert len(joined) == 2
    log_probs, state = model.step(torch.tensor([3, 4]), joined)
    for i, (token, alone) in enumerate([(3, young), (4, old)]):
        expected, row_log_probs = model.step(torch.tensor([token]), alone)
        assert torch.equal(log_probs[i], expected[0]) and torch.equal(state[i], row_log_probs[0])
    order = torch.tensor([1, 1, 0])
    assert torch.equal(
        model.step(torch.tensor([3, 3, 3]), select(state, order))[0][2], model.step(torch.tensor([3, 3]), state)[0][0]
    )


@pytest.mark.parametrize("order", [1, 3, 5])
@pytest.mark.parametrize("running", [False, True])
def test_scoring_a_text_equals_scoring_its_lines(monkeypatch, order, running):
    monkeypatch.setattr(ngram, "CHUNK_TOKENS", 7)
    lines = text(5)
    model = model_of(lines, order=order)
    tokens, starts = flat(lines)
    actual = model.score_corpus(tokens, None if running else starts)
    units = [[word for line in lines for word in line]] if running else lines
    expected = [model.score(torch.tensor([[1, *unit]]))[0].numpy() for unit in units]
    np.testing.assert_array_equal(actual, np.concatenate(expected))
    assert model.score_corpus(tokens[:0], None).shape == (0,)


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("running", [False, True])
def test_counting_in_blocks_gives_the_same_model(monkeypatch, tmp_path, order, running):
    tokens, starts = flat(text(6, lines=150))
    starts = None if running else starts
    table = NgramConfig(order=order, prune=[0, 1][:order])
    full = fit(tokens, starts, table, vocab_size=SIZE, vocabulary="v").arrays()
    tokens.tofile(tmp_path / "tokens")
    monkeypatch.setattr(counts, "CHUNK_TOKENS", 50)
    mapped = np.memmap(tmp_path / "tokens", np.uint32, "r")
    pieces = fit(mapped, starts, table, vocab_size=SIZE, vocabulary="v").arrays()
    assert full.keys() == pieces.keys()
    assert all(np.array_equal(full[name], pieces[name]) for name in full)


def test_orders_beyond_64_bit_keys_are_sorted_in_several_passes():
    line = [int(word) for word in np.random.default_rng(0).integers(3, 70_000, 40)] * 2
    model = model_of([[*line, 2], [*line, 2]], size=70_000, order=9, smoothing="mle")
    assert model.counts == [70_000, *[42] * 8]  # 40 in the cycle, one at each end
    # only the last word of the cycle, which occurs twice, has two successors: the first word and the end
    assert model.score_corpus(*flat([[*line, 2]])).sum() == pytest.approx(2 * math.log(1 / 2), abs=1e-6)


@every_smoothing
def test_running_text_is_one_line_without_eos(smoothing):
    words = [word for line in text(8) for word in line[:-1]]
    table = NgramConfig(order=3, smoothing=smoothing)
    model = fit(np.array(words), None, table, vocab_size=SIZE, vocabulary="v")
    formulas = FORMULAS[smoothing]([words], order=3, size=SIZE)
    for context in contexts(8, 3):
        expected = torch.tensor([formulas.p(word, context) for word in range(SIZE)], dtype=torch.float64)
        torch.testing.assert_close(row(model, context), expected, rtol=1e-5, atol=1e-9)


def test_running_text_has_one_bos_and_no_eos():
    tokens = np.array([3, 4, 3, 4, 3])
    model = fit(tokens, None, NgramConfig(order=2, smoothing="mle"), vocab_size=5, vocabulary="v")
    assert row(model, (1,))[3].item() == 1
    assert row(model, (3,))[4].item() == 1
    assert row(model, ())[3].item() == pytest.approx(3 / 5)


@pytest.mark.parametrize("bound", [4000, 2**20, 2**40, 2**55])
def test_hash_table_equals_binary_search(bound):
    generator = np.random.default_rng(0)
    keys = np.unique(np.append(generator.integers(0, min(bound, 6000), 2000), generator.integers(0, bound, 1500)))
    clustered = np.unique(keys[::50, None] // 64 * 64 + np.arange(64))  # neighbors, as the continuations of a context are
    for some in (keys, clustered[clustered < bound], keys[:1], keys[:3]):
        queries = np.concatenate([generator.integers(0, bound, 5000), some, some + 1, some - 1, [-1, 0, bound - 1]])
        queries = queries[queries < bound]
        index = NgramIndex(some, bound)
        actual = index.find(queries)
        assert index.table is not None
        np.testing.assert_array_equal(actual, binary_search(some, queries))
        found = actual >= 0
        assert (some[actual[found]] == queries[found]).all() and set(actual[found]) == set(range(len(some)))
    empty = NgramIndex(keys[:0], bound)
    assert empty.find(queries).max() == -1 and empty.table is None


def test_keys_that_do_not_fit_into_a_hash_table_are_searched():
    """With 12 keys, 63 bits of the hash leave 3 for the distance from the first slot, which all of these keys share."""
    candidates = np.random.default_rng(0).integers(0, 2**62, 2000)
    first_slots, _ = lookup.HashTable(np.arange(12), 2**62)._hash(candidates)
    keys = np.sort(candidates[first_slots == 0][:12])
    assert len(keys) == 12 and lookup.HashTable.build(keys[:7], 2**62) is not None
    index = NgramIndex(keys, 2**62)
    for queries in (keys, candidates, np.append(keys, [-1, 5])):
        np.testing.assert_array_equal(index.find(queries), binary_search(keys, queries))
    assert index.table is None


def test_n_grams_without_their_suffix_are_found():
    """Other tools may have pruned it. `step` looks for the n-grams of each length that continue the context."""
    unigrams, bigrams, trigrams = model_of(text(2), order=3).levels
    rows = np.arange(len(bigrams.keys))
    is_kept = np.isin(rows, trigrams.keys // SIZE) | (rows % 2 == 0)  # contexts of trigrams cannot be missing
    context, word = np.divmod(trigrams.keys, SIZE)
    suffixes = bigrams.keys[context] % SIZE * SIZE + word
    assert not np.isin(suffixes, bigrams.keys[is_kept]).all()
    shorter = ngram.NgramLevel(*(part[is_kept] for part in bigrams))
    longest = trigrams._replace(keys=(is_kept.cumsum() - 1)[context] * SIZE + word)
    model = NgramModel([unigrams, shorter, longest], vocabulary="v", bos_id=1)
    tokens = torch.tensor([[1, *line] for line in text(2) if len(line) == 6] + [[1, 3, 4, 3, 5, 6, 2]])
    scores = model.score(tokens)
    for t in range(1, tokens.size(1)):
        torch.testing.assert_close(model.start(tokens[:, :t])[0].gather(1, tokens[:, t : t + 1])[:, 0], scores[:, t - 1])


def test_arrays_round_trip_through_a_mapped_file(tmp_path):
    model = model_of(text(7), order=3)
    tensor_files.write_tensors(tmp_path / "model.safetensors", model.arrays())
    tensors, _ = tensor_files.read_arrays(tmp_path / "model.safetensors")
    again = NgramModel.from_arrays(tensors, vocabulary="w")
    assert again.levels[2].keys.ctypes.data == tensors["3.keys"].ctypes.data  # nothing was copied
    assert (again.order, again.vocab_size, again.bos_id, again.vocabulary, again.max_positions) == (3, SIZE, 1, "w", None)
    assert again.num_parameters == model.num_parameters == sum(model.counts)
    tokens = torch.tensor([[1, 3, 4, 5, 3, 2]])
    assert torch.equal(again.score(tokens), model.score(tokens))
    assert all(torch.equal(again.start(tokens)[i], model.start(tokens)[i]) for i in (0, 1))


def test_a_model_pruned_to_unigrams_sums_to_one(tmp_path):
    model = model_of([[3, 4, 2]], order=3, prune=[0, 9])
    assert model.counts == [SIZE, 0, 0]
    assert row(model, (1, 3)).sum().item() == pytest.approx(1)
    tokens = torch.tensor([[1, 3, 4, 2]])
    tensor_files.write_tensors(tmp_path / "model.safetensors", model.arrays())
    again = NgramModel.from_arrays(tensor_files.read_arrays(tmp_path / "model.safetensors")[0], vocabulary="v")
    assert torch.equal(again.score(tokens), model.score(tokens))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": None}, "n-gram model: no array 'shape' of 3 numbers; the file is corrupted or of another model"),
        (
            {"shape": np.array([2, 8, 1])},
            "n-gram model: order 2, vocab_size 8 and bos_id 1 do not match its arrays; the file is corrupted",
        ),
        (
            {"shape": np.array([0, 9, 1])},
            "n-gram model: order 0, vocab_size 9 and bos_id 1 do not match its arrays; the file is corrupted",
        ),
        (
            {"shape": np.array([10**15, 9, 1])},
            "n-gram model: array '2.back_off' is missing or has the wrong shape; the file is corrupted",
        ),
        ({"2.keys": None}, "n-gram model: array '2.keys' is missing or has the wrong shape; the file is corrupted"),
        (
            {"1.back_off": np.zeros(9)},
            "n-gram model: array '1.back_off' is missing or has the wrong shape; the file is corrupted",
        ),
    ],
)
def test_inconsistent_arrays_are_rejected(change, message):
    arrays = model_of(text(7), order=2).arrays() | change
    with pytest.raises(ModelError) as caught:
        NgramModel.from_arrays({name: part for name, part in arrays.items() if part is not None}, vocabulary="v")
    assert str(caught.value) == message


def test_token_dtype_does_not_change_scores():
    lines = [[int(word) for word in np.random.default_rng(0).integers(3, 70_000, 200)] + [2]]
    model = model_of(lines, size=70_000, order=3)
    tokens = torch.tensor([[1, *lines[0]]])
    assert torch.equal(model.score(tokens.int()), model.score(tokens))
    assert torch.equal(model.start(tokens.int())[0], model.start(tokens)[0])


def test_ids_of_another_vocabulary_are_rejected():
    model = model_of(text(7), order=2)
    for ask in (model.score, lambda tokens: model.start(tokens)):
        with pytest.raises(ModelError) as caught:
            ask(torch.tensor([[1, 9]]))
        assert str(caught.value) == "n-gram model: token ID 9 is not in its vocabulary of 9; use its own tokenizer"
    for ids, bad in ((np.array([3, 9, 2]), 9), (np.array([3, -1, 2]), -1)):
        with pytest.raises(DataError) as refused:
            fit(ids, None, NgramConfig(), vocab_size=9, vocabulary="v")
        assert str(refused.value) == (f"n-gram counts: token ID {bad} is not in the vocabulary of 9; use its own tokenizer")


def test_a_text_without_tokens_is_rejected():
    with pytest.raises(DataError) as caught:
        fit(np.zeros(0, np.uint16), None, NgramConfig(), vocab_size=9, vocabulary="v")
    assert str(caught.value) == "n-gram counts: the training text has no tokens"


def test_fallback_discounts_are_reported():
    model = model_of([[3, 4, 2], [3, 2]], order=1)
    assert model.notes == ("not enough 1-grams to estimate Kneser-Ney discounts; using 0.5, 1 and 1.5, as KenLM does",)
    assert model_of([[3, 2]], order=1, smoothing="backoff").notes == (
        "no 1-gram occurs twice; using a backoff discount of 0.5",
    )
    assert model_of([[3, 2]] * 2, order=1, smoothing="backoff").notes == (
        "no 1-gram occurs once; using a backoff discount of 0.5",
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"smoothing": "kneser-nay"},
            "model.smoothing: unknown smoothing 'kneser-nay'; did you mean 'kneser-ney'?",
        ),
        ({"delta": 0.5}, "model.delta: not used with smoothing 'kneser-ney'; remove it"),
        ({"order": 0}, "model.order: must be at least 1, got 0"),
        ({"order": 2, "prune": [0, 0, 1]}, "model.prune: 3 numbers for order 2; set at most one per length"),
        ({"prune": [1, 1]}, "model.prune: must start with 0, got [1, 1]; reduce the vocabulary with tokenizer.vocab_size"),
        (
            {"prune": [0, 2, 1]},
            "model.prune: must not decrease, got [0, 2, 1]",
        ),
        ({"smoothing": "add-delta", "delta": 0.0}, "model.delta: must be greater than 0, got 0.0"),
    ],
)
def test_invalid_configs_are_rejected(values, message):
    with pytest.raises(ConfigError) as caught:
        parse_config(NgramConfig, values, prefix="model")
    assert str(caught.value) == message


def test_a_resolved_config_round_trips():
    for values in ({}, {"smoothing": "add-delta"}, {"smoothing": "add-delta", "delta": 0.5}, {"prune": [0, 0, 1]}):
        table = parse_config(NgramConfig, values, prefix="model").with_defaults()
        assert parse_config(NgramConfig, to_dict(table), prefix="model") == table
    assert NgramConfig(smoothing="add-delta").with_defaults().delta == 1.0
    assert "delta" not in to_dict(NgramConfig().with_defaults())


@pytest.mark.skipif(not (DATA / "names-makemore").exists(), reason="needs the names-makemore data")
def test_add_one_bigram_on_names_gives_the_loss_of_the_lecture():
    # Karpathy's makemore: 27 symbols, '.' for both ends, add-one smoothing: 2.4546 nats on all names
    names = (DATA / "names-makemore" / "names.txt").read_text().split()
    lines = [[ord(letter) - ord("a") + 3 for letter in name] + [2] for name in names]
    model = model_of(lines, size=29, order=2, smoothing="add-delta", delta=1.0, closed_vocab=True)
    assert f"{-model.score_corpus(*flat(lines)).mean(dtype=float):.4f}" == "2.4546"


@pytest.mark.parametrize("vocab_size", [7, 700, 70_000])
@pytest.mark.parametrize("with_counts", [False, True])
def test_keys_sorted_with_their_positions_equal_argsort(monkeypatch, vocab_size, with_counts):
    """The fast sort packs a key and its position into one number; an argsort of the key gives the same distinct rows."""
    generator = np.random.default_rng(vocab_size)
    words = generator.integers(1, vocab_size + 1, 40)  # few distinct words: most rows occur several times
    columns = [words[generator.integers(0, [2, 3, 4][k % 3], 500)] for k in range(9)]
    weights = generator.integers(1, 9, 500) if with_counts else None
    fast = counts._distinct(columns, weights, vocab_size)

    def argsort(key, num_bits):
        order = np.argsort(key, kind="stable")
        return key[order], order

    monkeypatch.setattr(counts, "_sort_with_order", argsort)
    plain = counts._distinct(columns, weights, vocab_size)
    rows, inverse = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    for found in (fast, plain):
        np.testing.assert_array_equal(np.stack(found.columns, axis=1), rows)
        np.testing.assert_array_equal(found.counts, np.bincount(inverse.reshape(-1), weights).astype(np.int64))
