"""The fast path of decoding equals the plain one: for every stack and encoder-decoder, and for every way in which decoders use
states: rows of different lengths, rows that enter and leave, beams that are reordered, and two steps from one state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from toy_models import DIM, STACKS, build_stack, enlarge_weights
from toy_seq2seq import ALL_MODELS, VARIANTS, build, representative, sources

from weft.decode.engine import Engine, Request
from weft.decode.ensemble import Ensemble, LinearEnsemble
from weft.decode.incremental import stepper
from weft.decode.logits_processors import random_noise, sample_few, sample_token
from weft.models.config import LanguageModelConfig
from weft.models.lm import LanguageModel, language_model
from weft.nn import decode_step, packed_linear
from weft.nn.attention import FeedForward, SelfAttention
from weft.nn.attention_step import MIN_ROOM, SelfAttentionStep
from weft.nn.decode_step import MAX_AHEAD, MAX_SMALL, Counter, Shared, StackStep
from weft.nn.positions import PositionEncoding, SinusoidalPositions
from weft.nn.state import compact, expand_to_beams, join, select, tree_leaves, tree_map

CLOSE = {"atol": 1e-5, "rtol": 1e-4}
FEW = {*representative()[::4], *(name for name in representative() if "/attention/" in name), *VARIANTS}
every_stack = pytest.mark.parametrize("name", STACKS)
every_model = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in ALL_MODELS]
)


def equal_states(actual: Any, expected: Any) -> None:
    pairs = list(zip(tree_leaves(actual), tree_leaves(expected), strict=True))
    assert pairs
    for first, second in pairs:
        torch.testing.assert_close(first, second, **CLOSE)


def inputs(rows: int, seed: int) -> Tensor:
    return torch.randn(rows, DIM, generator=torch.Generator().manual_seed(seed))


def steps(fast: Any, plain: Any, states: tuple[Any, Any], count: int) -> tuple[Any, Any]:
    """The states after some steps of both paths, whose outputs are equal."""
    actual, expected = states
    for number in range(count):
        x = inputs(tree_leaves(expected)[0].size(0), number)
        y, actual = fast(x, actual)
        z, expected = plain(x[:, None], expected)
        torch.testing.assert_close(y, z[:, 0], **CLOSE)
    equal_states(actual, expected)
    return actual, expected


@every_stack
@pytest.mark.parametrize("context_length", [5, 200])
@torch.no_grad()
def test_steps_of_a_stack_equal_its_forward(name, context_length):
    """Rows of different lengths, more tokens than a buffer has room for; rows leave and enter."""
    stack = build_stack(name, context_length=max(context_length, 100) if "learned" in name else context_length)
    step = StackStep(stack)
    mask = torch.arange(7) < torch.tensor([[3], [7], [5]])
    _, state = stack(torch.randn(3, 7, DIM), None, mask)
    states = steps(step, stack, (state, state), MIN_ROOM + 5)
    states = tuple(select(part, torch.tensor([2, 0])) for part in states)
    _, other = stack(torch.randn(1, 4, DIM))
    states = steps(step, stack, states, 3)
    states = tuple(compact(join(part, other)) for part in states)
    steps(step, stack, states, 3)
    _, even = stack(torch.randn(2, 4, DIM))  # without padding, and so without a mask
    steps(step, stack, (even, even), 12)


@every_stack
@torch.no_grad()
def test_steps_of_a_single_row_equal_the_forward(name):
    """More than the positions that are encoded at once. A single row is a vector inside of the stack."""
    stack = build_stack(name, context_length=MIN_ROOM + 9)  # positions are encoded ahead up to the last one of a table
    step, (_, state) = StackStep(stack), stack(torch.randn(1, 4, DIM))
    states = steps(step, stack, (state, state), MIN_ROOM + 3)
    twice = torch.tensor([0, 0])
    steps(step, stack, (select(states[0], twice), select(states[1], twice)), 2)


@torch.no_grad()
def test_learned_positions_are_not_read_past_their_table():
    """By `_num_ahead`, positions that no token has are not read either."""
    stack = build_stack("attention-learned", context_length=MIN_ROOM)
    step, (_, state) = StackStep(stack), stack(torch.randn(2, 3, DIM))
    state = steps(step, stack, (state, state), MIN_ROOM - 3)[0]
    with pytest.raises(IndexError):
        step(torch.randn(2, DIM), state)


@pytest.fixture
def packed(monkeypatch):
    """All weights are packed, however small they are, and whatever the processor is."""
    if not torch._C._has_mkldnn:
        pytest.skip("torch without oneDNN")
    monkeypatch.setattr(packed_linear, "prefers_onednn", lambda: True)
    monkeypatch.setattr(packed_linear, "MIN_PACKED_NUMBERS", 1)


@every_stack
def test_steps_of_a_stack_with_packed_weights(name, packed):
    test_steps_of_a_stack_equal_its_forward(name, 200)


@every_stack
@torch.no_grad()
def test_a_step_without_a_state_reads_the_first_token(name):
    stack = build_stack(name)
    step, x = StackStep(stack), inputs(3, 4)
    y, actual = step(x, None)
    z, expected = stack(x[:, None])
    torch.testing.assert_close(y, z[:, 0], **CLOSE)
    steps(step, stack, (actual, expected), 3)


@every_stack
@torch.no_grad()
def test_no_step_changes_a_state_that_was_returned(name):
    stack = build_stack(name)
    step = StackStep(stack)
    _, start = stack(torch.randn(2, 4, DIM))
    _, root = step(inputs(2, 1), start)
    copy = tree_map(torch.clone, root)
    branches = [step(inputs(2, seed), root) for seed in range(3)]  # the first extends the state in place
    deeper = [step(inputs(2, 9), branch) for _, branch in branches]
    equal_states(root, copy)
    for seed, (y, branch) in enumerate(branches):
        expected, state = stack(inputs(2, seed)[:, None], copy)
        torch.testing.assert_close(y, expected[:, 0], **CLOSE)
        equal_states(branch, state)
        torch.testing.assert_close(deeper[seed][0], stack(inputs(2, 9)[:, None], state)[0][:, 0], **CLOSE)


@every_model
@torch.no_grad()
def test_steps_of_an_encoder_decoder_equal_the_plain_ones(name):
    model = build(name)
    step, state = stepper(model), model.encode(*sources(4, 7, 2))
    _, state = model.start(torch.tensor([[1], [1], [1]]), None, state)
    actual = expected = state
    moves = [  # a beam of 3 opens, is reordered, loses a sentence
        (torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2]), None),
        (torch.tensor([2, 0, 0, 4, 4, 5, 6, 8, 7]), None),
        (torch.tensor([1, 0, 2, 7, 8, 7]), torch.tensor([0, 2])),
        *[(torch.tensor([1, 1, 0, 3, 4, 5]), None)] * 14,
    ]
    for rows, kept in moves:
        tokens = torch.arange(len(rows)) % 8 + 3
        fast, actual = step(tokens, expand_to_beams(actual, rows, kept))
        plain, expected = model.step(tokens, expand_to_beams(expected, rows, kept))
        torch.testing.assert_close(fast, plain, **CLOSE)
    equal_states(actual, expected)


@pytest.mark.parametrize("name", [name for name in ALL_MODELS if name in FEW])
def test_steps_of_an_encoder_decoder_with_packed_weights(name, packed):
    test_steps_of_an_encoder_decoder_equal_the_plain_ones(name)


def gpt(**options: Any) -> LanguageModel:
    torch.manual_seed(3)
    attention = {} if "layer_type" in options else {"layer_type": "attention", "num_heads": 2}
    config = LanguageModelConfig(num_layers=2, hidden_size=16, **attention, **options).with_defaults()
    model = language_model(config, vocab_size=20, context_length=60, vocabulary="v")
    return enlarge_weights(model).eval()


MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotary": {
        "position_encoding": "rotary",
        "qk_norm": True,
        "logit_softcap": 5.0,
        "activation": "squared-relu",
        "bias": False,
    },
    "experts": {"num_experts": 4, "experts_per_token": 2},
    "lstm": {"layer_type": "lstm"},
    "learned": {"position_encoding": "learned", "norm": "rmsnorm", "tie_embeddings": True, "head_bias": False},
}


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS.keys())
def test_an_engine_generates_the_tokens_of_the_plain_path(options, monkeypatch):
    model = gpt(**options)

    def generated() -> list[Any]:
        engine = Engine(model)
        engine.admit([Request([first], 5 + first, noise=random_noise(2, first, 0)) for first in (3, 9)])
        engine.admit([Request([first, 6], 8, noise=random_noise(3, first, 0)) for first in (4, 5)])
        prompts = [[1], [4, 5, 6], [7, 8]]
        engine.admit([Request(prompt, 30 + row, noise=random_noise(1, row, 0)) for row, prompt in enumerate(prompts)])
        events = [event for _ in range(5) for event in engine.step()]
        engine.admit([Request([3, 3], 10)])
        while engine.running:
            events += engine.step()
        return events

    fast = generated()
    monkeypatch.setattr("weft.decode.engine.stepper", lambda model: model.step)
    plain = generated()
    assert [event[:2] for event in fast] == [event[:2] for event in plain]
    np.testing.assert_allclose([event.log_prob for event in fast], [event.log_prob for event in plain], atol=1e-4)


def test_steps_of_an_ensemble_equal_the_plain_ones():
    ensemble = Ensemble([gpt(), gpt(layer_type="lstm")], LinearEnsemble([0.5, 0.5]))
    with torch.no_grad():
        _, state = ensemble.start(torch.tensor([[1, 5], [1, 6]]))
        fast, plain = stepper(ensemble)(torch.tensor([3, 4]), state), ensemble.step(torch.tensor([3, 4]), state)
    torch.testing.assert_close(fast[0], plain[0], **CLOSE)
    equal_states(fast[1], plain[1])


def calls(model: LanguageModel, step: Any, state: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many layers a step calls as modules."""
    count = 0

    def counted(self: Any, *inputs: Any) -> Any:
        nonlocal count
        count += 1
        return forward(self, *inputs)

    forward = SelfAttention.forward
    with monkeypatch.context() as patch:
        patch.setattr(SelfAttention, "forward", counted)
        step(torch.tensor([4]), state)
    return count


