"""Continuous batching for beam search: each sentence gets what `beam_search` gives it alone, whoever it shares a batch with."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_models import made
from test_predict import BOS, encoded, model_of, source_tokens
from toy_decoding import TOY_MODELS, Bigram, Hashed, chain_model

from weft.decode import logits_processors as choose
from weft.decode.beam import BeamEngine, BeamOptions, BeamRequest, Hypothesis, beam_search
from weft.decode.ensemble import Ensemble, LinearEnsemble, ShallowFusion
from weft.errors import ModelError, UsageError
from weft.nn.state import MAX_DEAD_COLUMNS, BeamCache, SharedState, tree_leaves

END = 2
SHARED = choose.compose([choose.no_repeat_ngram(2), choose.repetition_penalty(1.3)])
PROCESSORS = [None, SHARED, None, choose.ban_tokens([4]), SHARED]
Found = dict[int, list[Hypothesis]]


def has_five_twice(sentences: list[int], outputs: list[list[int]]) -> list[bool]:
    return [output.count(5) == 2 for output in outputs]


def request_of(number: int, *, words: int = 7, most: int = 12) -> BeamRequest:
    """A request that differs from its neighbors in all that a request has."""
    chance = random.Random(number)
    prompt = [1, *(chance.randrange(3, words) for _ in range(chance.randrange(0, 7)))]
    beam_size = chance.choice([1, 3, 3, 3, 5])
    options = BeamOptions(
        beam_size,
        chance.randrange(1, most),
        eos_id=chance.choice([END, END, 4, None]),
        length_penalty=chance.choice([0.0, 0.7, 1.0]),
        n_best=chance.randrange(1, beam_size + 1),
        min_new_tokens=chance.randrange(0, 4),
        banned_tokens=chance.choice([(), (0,), (0, 1), (1, 6, 3)]),
        finished=chance.choice([None, None, has_five_twice]),
        patience=chance.choice([None, 1.0, 1.5, 2.0]),
    )
    return BeamRequest(prompt, options, processor=PROCESSORS[number % len(PROCESSORS)])


def alone(model: Any, request: BeamRequest) -> list[Hypothesis]:
    prompt = torch.tensor([list(request.prompt)])
    (result,) = beam_search(model, prompt, options=request.options, state=request.state, processor=request.processor)
    return result


def same(actual: Sequence[Hypothesis], expected: Sequence[Hypothesis]) -> None:
    assert [item.tokens for item in actual] == [item.tokens for item in expected]
    for value in ("score", "log_prob"):
        assert [getattr(item, value) for item in actual] == pytest.approx([getattr(item, value) for item in expected], abs=1e-5)


def search(engine: BeamEngine[Any], found: Found) -> None:
    results = engine.step()
    assert [number for number, _ in results] == sorted(number for number, _ in results)
    for number, hypotheses in results:
        assert number not in found and number not in engine.running
        found[number] = hypotheses


# ---- whoever shares the batch


@cache
def ensemble(kind: str) -> Any:
    if kind == "linear":
        return Ensemble([model_of("luong"), model_of("transformer")], LinearEnsemble([0.6, 0.4]))
    return Ensemble([model_of("transformer"), Hashed(11)], ShallowFusion([1.0, 0.2]))


def source_state(model: Any, source: list[int]) -> Any:
    """The state of one source; language models of an ensemble have none."""
    if isinstance(model, Ensemble):
        return tuple(encoded(part, [source]) if hasattr(part, "encode") else None for part in model.models)
    return encoded(model, [source])


@pytest.mark.parametrize("name", ["ngram-5", "gpt", "gpt-window-4", "lstm", "conv"])
def test_prompts_admitted_at_different_times_equal_beam_search_on_each_alone(name):
    model = made(name)
    engine, found, counts = BeamEngine(model), Found(), [3, 0, 1, 2, 0, 0, 4, 0, 0, 1]
    requests = [request_of(number, most=10) for number in range(sum(counts))]
    for index, count in enumerate(counts):
        first = sum(counts[:index])
        assert engine.admit(requests[first : first + count]) == list(range(first, first + count))
        search(engine, found)
    while engine.running:
        search(engine, found)
    for number, request in enumerate(requests):
        same(found[number], alone(model, request))


@pytest.mark.parametrize("name", ["cho", "bahdanau", "luong", "transformer", "copying", "linear", "fusion"])
@torch.no_grad()
def test_sources_of_several_lengths_admitted_at_different_times(name):
    model = ensemble(name) if name in ("linear", "fusion") else model_of(name)
    engine, found = BeamEngine(model), Found()
    requests = [
        request_of(number, words=11)._replace(prompt=[BOS, *[5] * (number % 3)], state=source_state(model, source))
        for number, source in enumerate(source_tokens(9))
    ]
    for number in range(0, 9, 2):
        engine.admit(requests[number : number + 2])
        search(engine, found)
    while engine.running:
        search(engine, found)
    for number, request in enumerate(requests):
        same(found[number], alone(model, request))


@torch.no_grad()
def source_request(model: Any, number: int) -> BeamRequest:
    state = source_state(model, source_tokens(1, seed=number)[0])
    return request_of(number, words=11)._replace(prompt=[BOS, *[5] * (number % 3)], state=state)


MAKERS: dict[str, Callable[[], Any]] = {
    "hashed": lambda: Hashed(7),
    "ngram": lambda: made("ngram-5"),
    "transformer": lambda: model_of("transformer"),
    "luong": lambda: model_of("luong"),
    "ensemble": lambda: ensemble("linear"),
}


@pytest.mark.parametrize("name", MAKERS)
@settings(deadline=None, max_examples=20)
@given(st.lists(st.one_of(st.integers(0, 3), st.just("step"), st.tuples(st.just("cancel"), st.integers(0, 9))), max_size=20))
def test_admitting_and_cancelling_sentences_changes_no_other_one(name, actions):
    model = MAKERS[name]()
    has_sources = name in ("transformer", "luong", "ensemble")
    engine, found, requests, cancelled = BeamEngine(model), Found(), list[BeamRequest](), set[int]()
    for action in actions:
        if action == "step":
            search(engine, found)
        elif isinstance(action, int):
            numbers = range(len(requests), len(requests) + action)
            more = [source_request(model, number) if has_sources else request_of(number) for number in numbers]
            assert engine.admit(more) == list(numbers)
            requests += more
        elif engine.running:
            number = engine.running[action[1] % len(engine.running)]
            engine.cancel(number)
            assert number not in engine.running
            cancelled.add(number)
    while engine.running:
        search(engine, found)
    assert set(found) == set(range(len(requests))) - cancelled
    for number in found:
        same(found[number], alone(model, requests[number]))


def test_a_state_for_all_sentences_of_several_beam_sizes():
    model = Hashed(6)
    _, state = model.start(torch.tensor([[1, 3], [1, 4], [1, 5]]))
    engine, found = BeamEngine(model), Found()
    requests = [BeamRequest([5], BeamOptions(beam_size, 4, END, n_best=beam_size)) for beam_size in (2, 3, 2)]
    engine.admit(requests, state=state)
    while engine.running:
        search(engine, found)
    for number, token in enumerate([3, 4, 5]):
        same(found[number], alone(model, requests[number]._replace(prompt=[1, token, 5])))


@pytest.mark.parametrize(
    "name", ["ngram-5", "ngram-mle", "gpt", "lstm", "mixture", "transformer", "copying", "linear", "fusion"]
)
@torch.no_grad()
def test_log_probabilities_may_be_overwritten(name):
    if name in ("transformer", "copying", "linear", "fusion"):
        model = ensemble(name) if name in ("linear", "fusion") else model_of(name)
        start = source_state(model, [3, 4, END])
    else:
        model, start = made(name), None
    prompt = torch.tensor([[1, 3]])
    first, state = model.start(prompt, None, start)
    expected, (second, _) = first.clone(), model.step(torch.tensor([4]), state)
    kept = second.clone()
    for overwritten in (first, second):
        overwritten.fill_(math.nan)
    again, state = model.start(prompt, None, start)
    assert again.equal(expected) and model.step(torch.tensor([4]), state)[0].equal(kept)


# ---- groups, memory, errors


def rows(engine: BeamEngine[Any]) -> list[int]:
    """The number of rows of each group's state."""
    return [len(tree_leaves(group.state)[0]) for group in engine._groups]


