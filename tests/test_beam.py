"""Beam search against brute force, single against batched search, and edge cases."""

from __future__ import annotations

import math

import pytest
import torch
from toy_decoding import TOY_MODELS, Bigram, Hashed, TinyGRU, chain_model

from weft.decode.beam import BeamOptions, beam_search
from weft.decode.logits_processors import ban_tokens, compose, no_repeat_ngram, repetition_penalty
from weft.decode.sampling import StoppingCriteria, sample
from weft.errors import ModelError, UsageError

every_toy = pytest.mark.parametrize("toy", TOY_MODELS.values(), ids=TOY_MODELS.keys())
END = 2


def log_rows(model, prompt, tokens):
    """Log-probabilities (V,) after a prompt and tokens, from the beginning."""
    return model.start(torch.tensor([[*prompt, *tokens]]))[0][0].tolist()


def brute_force(model, prompt, options, banned=()):
    """Every text there is, with its score: ended by END, or as long as the limit."""
    found = []

    def extend(tokens, log_prob):
        if tokens and (tokens[-1] == options.eos_id or len(tokens) == options.max_new_tokens):
            found.append((log_prob / len(tokens) ** options.length_penalty, tokens, log_prob))
            return
        for token, more in enumerate(log_rows(model, prompt, tokens)):
            too_early = token == options.eos_id and len(tokens) < options.min_new_tokens
            if token not in banned and not too_early and more > -math.inf:
                extend([*tokens, token], log_prob + more)

    extend([], 0.0)
    return sorted(found, reverse=True)[: options.n_best]


def same(found, expected):
    # equal scores may come in any order: texts of a bigram's same steps in another order are equally probable
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    assert {tuple(one.tokens): one.score for one in found} == pytest.approx(
        {tuple(tokens): score for score, tokens, _ in expected}, abs=1e-4
    )
    assert {tuple(one.tokens): one.log_prob for one in found} == pytest.approx(
        {tuple(tokens): log_prob for _, tokens, log_prob in expected}, abs=1e-4
    )


@every_toy
@pytest.mark.parametrize("alpha", [0.0, 0.7])
@pytest.mark.parametrize("least", [0, 2])
def test_a_large_beam_equals_brute_force(toy, alpha, least):
    model = toy(5)
    options = BeamOptions(beam_size=150, max_new_tokens=4, eos_id=END, length_penalty=alpha, n_best=3, min_new_tokens=least)
    for prompt in ([1], [1, 3, 4], [1, 4]):
        found = beam_search(model, torch.tensor([prompt]), options=options)
        same(found[0], brute_force(model, prompt, options))


@every_toy
def test_without_eos_every_output_has_the_maximum_length(toy):
    model, options = toy(4), BeamOptions(beam_size=64, max_new_tokens=3, n_best=3)
    same(beam_search(model, torch.tensor([[1]]), options=options)[0], brute_force(model, [1], options))


@every_toy
def test_banned_tokens_are_never_generated(toy):
    model, options = toy(6), BeamOptions(beam_size=100, max_new_tokens=3, eos_id=END, n_best=3)
    found = beam_search(model, torch.tensor([[1]]), options=options, processor=ban_tokens([0, 1]))
    same(found[0], brute_force(model, [1], options, banned=(0, 1)))


@every_toy
@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_a_batch_of_ragged_prompts_equals_single_searches(toy, alpha):
    model = toy(9)
    prompts = [[1, 3, 4, 5, 5], [1], [1, 8, 8], [1, 7]]
    keep = torch.tensor([[at < len(prompt) for at in range(5)] for prompt in prompts])
    padded = torch.tensor([prompt + [0] * (5 - len(prompt)) for prompt in prompts])
    options = BeamOptions(beam_size=4, max_new_tokens=12, eos_id=END, length_penalty=alpha, n_best=3)
    adjust = compose([ban_tokens([0, 1]), no_repeat_ngram(2), repetition_penalty(1.1)])
    together = beam_search(model, padded, options=options, token_mask=keep, processor=adjust)
    for prompt, found in zip(prompts, together, strict=True):
        alone = beam_search(model, torch.tensor([prompt]), options=options, processor=adjust)[0]
        same(found, [(one.score, one.tokens, one.log_prob) for one in alone])