def test_the_plain_path_is_taken_where_the_fast_one_does_not_apply(monkeypatch):
    model = gpt(dropout=0.5)
    with torch.no_grad():
        _, state = model.start(torch.tensor([[1, 5]]))
        step = stepper(model)
        assert calls(model, step, state, monkeypatch) == 0
        seen: list[Any] = []
        hook = model.stack.layers[1].norm.register_forward_hook(lambda module, inputs, output: seen.append(output))
        assert calls(model, step, state, monkeypatch) == 2 and len(seen) == 1
        hook.remove()
        assert calls(model, step, state, monkeypatch) == 0
        gpt().register_forward_hook(lambda module, inputs, output: None)  # of another model
        assert calls(model, step, state, monkeypatch) == 0
        with torch.autocast("cpu", torch.bfloat16):
            assert calls(model, step, state, monkeypatch) == 2
        model.train()
        assert calls(model, step, state, monkeypatch) == 2
        model.eval()
    assert calls(model, step, state, monkeypatch) == 2  # gradients


@pytest.mark.parametrize("layer_type", ["attention", "lstm"])
@torch.no_grad()
def test_steps_without_rows(layer_type):
    model = gpt() if layer_type == "attention" else gpt(layer_type=layer_type)
    _, state = model.start(torch.tensor([[1, 5]]))
    step, none = stepper(model), torch.zeros(0, dtype=torch.long)
    state = select(state, none)
    for _ in range(3):
        log_probs, state = step(none, state)
        assert log_probs.shape == (0, 20)