def test_sentences_with_one_beam_size_share_a_batch():
    model = Bigram(9)
    engine = BeamEngine(model)
    for number in range(4):
        engine.admit([BeamRequest([1 + number], BeamOptions(3, 9, n_best=1 + number % 3, length_penalty=number / 4))])
        engine.admit([BeamRequest([1 + number], BeamOptions(2, 9))])
        engine.step()
    assert sorted(rows(engine)) == [8, 12]
    engine.step()
    assert sorted(model.steps_taken[-2:]) == [8, 12]


def test_few_possible_tokens_leave_empty_beams():
    model = TOY_MODELS["hashed"](4)
    engine, found = BeamEngine(model), Found()
    requests = [BeamRequest([1, token], BeamOptions(30, 5, END, n_best=30)) for token in (3, 1)]
    for request in requests:
        engine.admit([request])
        search(engine, found)
    assert len(rows(engine)) == 1
    while engine.running:
        search(engine, found)
    for number, request in enumerate(requests):
        same(found[number], alone(model, request))


def test_cancelling_frees_the_rows_at_once():
    engine = BeamEngine(Bigram(6))
    first, second, third = engine.admit([BeamRequest([token], BeamOptions(3, 9)) for token in (1, 3, 4)])
    engine.cancel(second)
    assert rows(engine) == [2] and engine.running == [first, third]
    assert engine.step() == []
    assert rows(engine) == [6]
    engine.cancel_all([third, third])
    engine.cancel(third)  # again: no effect
    assert rows(engine) == [3]
    engine.cancel(first)
    assert rows(engine) == [] and engine.step() == [] and engine.admit([]) == []


