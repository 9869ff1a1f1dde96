"""Continuous batching: each row gets what `sample` gives it alone, whichever rows are admitted with it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_models import WINDOW, made
from test_predict import BOS, encoded, model_of, source_tokens
from toy_decoding import TOY_MODELS, Bigram, Hashed, chain_model

from weft.decode import logits_processors as choose
from weft.decode.engine import Engine, Event, Request
from weft.decode.sampling import StoppingCriteria, sample
from weft.errors import ModelError, UsageError
from weft.models.lm import LanguageModel
from weft.nn.state import KVCache, SharedState, compact, join, join_all, select, tree_leaves

END = 2
SHARED = choose.compose([choose.ban_tokens([0, 1]), choose.temperature(0.8), choose.top_p(0.95)])
PROCESSORS = [SHARED, choose.compose([choose.no_repeat_ngram(2), choose.repetition_penalty(1.3)]), choose.top_k(3), None]
NETWORKS = ["rnn", "lstm", "gru", "conv", "gpt", "gpt-window-4", "transformer", "mixture", "ngram-5"]
PLACES = ["gpt-none", "gpt-sinusoidal", "gpt-learned", "gpt-relative", "gpt-alibi", "gpt-rotary"]
Written = dict[int, list[Event]]


def request_of(number: int, *, words: int = 7, most: int = 12) -> Request:
    """A request that differs from its neighbours in all that a request has."""
    chance = random.Random(number)
    prompt = [1, *(chance.randrange(3, words) for _ in range(chance.randrange(0, 7)))]
    return Request(
        prompt,
        chance.randrange(1, most),
        eos_id=chance.choice([END, 4, None]),
        min_new_tokens=chance.randrange(0, 4),
        logits_processor=PROCESSORS[number % len(PROCESSORS)],
        noise=None if number % 3 == 0 else choose.random_noise(5, number, 0),
    )


def alone(model: Any, request: Request) -> list[tuple[int, float]]:
    """What `sample` gives to one request."""
    until = StoppingCriteria(request.max_new_tokens, request.eos_id, request.min_new_tokens)
    drawing = sample(
        model,
        torch.tensor([list(request.prompt)]),
        criteria=until,
        state=request.state,
        processor=request.logits_processor,
        noise=None if request.noise is None else [request.noise],
    )
    return [(int(drawn.tokens), float(drawn.log_probs)) for drawn in drawing]


def write(engine: Engine[Any], written: Written) -> None:
    events = engine.step()
    assert [event.row for event in events] == sorted({event.row for event in events})
    for event in events:
        written.setdefault(event.row, []).append(event)


def check(written: Written, number: int, expected: list[tuple[int, float]], *, exact: bool = False, whole: bool = True) -> None:
    result = written.get(number, [])
    expected = expected if whole else expected[: len(result)]
    assert [event.token for event in result] == [token for token, _ in expected]
    close = {"rel": 0, "abs": 0} if exact else {"abs": 1e-5}
    assert [event.log_prob for event in result] == pytest.approx([spent for _, spent in expected], **close)
    assert all(event.finish_reason is None for event in result[:-1])
    assert not whole or result[-1].finish_reason is not None


@pytest.mark.parametrize("name", [*NETWORKS, *PLACES])
def test_rows_admitted_at_different_times_equal_sample_on_each_alone(name):
    """Networks: the same tokens, log-probabilities to 1e-5, for products of other sizes are rounded otherwise."""
    model = made(name)
    engine, written = Engine(model), Written()
    requests = [request_of(number, most=min(12, (model.max_positions or WINDOW) - 8)) for number in range(11)]
    for index, count in enumerate([3, 0, 1, 2, 0, 0, 4, 0, 0, 1]):
        first = sum([3, 0, 1, 2, 0, 0, 4, 0, 0, 1][:index])
        assert engine.admit(requests[first : first + count]) == list(range(first, first + count))
        write(engine, written)
    while engine.running:
        write(engine, written)
    for number, request in enumerate(requests):
        check(written, number, alone(model, request), exact=name.startswith("ngram"))


@pytest.mark.parametrize("name", ["cho", "bahdanau", "luong", "transformer", "copying"])
def test_sources_of_several_lengths_admitted_at_different_times(name):
    model, sources = model_of(name), source_tokens(7)
    engine, written = Engine(model), Written()
    with torch.no_grad():
        requests = [
            request_of(number, words=11)._replace(prompt=[BOS, *[5] * (number % 3)], state=encoded(model, [source]))
            for number, source in enumerate(sources)
        ]
    for number in range(0, 7, 2):
        engine.admit(requests[number : number + 2])
        write(engine, written)
    while engine.running:
        write(engine, written)
    for number, request in enumerate(requests):
        check(written, number, alone(model, request))


@settings(deadline=None, max_examples=20)
@given(st.lists(st.one_of(st.integers(0, 3), st.just("step"), st.tuples(st.just("cancel"), st.integers(0, 9))), max_size=25))
@pytest.mark.parametrize(
    "make", [lambda: Hashed(7), lambda: made("ngram-5"), lambda: made("gpt-window-4")], ids=["hashed", "ngram", "gpt"]
)
def test_admitting_and_cancelling_rows_does_not_change_other_rows(make: Callable[[], Any], actions):
    model = make()
    engine, written, requests, cancelled = Engine(model), Written(), list[Request](), set[int]()
    for action in [*actions, *["step"] * 13]:
        if action == "step":
            before = engine.running
            write(engine, written)
            assert set(engine.running) <= set(before)
        elif isinstance(action, int):
            more = [request_of(len(requests) + index) for index in range(action)]
            assert engine.admit(more) == list(range(len(requests), len(requests) + action))
            requests += more
        elif engine.running:
            number = engine.running[action[1] % len(engine.running)]
            engine.cancel(number)
            assert number not in engine.running
            cancelled.add(number)
    assert engine.running == []
    for number, request in enumerate(requests):
        exact = not isinstance(model, LanguageModel)  # tables know no products of matrices
        check(written, number, alone(model, request), exact=exact, whole=number not in cancelled)


def columns(engine: Engine[Any]) -> list[int]:
    """How many rows the tensors of its states have in all."""
    return [len(tree_leaves(group.state)[0]) for group in engine._groups]


def test_cancelling_frees_the_row_at_once():
    engine = Engine(Bigram(6))
    first, second, third = engine.admit([Request([1], 9), Request([3], 9), Request([4], 9)])
    assert columns(engine) == [3]
    engine.cancel(second)
    assert columns(engine) == [2] and engine.running == [first, third]
    assert [event.row for event in engine.step()] == [first, third]
    engine.cancel(third)
    engine.cancel(third)  # a second time is nothing
    assert columns(engine) == [1]
    engine.cancel(first)
    assert columns(engine) == [] and engine.step() == []


def test_finished_rows_report_a_reason_and_are_removed():
    model = chain_model([1, 3, 4, 5, 6, 2], 7)
    engine = Engine(model)
    engine.admit([Request([6], 9, END), Request([3], 2, END), Request([6], 9, END, min_new_tokens=2), Request([3], 9, END)])
    assert engine.step() == [
        Event(0, 2, 0.0, "eos"),
        Event(1, 4, 0.0, None),
        Event(2, -1, 0.0, "stuck"),
        Event(3, 4, 0.0, None),
    ]
    assert engine.step() == [Event(1, 5, 0.0, "length"), Event(3, 5, 0.0, None)]
    assert engine.step() == [Event(3, 6, 0.0, None)] and engine.running == [3]
    assert model.steps_taken == [2, 1]


def test_rows_with_the_same_processor_are_processed_in_one_call():
    seen: list[int] = []

    def counted(log_probs, tokens):
        seen.append(len(tokens))
        return log_probs

    engine = Engine(Bigram(6))
    engine.admit([Request([1, 3], 4, logits_processor=counted), Request([3], 4), Request([4], 4, logits_processor=counted)])
    engine.step()
    engine.admit([Request([5], 4, logits_processor=counted)])
    engine.step()
    assert seen == [2, 3]


@pytest.mark.parametrize("toy", TOY_MODELS.values(), ids=TOY_MODELS.keys())
def test_a_processor_sees_each_rows_own_tokens_aligned_on_the_right(toy):
    model, seen = toy(6), []
    engine = Engine(model)

    def look(log_probs, tokens):
        seen.append([[token for token in row if token >= 0] for row in tokens.tolist()])
        assert all(row == sorted(row, key=lambda token: token >= 0) for row in tokens.tolist())
        return log_probs

    written: Written = {}
    engine.admit([Request([1, 3, 4, 3, 5], 2, logits_processor=look)])
    write(engine, written)
    engine.admit([Request([3], 3, logits_processor=look), Request([4, 4], 3, logits_processor=look)])
    write(engine, written)
    write(engine, written)
    first, second, third = ([event.token for event in written[number]] for number in range(3))
    assert seen == [[[1, 3, 4, 3, 5]], [[1, 3, 4, 3, 5, first[0]], [3], [4, 4]], [[3, second[0]], [4, 4, third[0]]]]


def test_states_that_cannot_be_joined_step_separately():
    class Apart(Bigram):
        """Its state has as many tensors as its prompt has tokens."""

        def start(self, prompt, token_mask=None, state=None):
            log_probs, (newest,) = super().start(prompt, token_mask, state)
            return log_probs, (newest,) * prompt.size(1)

        def update(self, token, state):
            return (token.unsqueeze(1),) * len(state)

    model, written = Apart(6), Written()
    engine = Engine(model)
    requests = [Request(prompt, 5) for prompt in ([1], [3, 4], [5], [4, 3], [1, 3, 5])]
    for request in requests:
        engine.admit([request])
        write(engine, written)
    assert max(model.steps_taken) == 2
    while engine.running:
        write(engine, written)
    for number, request in enumerate(requests):
        check(written, number, alone(Bigram(6), request), exact=True)


def test_the_cache_stays_as_long_as_its_rows_need():
    model = made("gpt-rotary")  # sees 32 tokens: would forget at 64 columns
    engine = Engine(model)
    for _ in range(40):
        engine.admit([Request([1, 3], 4), Request([1], 3)])
        engine.step()
    (state,) = (group.state for group in engine._groups)
    caches = [part for part in state[1] if isinstance(part, KVCache)]
    assert len(caches) == 2 and all(cache.positions.size(1) <= 2 + 4 for cache in caches)


def test_compacting_removes_columns_without_tokens():
    position = torch.tensor([[0, 1, -1, -1, 2], [0, -1, -1, -1, 1]])
    keys = torch.arange(2 * 3 * 5 * 2.0).view(2, 3, 5, 2)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    given = (
        None,
        (KVCache(keys, -keys, position), SharedState((torch.rand(2, 3, 4), mask, torch.ones(2, 3)))),
        torch.ones(2, 3),
    )
    new = compact(given)
    assert new[0] is None and new[2] is given[2]
    cache, fixed = new[1]
    assert cache.positions.tolist() == [[0, 1, 2], [0, -1, 1]]
    assert torch.equal(cache.keys, keys[:, :, [0, 1, 4]]) and torch.equal(cache.values, -cache.keys)
    assert [tuple(part.shape) for part in fixed.parts] == [(2, 2, 4), (2, 2), (2, 2)]
    assert isinstance(select(new, torch.tensor([1]))[1][0], KVCache) and isinstance(join(new, new)[1][0], KVCache)


def test_all_states_are_joined_in_order():
    states = [(torch.full((1, size), size),) for size in (1, 3, 2)]
    assert join_all(states)[0].tolist() == [[1, -1, -1], [3, 3, 3], [2, 2, -1]]


def test_the_position_limit_of_a_row_does_not_depend_on_other_rows():
    model = made("gpt-learned")
    engine, written = Engine(model), Written()
    requests = [Request([1], WINDOW), Request([1, 3, 4], WINDOW - 2), Request([1] * (WINDOW - 3), 4)]
    for request in requests:
        engine.admit([request])
        for _ in range(5):
            write(engine, written)
    while engine.running:
        write(engine, written)
    for number, request in enumerate(requests):
        check(written, number, alone(model, request))
    with pytest.raises(UsageError) as caught:
        engine.admit([Request([1], 3), Request([1, 3], WINDOW)])
    assert str(caught.value).startswith("max_new_tokens: ") and engine.running == []


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request([], 3), "prompt: must have at least one token"),
        (Request([1], 0), "max_new_tokens: must be at least 1, got 0"),
    ],
)
def test_rows_without_room_for_a_token_are_refused(request_, message):
    engine = Engine(Bigram(6))
    with pytest.raises(UsageError) as caught:
        engine.admit([Request([1], 2), request_])
    assert str(caught.value) == message and engine.running == []


def test_a_row_that_was_never_admitted_can_not_be_cancelled():
    engine = Engine(Bigram(6))
    assert engine.admit([]) == [] and engine.step() == []
    with pytest.raises(UsageError) as caught:
        engine.cancel(0)
    assert str(caught.value) == "engine: unknown row 0"


def test_nan_log_probabilities_are_refused():
    engine = Engine(Bigram(6, table=torch.full((6, 6), float("nan"))))
    engine.admit([Request([1], 2)])
    with pytest.raises(ModelError) as caught:
        engine.step()
    assert str(caught.value) == "the model computes NaN probabilities (its weights are corrupted or have diverged)"


@pytest.mark.parametrize("name", NETWORKS + PLACES)
def test_prompts_whose_first_tokens_are_in_the_state(name):
    """A long prompt can be read in parts: its last part is read when the row is admitted, beside rows that are read whole."""
    model = made(name)
    requests = [request_of(number)._replace(prompt=[1, *range(3, 7), 3, 5]) for number in range(6)]
    parts = []
    for number, request in enumerate(requests):
        state, read = None, number % 3 * 2
        for position in range(0, read, 2):
            _, state = model.start(torch.tensor([request.prompt[position : position + 2]]), None, state)
        parts.append(request._replace(state=state, num_read=read))
    engine, written = Engine(model), {}
    engine.admit(parts)
    while engine.running:
        write(engine, written)
    for number, request in enumerate(requests):
        check(written, number, alone(model, request))


def test_the_most_probable_tokens_of_each_row():
    model = Bigram(6)
    engine = Engine(model)
    rows = engine.admit([Request([1], 2, num_top=2), Request([1], 2), Request([1], 2, num_top=1)])
    engine.step()
    values, tokens = model.table[1].sort(descending=True)
    expected = list(zip(tokens.tolist(), values.tolist(), strict=True))
    assert engine.top_tokens == {rows[0]: expected[:2], rows[2]: expected[:1]}


@pytest.mark.parametrize("request_", [Request([1, 3], 2, num_read=1), Request([1, 3], 2, state=(), num_read=2)])
def test_a_part_of_a_prompt_needs_a_state_and_a_rest(request_):
    with pytest.raises(UsageError, match="num_read: requires a state, and a token of the prompt that it has not read"):
        Engine(Bigram(6)).admit([request_])