@pytest.mark.parametrize("activation", ["gelu", "gelu-tanh", "relu", "swiglu"])
@pytest.mark.parametrize("rows", [1, 2, MAX_SMALL // 64 + 1])  # GELU of few numbers is computed in another way
@torch.no_grad()
def test_steps_of_feed_forward_layers_equal_their_forward(activation, rows):
    mixer = FeedForward(DIM, ffn_dim=64, activation=activation).eval()
    step, shared = mixer.lean_step(), Shared()
    for seed in range(2):
        x = 3 * inputs(rows, seed)
        torch.testing.assert_close(step(x, (), shared)[0], mixer(x)[0], **CLOSE)


@pytest.mark.parametrize("rows", [1, 3])
@torch.no_grad()
def test_a_feed_forward_layer_of_odd_size(rows):
    """Its hidden vectors have no halves, through which GELU overwrites them."""
    mixer, x = FeedForward(DIM, ffn_dim=7).eval(), inputs(rows, 0)
    torch.testing.assert_close(mixer.lean_step()(x, (), Shared())[0], mixer(x)[0], **CLOSE)


@torch.no_grad()
def test_positions_in_another_precision_than_the_weights():
    """The frequencies are not weights, and may stay in float32."""
    stack = build_stack("attention-sinusoidal")
    for weight in stack.parameters():
        weight.data = weight.data.bfloat16()
    x = inputs(2, 0).bfloat16()
    y, expected = StackStep(stack)(x, None)[0], stack(x[:, None])[0][:, 0]
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected, atol=0.1, rtol=0.1)


@torch.no_grad()
def test_weights_may_change_in_place():
    model = gpt()
    _, state = model.start(torch.tensor([[1, 5]]))
    step = stepper(model)
    before, _ = step(torch.tensor([4]), state)
    enlarge_weights(model)
    after, _ = step(torch.tensor([4]), state)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, model.step(torch.tensor([4]), state)[0], **CLOSE)