def test_finished_sentences_are_returned_once_and_removed():
    model = chain_model([1, 3, 4, 5, 6, END], 7)
    engine = BeamEngine(model)
    options = BeamOptions(2, 9, END)
    engine.admit([BeamRequest([6], options), BeamRequest([5], options), BeamRequest([4], options._replace(max_new_tokens=1))])
    assert engine.step() == [(0, [Hypothesis([END], 0.0, 0.0)]), (2, [Hypothesis([5], 0.0, 0.0)])]
    assert engine.running == [1]
    assert engine.step() == [(1, [Hypothesis([6, END], 0.0, 0.0)])]
    assert engine.running == [] and engine.admit([BeamRequest([6], options)]) == [3]


def test_states_that_cannot_be_joined_step_separately():
    class Apart(Bigram):
        """Its state has as many tensors as its prompt has tokens."""

        def start(self, prompt, token_mask=None, state=None):
            log_probs, (newest,) = super().start(prompt, token_mask, state)
            return log_probs, (newest,) * prompt.size(1)

        def update(self, token, state):
            return (token.unsqueeze(1),) * len(state)

    model, found = Apart(6), Found()
    engine = BeamEngine(model)
    requests = [BeamRequest(prompt, BeamOptions(2, 5)) for prompt in ([1], [3, 4], [5], [4, 3], [1, 3, 5])]
    for request in requests:
        engine.admit([request])
        search(engine, found)
    assert max(model.steps_taken) == 4
    while engine.running:
        search(engine, found)
    for number, request in enumerate(requests):
        same(found[number], alone(Bigram(6), request))


def caches(state: Any, kind: type) -> list[Any]:
    if isinstance(state, kind):
        return [state]
    return [part for child in state for part in caches(child, kind)] if isinstance(state, tuple) else []


@torch.no_grad()
def test_caches_and_sources_stay_as_long_as_their_sentences_need():
    model = model_of("transformer")
    engine = BeamEngine(model)
    long, short = encoded(model, [[3, 4, 5, 6, 7, 8, 9, 10, 2]]), encoded(model, [[3, 2]])
    engine.admit([BeamRequest([BOS], BeamOptions(3, 5), long)])
    for _ in range(30):
        engine.admit([BeamRequest([BOS, 5], BeamOptions(3, 4), short), BeamRequest([BOS], BeamOptions(3, 3), short)])
        engine.step()
    (group,) = engine._groups
    widths = [cache.positions.size(1) for cache in caches(group.state, BeamCache)]
    assert widths and max(widths) <= 2 + 3 * 4 + MAX_DEAD_COLUMNS + 3
    assert all(part.parts[0].size(-2) == 2 for part in caches(group.state, SharedState))
    assert group.beams.tokens.size(2) <= 2 + 4


def test_rows_with_the_same_processor_are_processed_in_one_call():
    seen: list[int] = []

    def counted(log_probs, tokens):
        seen.append(len(tokens))
        return log_probs

    engine = BeamEngine(Bigram(6))
    options = BeamOptions(2, 4)
    engine.admit([BeamRequest([1, 3], options, processor=counted), BeamRequest([3], options)])
    engine.admit([BeamRequest([4], options, processor=counted)])
    engine.step()
    engine.step()
    assert seen == [1, 1, 4]


def test_bad_requests_are_refused():
    engine = BeamEngine(Bigram(6, max_positions=8))
    for request, problem in [
        (BeamRequest([], BeamOptions(2, 3)), "prompt: must have at least one token"),
        (BeamRequest([1], BeamOptions(2, 0)), "max_new_tokens: must be at least 1, got 0"),
        (
            BeamRequest([1, 3, 4], BeamOptions(2, 7)),
            "max_new_tokens: 3 prompt tokens and 7 new tokens exceed the model's 8 positions; use at most 6",
        ),
    ]:
        with pytest.raises(UsageError) as caught:
            engine.admit([BeamRequest([1], BeamOptions(2, 3)), request])
        assert str(caught.value) == problem and engine.running == []
    with pytest.raises(UsageError) as caught:
        engine.cancel(0)
    assert str(caught.value) == "engine: unknown sentence 0"