@every_toy
def test_scores_are_sorted_and_equal_to_rescoring(toy):
    model = toy(9)
    options = BeamOptions(beam_size=5, max_new_tokens=10, eos_id=END, length_penalty=0.7, n_best=5)
    # a penalty changes which text wins, not what the model thinks of it
    found = beam_search(model, torch.tensor([[1, 4]]), options=options, processor=repetition_penalty(1.3))[0]
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    for one in found:
        again = model.score(torch.tensor([[1, 4, *one.tokens]]))[0, 1:].sum().item()
        assert one.log_prob == pytest.approx(again, abs=1e-4)
    plain = beam_search(model, torch.tensor([[1, 4]]), options=options)[0]
    for one in plain:
        assert one.score == pytest.approx(one.log_prob / len(one.tokens) ** 0.7, abs=1e-4)


def greedily(model, prompt, options, banned):
    """The best token each time, the first of equals, until the end or the limit."""
    tokens = []
    while len(tokens) < options.max_new_tokens and tokens[-1:] != [END]:
        row = log_rows(model, prompt, tokens)
        closed = {*banned, *([END] if options.eos_id is None or len(tokens) < options.min_new_tokens else [])}
        row = [-math.inf if token in closed else value for token, value in enumerate(row)]
        if max(row) == -math.inf:
            break
        tokens.append(row.index(max(row)))
    return tokens


@every_toy
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 3.0])
@pytest.mark.parametrize("least", [0, 3])
def test_beam_size_one_is_greedy(toy, alpha, least):
    """It ends at its first end, though by their mean a longer text may be better."""
    model, banned = toy(6), [0, 1]
    options = BeamOptions(
        beam_size=1, max_new_tokens=12, eos_id=END, length_penalty=alpha, min_new_tokens=least, banned_tokens=banned
    )
    prompts = [[1, a, b] for a in range(3, 6) for b in range(3, 6)]
    for prompt, (found,) in zip(prompts, beam_search(model, torch.tensor(prompts), options=options), strict=True):
        assert found.tokens == greedily(model, prompt, options, banned)
        assert found.score == pytest.approx(found.log_prob / len(found.tokens) ** alpha)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("words", [7, 200])  # the best of many words are sought in blocks
def test_beam_size_one_breaks_ties_like_greedy_sampling(seed, words):
    heights = torch.randint(0, 3, (words, words), generator=torch.Generator().manual_seed(seed)).double()
    heights[:, END] += 1
    model = Bigram(words, table=(heights / heights.sum(1, keepdim=True)).log().float())
    options = BeamOptions(beam_size=1, max_new_tokens=9, eos_id=END, length_penalty=1.0, min_new_tokens=2, banned_tokens=[0, 1])
    prompts = torch.arange(1, 7).unsqueeze(1)
    found = [best.tokens for (best,) in beam_search(model, prompts, options=options)]
    adjusted = [best.tokens for (best,) in beam_search(model, prompts, options=options, processor=ban_tokens([]))]
    drawn = list(sample(model, prompts, criteria=StoppingCriteria(9, END, 2), processor=ban_tokens([0, 1])))
    sampled = [[int(one.tokens[row]) for one in drawn if one.tokens[row] >= 0] for row in range(6)]
    assert found == adjusted == sampled == [greedily(model, [at], options, [0, 1]) for at in range(1, 7)]


def test_a_search_stops_when_no_hypothesis_can_beat_the_best():
    # from 3 the end is near certain, from 4 it never comes
    table = torch.full((6, 6), math.log(1e-3))
    table[3, END], table[4, 5], table[5, 4] = 0.0, 0.0, 0.0
    model = Bigram(6, table=table.log_softmax(1))
    options = BeamOptions(beam_size=2, max_new_tokens=7, eos_id=END)
    found = beam_search(model, torch.tensor([[3], [4]]), options=options)
    assert found[0][0].tokens == [END]
    assert found[1][0].tokens == [5, 4, 5, 4, 5, 4, 5]
    assert model.steps_taken == [2] * 6  # two beams of one sentence; never four


@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.5])
def test_early_stopping_changes_no_result(alpha):
    for seed in range(5):
        model = Bigram(7, seed=seed)
        options = BeamOptions(beam_size=300, max_new_tokens=4, eos_id=END, length_penalty=alpha, n_best=2)
        same(beam_search(model, torch.tensor([[1]]), options=options)[0], brute_force(model, [1], options))