def test_an_encoding_that_adds_something_says_what_for_steps():
    class Own(PositionEncoding):
        def add_to(self, x, positions):
            return x + positions[..., None]

    with pytest.raises(NotImplementedError, match="Own overrides add_to, but not stepper"):
        Own().stepper()
    assert PositionEncoding().stepper() is None


@torch.no_grad()
def test_few_positions_are_encoded_ahead_for_many_rows():
    positions = SinusoidalPositions(DIM)
    counter, num_read = Counter(positions), torch.zeros(MAX_AHEAD // 2, 1, dtype=torch.long)
    for number in range(5):
        vectors, num_read = counter.advance(num_read)
        assert torch.equal(
            vectors, positions.add_to(torch.zeros(1, 5, DIM), torch.arange(5)[None])[0, number].expand_as(vectors)
        )
        assert len(list(counter.upcoming)) == (number > 0)  # two steps at once, the first of which has been taken


@torch.no_grad()
def test_learned_positions_may_change_in_place():
    """Those of the steps to come are encoded ahead."""
    stack = build_stack("attention-learned", context_length=MIN_ROOM)
    step, (_, state) = StackStep(stack), stack(torch.randn(1, 4, DIM))
    states = steps(step, stack, (state, state), 3)
    stack.positions.table.weight.mul_(3.0)
    steps(step, stack, states, 3)


def test_learned_positions_that_were_made_in_inference_mode():
    """torch does not count their changes."""
    with torch.inference_mode():
        stack = build_stack("attention-learned", context_length=MIN_ROOM)
        step, (_, state) = StackStep(stack), stack(torch.randn(1, 4, DIM))
        states = steps(step, stack, (state, state), 3)
        stack.positions.table.weight.mul_(3.0)
        steps(step, stack, states, 3)


@every_stack
@torch.no_grad()
def test_a_single_row_with_beams(name):
    stack = build_stack(name)
    step, (_, state) = StackStep(stack), stack(torch.randn(1, 4, DIM))
    both = expand_to_beams(state, torch.tensor([0, 0]), None)
    actual, expected = steps(step, stack, (both, both), 1)
    one = torch.tensor([1])
    steps(step, stack, (expand_to_beams(actual, one, None), expand_to_beams(expected, one, None)), 2)


@torch.no_grad()
def test_a_cache_grows_in_place_until_its_buffer_is_full():
    attention = SelfAttention(DIM, num_heads=2).eval()
    _, state = attention(torch.randn(2, 3, DIM))
    step, addresses = SelfAttentionStep(attention), list[int]()
    for _ in range(2 * MIN_ROOM):
        _, state = step(torch.randn(2, DIM), state, Shared())
        addresses.append(state.keys.data_ptr())
    assert len(set(addresses)) == 2
    _, copied = step(torch.randn(2, DIM), select(state, torch.tensor([1, 0])), Shared())
    assert copied.keys.data_ptr() not in addresses


def test_sampling_follows_the_cumulative_distribution():
    generator = torch.Generator().manual_seed(1)
    log_probs = (3 * torch.randn(200, 40, generator=generator)).log_softmax(1)
    log_probs[3] = -torch.inf  # no token is possible
    log_probs[5, -10:] = -torch.inf
    noise = torch.rand(200, dtype=torch.float64, generator=generator)
    noise[:6] = torch.tensor([0.0, 1 - 2**-53, 0.5, 0.5, 0.0, 1 - 2**-53], dtype=torch.float64)
    tokens = sample_token(log_probs, noise)
    assert sample_few(log_probs.tolist(), noise.tolist()) == tokens.tolist()
    assert tokens[0] == 0 and tokens[1] == 39 and tokens[3] == -1 and tokens[5] == 29
    for row in set(range(200)) - {0, 1, 3, 5}:
        probs = log_probs[row].double().exp()
        token = int(tokens[row])
        low, high = float(probs[:token].sum() / probs.sum()), float(probs[: token + 1].sum() / probs.sum())
        assert low - 1e-9 <= noise[row] <= high + 1e-9


def test_all_modules_are_found_once():
    model = build_stack(next(iter(STACKS)))
    shared = torch.nn.ModuleList([model, model.layers[0], model])
    shared.register_module("nothing", None)
    assert set(decode_step._modules(shared)) == set(shared.modules())
    assert len(decode_step._modules(shared)) == len(list(shared.modules()))