def test_nan_ends_the_search_when_it_is_met():
    table = torch.zeros(6, 6).log_softmax(1)
    table[4, 3] = math.nan
    engine = BeamEngine(Bigram(6, table=table))
    engine.admit([BeamRequest([1], BeamOptions(6, 10**6, END, min_new_tokens=9))])
    with pytest.raises(ModelError) as caught:
        for _ in range(5):
            engine.step()
    assert str(caught.value) == "the model computes NaN probabilities (its weights are corrupted or have diverged)"


# ---- patience


def plain_search(model: Any, prompt: list[int], options: BeamOptions) -> tuple[list[Hypothesis], int]:
    """Beam search over lists, and the number of its steps."""

    def score(tokens: list[int], log_prob: float) -> Hypothesis:
        return Hypothesis(tokens, log_prob / len(tokens) ** options.length_penalty, log_prob)

    active, ended = [(0.0, list[int]())], list[Hypothesis]()
    needed = math.inf if options.patience is None else math.floor(options.beam_size * options.patience + 0.5)
    for step in range(1, options.max_new_tokens + 1):
        candidates = [
            (total + value, [*tokens, word])
            for total, tokens in active
            for word, value in enumerate(model.start(torch.tensor([[*prompt, *tokens]]))[0][0].tolist())
            if word != options.eos_id or step > options.min_new_tokens
        ]
        candidates.sort(key=lambda item: -item[0])
        ended += [score(tokens, total) for total, tokens in candidates[: options.beam_size] if tokens[-1] == options.eos_id]
        active = [item for item in candidates if item[1][-1] != options.eos_id][: options.beam_size]
        ended.sort(key=lambda item: -item.score)
        bound = active[0][0] / options.max_new_tokens**options.length_penalty
        if len(ended) >= needed or (len(ended) >= options.n_best and ended[options.n_best - 1].score >= bound):
            return ended[: options.n_best], step
    ended += [score(tokens, total) for total, tokens in active]
    return sorted(ended, key=lambda item: -item.score)[: options.n_best], options.max_new_tokens


def steps_of(model: Any, request: BeamRequest) -> int:
    engine, steps = BeamEngine(model), 0
    engine.admit([request])
    while engine.running:
        engine.step()
        steps += 1
    return steps


def ending_model(seed: int) -> Bigram:
    """A random model that often predicts the end."""
    table = Bigram(8, seed=seed).table.clone()
    table[:, END] += 1.5
    return Bigram(8, table=table.log_softmax(1))


@pytest.mark.parametrize("patience", [None, 1.0, 1.5, 2.0, 4.0])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
def test_patience_equals_a_plain_loop(patience, alpha):
    lengths = set[int]()
    for seed in range(3):
        model = ending_model(seed)
        for beam_size, n_best in ((2, 1), (3, 3)):
            options = BeamOptions(beam_size, 12, END, alpha, n_best, min_new_tokens=seed, patience=patience)
            expected, steps = plain_search(model, [1, 3], options)
            same(alone(model, BeamRequest([1, 3], options)), expected)
            assert steps_of(model, BeamRequest([1, 3], options)) == steps
            lengths.add(steps)
    assert patience is not None or alpha < 2 or lengths == {12}


def test_patience_ends_a_search_before_the_bound_does():
    model = ending_model(1)
    exact = BeamOptions(3, 40, END, length_penalty=1.5, n_best=3)
    steps = [steps_of(model, BeamRequest([1], exact._replace(patience=patience))) for patience in (1.0, 2.0, 5.0, None)]
    assert steps == sorted(steps) and steps[0] < steps[1] < steps[-1] == 40


def test_half_a_hypothesis_is_rounded_up_and_n_best_are_always_found():
    assert BeamOptions(5, 9, patience=1.5).max_finished == 8
    assert BeamOptions(5, 9, patience=1.1).max_finished == 6
    assert BeamOptions(1, 9, patience=2.5).max_finished == 3
    assert BeamOptions(2, 9, n_best=7, patience=1.0).max_finished == 7


def test_hypotheses_that_a_callback_ends_count_for_patience():
    model = Hashed(6)
    options = BeamOptions(4, 30, length_penalty=1.0, finished=lambda _, outputs: [3 in output for output in outputs])
    patient = steps_of(model, BeamRequest([1], options._replace(patience=1.0)))
    assert patient < 6 < steps_of(model, BeamRequest([1], options))
