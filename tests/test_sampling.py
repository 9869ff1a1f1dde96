"""Logits processors against naive loops, sample frequencies against the distribution, and independence of the batch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_decoding import TOY_MODELS, Bigram, Hashed, TinyGRU, chain_model

from weft.decode import logits_processors as choose
from weft.decode.options import GenerationConfig
from weft.decode.sampling import StoppingCriteria, sample
from weft.errors import ModelError, UsageError

every_toy = pytest.mark.parametrize("toy", TOY_MODELS.values(), ids=TOY_MODELS.keys())
END = 2
rows_of_logits = st.lists(st.lists(st.floats(-9, 9) | st.just(-math.inf), min_size=7, max_size=7), min_size=1, max_size=4)


def nothing(rows):
    return torch.zeros(rows, 0, dtype=torch.long)


def probabilities(row):
    heights = [math.exp(value) for value in row]
    return [height / sum(heights) for height in heights]


def naive_top_k(row, size):
    order = sorted(range(len(row)), key=lambda i: -row[i])[:size]
    return [value if i in order else -math.inf for i, value in enumerate(row)]


def naive_top_p(row, mass):
    if not any(map(math.exp, row)):
        return row
    chances, nucleus, total = probabilities(row), set(), 0.0
    for i in sorted(range(len(row)), key=lambda i: -row[i]):
        if total >= mass:
            break
        nucleus.add(i)
        total += chances[i]
    return [value if i in nucleus else -math.inf for i, value in enumerate(row)]


def naive_min_p(row, fraction):
    return [value if math.exp(value) >= fraction * math.exp(max(row)) else -math.inf for value in row]


NAIVE = {
    "top_k": (choose.top_k, naive_top_k, st.integers(1, 9)),
    "top_p": (choose.top_p, naive_top_p, st.floats(0.05, 0.95)),
    "min_p": (choose.min_p, naive_min_p, st.floats(0.05, 1)),
}


@pytest.mark.parametrize("shares", [[4, 2, 2, 2], [1] * 10, [3, 1, 3, 1, 2], [1, 5, 1, 1, 1, 1], [2, 0, 2, 0, 4]])
@pytest.mark.parametrize("mass", [0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9])
def test_top_p_keeps_the_fewest_tokens_where_several_are_equally_probable(shares, mass):
    """The smallest set that reaches the mass, by trying all sizes in integers; ties keep the first tokens."""
    total = sum(shares)
    best_first = sorted(range(len(shares)), key=lambda token: (-shares[token], token))
    fewest = next(
        n for n in range(1, len(shares) + 1) if 1000 * sum(shares[t] for t in best_first[:n]) >= round(1000 * mass) * total
    )
    log_probs = torch.tensor([[math.log(share / total) if share else -math.inf for share in shares]])
    actual = choose.top_p(mass)(log_probs, nothing(1))
    assert actual.isfinite().nonzero()[:, 1].tolist() == sorted(best_first[:fewest])
    assert torch.equal(actual[actual.isfinite()], log_probs[actual.isfinite()])


@pytest.mark.parametrize("name", NAIVE)
@settings(deadline=None, max_examples=60)
@given(rows=rows_of_logits, data=st.data())
def test_logits_processors_equal_naive_loops(name, rows, data):
    make, naive, values = NAIVE[name]
    value = data.draw(values)
    # in float64 with well-separated levels: a tie or rounding at the border could go either way
    rows = [[round(v) + i * 0.01 if v > -math.inf else v for i, v in enumerate(row)] for row in rows]
    actual = make(value)(torch.tensor(rows, dtype=torch.float64), nothing(len(rows)))
    assert actual.tolist() == [naive(row, value) for row in rows]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(-1, 3), min_size=9, max_size=9), min_size=1, max_size=4), st.integers(1, 4))
def test_no_repeat_ngram_equals_the_naive_loop(histories, size):
    # -1 (padding) occurs only on the left
    histories = [sorted(row, key=lambda token: token >= 0) for row in histories]
    actual = choose.no_repeat_ngram(size)(torch.zeros(len(histories), 4), torch.tensor(histories))
    for row, history in zip(actual.tolist(), histories, strict=True):
        generated = [token for token in history if token >= 0]
        grams = {tuple(generated[i : i + size]) for i in range(len(generated) - size + 1)}
        newest = generated[len(generated) - size + 1 :]
        full = len(newest) == size - 1
        assert [value == -math.inf for value in row] == [full and (*newest, word) in grams for word in range(4)]


def test_repetition_penalty_applies_per_occurrence_in_the_last_64_tokens():
    history = torch.tensor([[-1] * 70 + [3, 5, 5], [4] * 9 + [0] * 64])
    actual = choose.repetition_penalty(2.0)(torch.zeros(2, 6), history).exp()
    torch.testing.assert_close(actual[0], torch.tensor([1, 1, 1, 0.5, 1, 0.25]))
    torch.testing.assert_close(actual[1], torch.tensor([2.0**-64, 1, 1, 1, 1, 1]))


def test_temperature_raises_probabilities_to_a_power_and_tiny_ones_are_greedy():
    chances = torch.tensor([[0.5, 0.3, 0.2]])
    squared = choose.temperature(0.5)(chances.log(), nothing(1)).softmax(1)
    torch.testing.assert_close(squared, chances**2 / (chances**2).sum())
    for tiny in (1e-12, 1e-45, 5e-324):
        assert choose.temperature(tiny)(chances.log(), nothing(1)).softmax(1).tolist() == [[1, 0, 0]]
    impossible = torch.full((1, 3), -math.inf)
    assert choose.temperature(0.5)(impossible, nothing(1)).tolist() == impossible.tolist()


def test_a_row_without_possible_tokens_samples_nothing():
    row, history = torch.full((2, 5), -math.inf), torch.tensor([[1, 2], [-1, 1]])
    row[1, 3] = -1.0
    filters = [choose.ban_tokens([0]), choose.no_repeat_ngram(1), choose.repetition_penalty(1.5), choose.temperature(0.7)]
    filters += [choose.top_k(3), choose.top_p(0.5), choose.min_p(0.1)]
    processed = choose.compose(filters)(row, history)
    assert choose.sample_token(processed).tolist() == [-1, 3]
    assert choose.sample_token(processed, torch.tensor([0.5, 0.999999999999])).tolist() == [-1, 3]


@given(st.floats(0, 1, exclude_max=True))
def test_impossible_tokens_are_never_sampled(uniform):
    row = torch.tensor([[-math.inf, -1.0, -math.inf, -2.0, -math.inf, -0.3, -math.inf]])
    assert choose.sample_token(row, torch.tensor([uniform], dtype=torch.float64)).item() in (1, 3, 5)


def chi_square(counts, expected):
    return sum((count - mean) ** 2 / mean for count, mean in zip(counts, expected, strict=True))


def test_frequencies_follow_the_distribution():
    model, size = Bigram(8, seed=3), 20_000
    prompt = torch.ones(size, 1, dtype=torch.long)
    noise = torch.rand(size, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    first, second = (
        drawn.tokens
        for drawn in sample(model, prompt, criteria=StoppingCriteria(2), noise=[row.__getitem__ for row in noise.tolist()])
    )
    chances = model.table[1].double().exp()
    # 7 degrees of freedom each: 24.3 is the 0.999 quantile of chi-square
    assert chi_square(first.bincount(minlength=8).tolist(), (chances * size).tolist()) < 24.3
    likely = int(chances.argmax())
    after = second[first == likely]
    expected = model.table[likely].double().exp() * len(after)
    assert chi_square(after.bincount(minlength=8).tolist(), expected.tolist()) < 24.3


def test_random_numbers_of_rows_and_seeds_are_independent():
    places = [0, 1, 255, 256, 257, 1000]
    rows = [choose.random_noise(0, i, j) for i in range(400) for j in range(5)]
    numbers = torch.tensor([[row(index) for row in rows] for index in places], dtype=torch.float64)
    assert numbers.unique().numel() == numbers.numel()
    assert abs(numbers.mean().item() - 0.5) < 0.01
    alone, other = choose.random_noise(0, 3, 1), choose.random_noise(1, 3, 1)
    assert [alone(index) for index in reversed(places)] == numbers[:, 16].flip(0).tolist()
    assert not any(other(index) == alone(index) for index in places)


@every_toy
@pytest.mark.parametrize("greedy", [True, False])
def test_a_batch_of_ragged_prompts_equals_one_at_a_time(toy, greedy):
    model, limit = toy(9), 20
    prompts = [[1, 3, 4, 5, 5], [1], [1, 8, 8], [1, 7], [1, 6]]
    keep = torch.tensor([[index < len(prompt) for index in range(5)] for prompt in prompts])
    padded = torch.tensor([prompt + [0] * (5 - len(prompt)) for prompt in prompts])
    noise = None if greedy else [choose.random_noise(7, row, 0) for row in range(5)]
    adjust = choose.compose(
        [choose.no_repeat_ngram(3), choose.repetition_penalty(1.2), choose.temperature(0.9), choose.top_p(0.9)]
    )
    until = StoppingCriteria(limit, eos_id=END, min_new_tokens=2)
    together = list(sample(model, padded, criteria=until, token_mask=keep, processor=adjust, noise=noise))
    tokens = torch.stack([drawn.tokens for drawn in together], 1)
    log_probs = torch.stack([drawn.log_probs for drawn in together], 1)
    for row, prompt in enumerate(prompts):
        mine = None if greedy else [choose.random_noise(7, row, 0)]
        alone = list(sample(model, torch.tensor([prompt]), criteria=until, processor=adjust, noise=mine))
        tokens_drawn = [drawn.tokens.item() for drawn in alone]
        assert tokens[row].tolist() == tokens_drawn + [-1] * (len(together) - len(tokens_drawn))
        assert END not in tokens_drawn[:2]
        again = model.score(torch.tensor([prompt + tokens_drawn]))[0, len(prompt) - 1 :].sum().item()
        assert log_probs[row].sum().item() == pytest.approx(again, abs=1e-4)


@every_toy
def test_greedy_takes_the_best_token_each_time(toy):
    model, prompt = toy(9), [1, 4]
    for drawn in sample(model, torch.tensor([prompt]), criteria=StoppingCriteria(10)):
        row = model.start(torch.tensor([prompt]))[0][0]
        assert drawn.tokens.item() == row.argmax().item()
        assert drawn.log_probs.item() == pytest.approx(row.max().item(), abs=1e-5)
        prompt.append(drawn.tokens.item())
    assert len(prompt) == 12


def test_rows_leave_the_batch_when_they_end():
    model = chain_model([1, 3, 4, 5, 6, 2], 7)
    actual = [
        drawn.tokens.tolist()
        for drawn in sample(model, torch.tensor([[5], [1], [6]]), criteria=StoppingCriteria(9, eos_id=END))
    ]
    assert actual == [[6, 3, 2], [2, 4, -1], [-1, 5, -1], [-1, 6, -1], [-1, 2, -1]]
    assert model.steps_taken == [2, 1, 1, 1]


def test_a_row_without_possible_tokens_ends_and_others_continue():
    model = chain_model([1, 3, 4, 5, 6, 2], 7)
    until = StoppingCriteria(9, eos_id=END, min_new_tokens=2)
    actual = [drawn.tokens.tolist() for drawn in sample(model, torch.tensor([[6], [4]]), criteria=until)]
    assert actual == [[-1, 5], [-1, 6], [-1, 2]]


def test_rows_end_when_the_stopping_criterion_is_met():
    model = Bigram(6)
    until = StoppingCriteria(9, finished=lambda tokens: tokens == 4)
    tokens_drawn = torch.stack([drawn.tokens for drawn in sample(model, torch.arange(6).unsqueeze(1), criteria=until)], 1)
    for row in tokens_drawn.tolist():
        ended = row.index(4) if 4 in row else len(row) - 1
        assert all(token == -1 for token in row[ended + 1 :])


def test_a_prompt_may_continue_a_state():
    model = Hashed(6)
    _, state = model.start(torch.tensor([[1, 3], [1, 4]]))
    actual = [d.tokens.tolist() for d in sample(model, torch.tensor([[5], [5]]), criteria=StoppingCriteria(4), state=state)]
    assert actual == [
        d.tokens.tolist() for d in sample(model, torch.tensor([[1, 3, 5], [1, 4, 5]]), criteria=StoppingCriteria(4))
    ]


def test_gradients_are_off_inside_and_untouched_outside():
    model = TinyGRU(6)
    for drawn in sample(model, torch.tensor([[1]]), criteria=StoppingCriteria(3)):
        assert torch.is_grad_enabled()
        assert not drawn.log_probs.requires_grad


def test_processors_that_ignore_tokens_stay_marked_when_composed():
    free = [choose.ban_tokens([1]), choose.temperature(0.5), choose.top_k(3), choose.top_p(0.9), choose.min_p(0.01)]
    log_probs = torch.randn(2, 6).log_softmax(1)
    composed, expected = choose.compose(free), log_probs
    for processor in free:
        expected = processor(expected, nothing(2))
    assert isinstance(composed, choose.TokenFree)
    torch.testing.assert_close(composed(log_probs, nothing(2)), expected)
    assert not isinstance(choose.compose([*free, choose.repetition_penalty(1.5)]), choose.TokenFree)


def test_processors_compute_the_same_in_lists():
    log_probs = torch.randn(1, 500).log_softmax(1)
    log_probs[0, 4], log_probs[0, 5], log_probs[0, 6] = math.nan, torch.finfo(torch.float32).min, -math.inf
    given = log_probs[0].tolist()
    for temperature in (1e-3, 0.1, 0.7, 1.0, 1.3, 1e6):
        composed = choose.compose([choose.ban_tokens([1, 4]), choose.temperature(temperature)])
        assert isinstance(composed, choose.TokenFree) and composed.in_list is not None
        in_list, expected = torch.tensor([composed.in_list(given)], dtype=torch.float64), composed(log_probs, nothing(1))
        # bit by bit: a row gets the same tokens alone, in a list, and among others, in a tensor
        torch.testing.assert_close(in_list, expected.double(), rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(given, log_probs[0].tolist(), equal_nan=True)  # which is not changed
    with_top_k = choose.compose([choose.ban_tokens([1]), choose.top_k(3)])
    assert isinstance(with_top_k, choose.TokenFree) and with_top_k.in_list is None


@pytest.mark.parametrize("noise", [None, [choose.random_noise(0, 0, 0)]], ids=["greedy", "sampled"])
def test_nan_log_probs_are_rejected(noise):
    table = torch.zeros(6, 6).log_softmax(1)
    table[4, 3] = math.nan
    model = Bigram(6, table=table)
    only_four = choose.ban_tokens([0, 1, 2, 3, 5])
    with pytest.raises(ModelError) as caught:
        list(sample(model, torch.tensor([[1]]), criteria=StoppingCriteria(5), processor=only_four, noise=noise))
    assert str(caught.value) == "the model computes NaN probabilities (its weights are corrupted or have diverged)"


def refused(**options):
    with pytest.raises(UsageError) as caught:
        GenerationConfig(**options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_p": 2}, "top_p: must be in (0, 1], got 2"),
        ({"top_p": 0.0}, "top_p: must be in (0, 1], got 0"),
        ({"top_p": math.nan}, "top_p: expected a finite number, got nan"),
        ({"min_p": -0.5}, "min_p: must be in [0, 1], got -0.5"),
        ({"top_k": 0}, "top_k: must be at least 1, got 0"),
        ({"max_new_tokens": 0}, "max_new_tokens: must be at least 1, got 0"),
        ({"min_new_tokens": -1}, "min_new_tokens: must be at least 0, got -1"),
        ({"num_samples": 0}, "num_samples: must be at least 1, got 0"),
        ({"seed": -3}, "seed: must be at least 0, got -3"),
        ({"beam_size": 0}, "beam_size: must be at least 1, got 0"),
        ({"beam_size": 2, "n_best": 0}, "n_best: must be at least 1, got 0"),
        ({"no_repeat_ngram_size": 0}, "no_repeat_ngram_size: must be at least 1, got 0"),
        ({"temperature": -1.0}, "temperature: must be at least 0, got -1"),
        ({"temperature": math.inf}, "temperature: expected a finite number, got inf"),
        ({"repetition_penalty": 0.5}, "repetition_penalty: must be at least 1, got 0.5"),
        ({"beam_size": 2, "length_penalty": -0.1}, "length_penalty: must be at least 0, got -0.1"),
        ({"stop": ["a", ""]}, "stop: must not be empty"),
        ({"max_new_tokens": 5, "min_new_tokens": 6}, "min_new_tokens: 6 is more than `max_new_tokens` (5)"),
        ({"length_penalty": 0.6}, "length_penalty: requires `beam_size`"),
        ({"patience": 2.0}, "patience: requires `beam_size`"),
        ({"beam_size": 2, "patience": 0.9}, "patience: must be 0 or from 1 to 1000, got 0.9"),
        ({"n_best": 3}, "n_best: requires `beam_size`; for samples, use `num_samples` 3"),
        ({"temperature": 0.0, "num_samples": 2}, "num_samples: a `temperature` of 0 gives one output; increase it"),
        ({"beam_size": 4, "temperature": 0.8}, "temperature: cannot be combined with `beam_size`, which does not sample"),
        ({"beam_size": 4, "top_k": 8}, "top_k: cannot be combined with `beam_size`, which does not sample"),
        ({"beam_size": 4, "num_samples": 3}, "num_samples: cannot be combined with `beam_size`; use `n_best` 3"),
        ({"beam_size": 4, "n_best": 5}, "n_best: 5 is more than `beam_size` (4)"),
        ({"top_k": "many"}, "top_k: expected an integer, got 'many'"),
        ({"stop": [3]}, "stop: expected a string, got 3"),
        ({"topk": 3}, "topk: unknown option; did you mean 'top_k'?"),
    ],
)
def test_invalid_options_are_rejected_by_name(options, message):
    assert refused(**options) == message