def test_impossible_tokens_are_never_generated():
    model = chain_model([1, 3, 4, 5, 2], 6)
    found = beam_search(
        model, torch.tensor([[1], [4]]), options=BeamOptions(beam_size=4, max_new_tokens=9, eos_id=END, n_best=3)
    )
    assert [(one.tokens, one.score, one.log_prob) for one in found[0]] == [([3, 4, 5, 2], 0.0, 0.0)]
    assert [one.tokens for one in found[1]] == [[5, 2]]


def test_if_all_tokens_are_impossible_the_output_ends():
    model = chain_model([1, 3, 4, 2], 6)
    held = BeamOptions(
        beam_size=3, max_new_tokens=9, eos_id=END, n_best=2, min_new_tokens=5, length_penalty=0.7
    )  # the end is due after 2
    assert [one.tokens for one in beam_search(model, torch.tensor([[1]]), options=held)[0]] == [[3, 4]]
    nothing = beam_search(model, torch.tensor([[1], [5]]), options=held, processor=ban_tokens(range(6)))
    assert [(one.tokens, one.score, one.log_prob) for one in nothing[0] + nothing[1]] == [([], 0.0, 0.0)] * 2


def test_a_hypothesis_can_be_ended_by_the_caller():
    model = Hashed(6)
    prompt, asked = (
        torch.tensor(
            [
                [1],
                [
                    1,
                ],
            ]
        ),
        [],
    )

    def ended(sentences, texts):
        asked.extend(sentences)
        return [3 in text for text in texts]

    options = BeamOptions(beam_size=6, max_new_tokens=8, n_best=6, finished=ended)
    for found in beam_search(model, prompt, options=options):
        for one in found:
            assert 3 not in one.tokens[:-1]
            assert one.tokens[-1] == 3 or len(one.tokens) == 8
    assert set(asked) == {0, 1}


def test_the_callback_gets_candidates_and_survivors():
    seen = []
    model = TinyGRU(7)
    options = BeamOptions(beam_size=3, max_new_tokens=4, eos_id=END)
    found = beam_search(model, torch.tensor([[1], [1]]), options=options, progress=seen.append)
    assert found == beam_search(model, torch.tensor([[1], [1]]), options=options)
    assert [event.tokens.shape for event in seen][:2] == [(2, 6), (2, 6)]
    for event in seen:
        kept = event.tokens.gather(1, event.survivors)
        assert event.survivors.shape == (len(event.sentences), 3)
        assert (kept != END).all()
        assert (event.scores.diff(dim=1) <= 0).all()
    assert (seen[0].parents == 0).all()


@pytest.mark.parametrize("end", [None, END])
def test_nan_log_probabilities_are_refused(end):
    table = torch.zeros(6, 6).log_softmax(1)
    table[4, 3] = math.nan
    with pytest.raises(ModelError) as caught:
        beam_search(
            Bigram(6, table=table),
            torch.tensor([[1]]),
            options=BeamOptions(beam_size=6, max_new_tokens=5, eos_id=end, min_new_tokens=3),
        )
    assert str(caught.value) == "the model computes NaN probabilities (its weights are corrupted or have diverged)"


def test_a_source_is_passed_as_state():
    model = Hashed(6)
    _, state = model.start(torch.tensor([[1, 3], [1, 4]]))
    options = BeamOptions(beam_size=3, max_new_tokens=4)
    prompt = torch.tensor([[5], [5]])
    found = beam_search(model, prompt, options=options, state=state)
    assert found == beam_search(model, torch.tensor([[1, 3, 5], [1, 4, 5]]), options=options)


def test_the_position_limit_is_checked_before_the_first_step():
    model = Bigram(6, max_positions=8)
    assert (
        len(beam_search(model, torch.tensor([[1, 3, 4]]), options=BeamOptions(beam_size=2, max_new_tokens=6))[0][0].tokens) == 6
    )
    with pytest.raises(UsageError) as caught:
        beam_search(model, torch.tensor([[1, 3, 4]]), options=BeamOptions(beam_size=2, max_new_tokens=7))
    assert str(caught.value) == (
        "max_new_tokens: 3 prompt tokens and 7 new tokens exceed the model's 8 positions; use at most 6"
    )
    with pytest.raises(UsageError) as caught:
        beam_search(model, torch.ones(1, 9, dtype=torch.long), options=BeamOptions(beam_size=2, max_new_tokens=1))
    assert str(caught.value) == (
        "max_new_tokens: 9 prompt tokens and 1 new tokens exceed the model's 8 positions; "
        "shorten the prompt to at most 8 tokens"
    )
