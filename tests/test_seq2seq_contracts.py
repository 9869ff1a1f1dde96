"""The step contract of encoder-decoders, for every encoder, decoder, attention score, attention position and bridge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy_models import enlarge_weights
from toy_seq2seq import (
    ALL_MODELS,
    GRID,
    MAX_POSITIONS,
    VARIANTS,
    VOCAB_SIZE,
    build,
    large_weight_model,
    random_memory,
    representative,
    sources,
    targets,
)

from weft.models.seq2seq import EncoderDecoder
from weft.nn.attention import FeedForward, SelfAttention
from weft.nn.bridge import ContextConcat, CopyBridge, ProjectionBridge
from weft.nn.choices import ATTENTION_SCORES
from weft.nn.cross_attention import (
    AttentionalOutput,
    AttentionBeforeStep,
    CrossAttention,
    InputFeeding,
    SourceAttention,
    StepwiseDecoder,
)
from weft.nn.lm_head import LMHead
from weft.nn.memory import Memory
from weft.nn.mixers import MIXERS
from weft.nn.pointer_generator import PointerGeneratorOutput
from weft.nn.positions import PositionEncoding
from weft.nn.recurrent import GRU, LSTM
from weft.nn.skip_connections import NoSkip
from weft.nn.stack import Layer, Stack
from weft.nn.state import join, select, tree_leaves, tree_map, where

FEW = set(representative())
every = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in ALL_MODELS]
)
CLOSE = {"atol": 2e-5, "rtol": 1e-4}
LENGTHS = (4, 7, 1)


def row(tokens: Tensor, number: int, length: int) -> tuple[Tensor, Tensor]:
    """One row by itself, without padding."""
    alone = tokens[number : number + 1, :length]
    return alone, torch.ones_like(alone, dtype=torch.bool)


def stepped(model: Any, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
    """Log-probabilities (B, T, V) after each token, read one by one."""
    log_probs, state = model.start(tokens[:, :1], None, state)
    actual = [log_probs]
    for token in tokens[:, 1:].unbind(1):
        log_probs, state = model.step(token, state)
        actual.append(log_probs)
    return torch.stack(actual, dim=1), state


# ---- the laws


@every
@torch.no_grad()
def test_step_log_probs_equal_one_pass_and_sum_to_the_score(name):
    model, (source, keep), tokens = build(name), sources(*LENGTHS), targets(3, 5)
    state = model.encode(source, keep)
    log_probs, _ = stepped(model, tokens[:, :-1], state)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3, 4), atol=1e-5, rtol=0)
    chosen = log_probs.gather(2, tokens[:, 1:, None])[..., 0]
    torch.testing.assert_close(model.score(tokens, None, state), chosen, **CLOSE)


@every
@torch.no_grad()
def test_padding_and_other_rows_do_not_change_the_encoding(name):
    model, (source, keep), tokens = build(name), sources(*LENGTHS), targets(3, 4)
    shouting = torch.where(keep, source, VOCAB_SIZE - 1)  # padding with an arbitrary token, which must have no effect
    together = model.score(tokens, None, model.encode(shouting, keep))
    for number, length in enumerate(LENGTHS):
        alone = model.score(tokens[number : number + 1], None, model.encode(*row(source, number, length)))
        torch.testing.assert_close(together[number : number + 1], alone, **CLOSE)


@every
@torch.no_grad()
def test_forced_prefixes_of_several_lengths_equal_each_row_alone(name):
    """Prefixes of 2, 3 and 1, padded to 3, then two more tokens."""
    model, (source, source_keep), tokens, more = build(name), sources(*LENGTHS), targets(3, 3), targets(3, 3)[:, 1:]
    lengths = torch.tensor([2, 3, 1])
    keep = torch.arange(3) < lengths[:, None]
    log_probs, state = model.start(torch.where(keep, tokens, VOCAB_SIZE - 1), keep, model.encode(source, source_keep))
    after, _ = stepped(model, more, state)
    for number, (length, prefix_length) in enumerate(zip(LENGTHS, lengths.tolist(), strict=True)):
        state = model.encode(*row(source, number, length))
        alone, state = model.start(tokens[number : number + 1, :prefix_length], None, state)
        torch.testing.assert_close(log_probs[number : number + 1], alone, **CLOSE)
        torch.testing.assert_close(after[number : number + 1], stepped(model, more[number : number + 1], state)[0], **CLOSE)


@every
@torch.no_grad()
def test_joined_rows_of_different_age_and_source_equal_each_row_alone(name):
    model, old, young, more = build(name), targets(2, 4), targets(1, 2, seed=1), targets(3, 4)[:, 1:]
    first, second = model.encode(*sources(3, 5)), model.encode(*sources(8))
    _, first = model.start(old, None, first)
    _, second = model.start(young, None, second)
    together, _ = stepped(model, more, join(tree_map(torch.clone, first), tree_map(torch.clone, second)))
    torch.testing.assert_close(together[:2], stepped(model, more[:2], first)[0], **CLOSE)
    torch.testing.assert_close(together[2:], stepped(model, more[2:], second)[0], **CLOSE)


@every
@torch.no_grad()
def test_decoder_is_causal(name):
    model, (source, keep), tokens = build(name), sources(*LENGTHS), targets(3, 5)
    other = tokens.clone()
    other[:, 3:] = (other[:, 3:] - 2) % (VOCAB_SIZE - 3) + 3
    state = model.encode(source, keep)
    y, z = model(tokens, state)[0], model(other, state)[0]
    torch.testing.assert_close(y[:, :3], z[:, :3], **CLOSE)
    assert (y[:, 3:] - z[:, 3:]).abs().amax(-1).min() > 1e-4


@every
@torch.no_grad()
def test_the_source_affects_every_target_position(name):
    """If the memory were ignored, all contracts above would hold trivially."""
    model, (source, keep), tokens = build(name), sources(4), targets(1, 3)
    other = source.clone()
    other[:, 1] = (other[:, 1] - 2) % (VOCAB_SIZE - 3) + 3
    first, second = (model(tokens, model.encode(read, keep))[0] for read in (source, other))
    assert (first - second).abs().amax(-1).min() > 1e-5


@every
@torch.no_grad()
def test_state_leaves_are_batch_first_and_selectable(name):
    model, (source, keep), tokens = build(name), sources(*LENGTHS), targets(3, 4)
    initial = model.encode(source, keep)
    _, state = model.start(tokens, None, initial)
    assert tree_leaves(initial) and all(leaf.size(0) == 3 for leaf in [*tree_leaves(initial), *tree_leaves(state)])
    order = torch.tensor([2, 0, 0, 1])
    full = stepped(model, tokens, initial)[0]
    torch.testing.assert_close(stepped(model, tokens[order], select(initial, order))[0], full[order], **CLOSE)


@every
def test_gradients_reach_every_parameter(name):
    model, (source, keep), tokens = build(name), sources(*LENGTHS), targets(3, 6)
    model.zero_grad()
    nats, _ = model.loss(tokens[:, :-1], tokens[:, 1:], model.encode(source, keep), 0.1)
    nats.sum().backward()
    moved = {weight: 0.0 if value.grad is None else float(value.grad.abs().max()) for weight, value in model.named_parameters()}
    model.zero_grad()
    rounding = 1e-6 * max(moved.values())  # exact zeros may be this large, depending on the processor
    unmoved = {weight for weight, size in moved.items() if size <= rounding}
    # with a single position, its attention weight is 1 for any query, so the query and the norm before it have no gradient;
    # and if only states are passed on, the layers above the top recurrent layer have no effect
    looks = {weight.partition(".mixer.")[0] for weight in unmoved if ".to_q." in weight}
    queries = {weight for weight in moved for look in looks if weight.startswith((f"{look}.norm.", f"{look}.mixer.to_q."))}
    assert bool(looks) == (name.endswith("attention/none") or "bottleneck" in name)
    assert unmoved == (queries | above_states(name, model))


def above_states(name: str, model: EncoderDecoder) -> set[str]:
    """The feed-forward sublayer on top of a recurrent encoder, if the decoder gets nothing but states."""
    options = ALL_MODELS[name]
    layer_type = {**options, **options.get("encoder", {})}.get("layer_type", "lstm")
    if options.get("attention", "none") != "none" or not MIXERS[layer_type].num_state_vectors:
        return set()
    top = f"encoder.stack.layers.{len(model.encoder.stack.layers) - 1}."
    names = {weight for weight, _ in model.named_parameters() if weight.startswith(top)}
    return names if f"{top}mixer.up_proj.weight" in names else set()


@pytest.mark.parametrize("name", VARIANTS)
def test_bf16_autocast_works_forward_and_backward(name):
    model, (source, keep), tokens = large_weight_model(**VARIANTS[name]).train(), sources(*LENGTHS), targets(3, 6)
    with torch.autocast("cpu", torch.bfloat16):
        state = model.encode(source, keep)
        _, state = model.start(tokens[:, :2], torch.tensor([[True, True], [True, False], [True, True]]), state)
        model.step(tokens[:, 2], state)
        nats, _ = model.loss(tokens[:, :-1], tokens[:, 1:], model.encode(source, keep), 0.1)
    nats.sum().backward()
    assert all(torch.isfinite(weight.grad).all() for weight in model.parameters() if weight.grad is not None)


def test_the_grid_is_the_full_cross_product():
    assert len(GRID) == 8 * 6 * (2 + 4 * 3) + 8 * 2


def test_a_score_of_one_token_is_empty():
    for name in ("lstm/lstm/none", "gru/gru/dot-before", "attention/attention/scaled-dot"):
        model = build(name)
        assert model.score(targets(2, 1), None, model.encode(*sources(3, 2))).shape == (2, 0)


def test_masked_tokens_score_zero():
    model, keep = build("lstm/lstm/additive-after"), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    scores = model.score(targets(2, 5), keep, model.encode(*sources(3, 2)))
    assert (scores[0] < 0).all() and (scores[1, :2] < 0).all() and (scores[1, 2:] == 0).all()


def test_learned_positions_limit_source_and_target_length():
    for name, max_length in (
        ("learned-transformer", MAX_POSITIONS),
        ("learned-feeding", MAX_POSITIONS),
        ("rotary-transformer", None),
    ):
        assert (build(name).max_positions, build(name).encoder.stack.positions.max_positions) == (max_length, max_length)
    with pytest.raises(ValueError) as caught:
        build("learned-before").encode(*sources(MAX_POSITIONS + 1))
    assert str(caught.value) == "positions: 33 tokens exceed the table of 32 positions"


def test_bidirectional_attention_rejects_a_state():
    part = SelfAttention(8, num_heads=2, context_length="bidirectional")
    _, state = part(torch.zeros(1, 3, 8))
    with pytest.raises(ValueError) as caught:
        part(torch.zeros(1, 3, 8), state)
    assert str(caught.value) == "bidirectional layers need the whole sequence at once"


@every
def test_muon_parameters_are_two_dimensional(name):
    model = build(name)
    weights = dict(model.named_parameters())
    assert model.muon_parameters() and all(weights[matrix].dim() == 2 for matrix in model.muon_parameters())
    assert not any(
        "embedding" in matrix or matrix.startswith("head") or "positions" in matrix for matrix in model.muon_parameters()
    )


# ---- holding rows still


def test_where_selects_rows_by_mask():
    new, old = (torch.ones(2, 3), (torch.ones(2, 1, 2), None)), (torch.zeros(2, 3), (torch.zeros(2, 1, 2), None))
    merged = where(new, old, torch.tensor([True, False]))
    assert merged[0].tolist() == [[1.0] * 3, [0.0] * 3]
    assert merged[1][0].tolist() == [[[1.0, 1.0]], [[0.0, 0.0]]] and merged[1][1] is None


# ---- numerical gradients


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def gradients_agree(part: nn.Module, inputs: tuple[Tensor, ...], run: Callable[..., Tensor], **within: float) -> None:
    """Compare gradients of inputs and of every weight with numerical ones."""
    part.double()
    leaves = tuple(value.detach().requires_grad_() for value in inputs)
    weights = tuple(weight.requires_grad_() for weight in part.parameters())
    probe = random(*run(*leaves).shape, seed=9)

    def loss(*values: Tensor) -> Tensor:
        return (run(*values[: len(leaves)]).double() * probe).sum()

    assert torch.autograd.gradcheck(loss, (*leaves, *weights), **{"atol": 1e-6, "fast_mode": True, **within})


def masked(values: Tensor, summary: Tensor) -> Memory:
    return Memory(values, torch.tensor([[True] * 4, [True, True, False, False]]), (), summary)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return enlarge_weights(make())


def recurrent(cell: nn.Module) -> Stack:
    layers = [
        Layer(
            ProjectionBridge(cell, 6, memory_size=5, num_state_vectors=2 if isinstance(cell, LSTM) else 1),
            NoSkip(),
            norm=nn.Identity(),
        ),
        Layer(FeedForward(6, ffn_dim=7), NoSkip(), norm=nn.Identity()),
    ]
    return Stack(layers, positions=PositionEncoding(), final_norm=nn.Identity())


X, VALUES, SUMMARY = random(2, 3, 6), random(2, 4, 5, seed=1), random(2, 5, seed=2)


def look(score: str) -> SourceAttention:
    return SourceAttention(6, score=score, memory_size=6 if "dot" in score else 5)


def values_for(score: str) -> Tensor:
    return random(2, 4, 6, seed=1) if "dot" in score else VALUES


@pytest.mark.parametrize("score", ATTENTION_SCORES)
def test_gradients_of_source_attention_equal_numerical_ones(score):
    part = seeded(lambda: look(score))
    gradients_agree(part, (X, values_for(score)), lambda x, values: part(x, part.init_state(masked(values, SUMMARY))))


@pytest.mark.parametrize("score", ATTENTION_SCORES)
def test_gradients_of_attentional_output_equal_numerical_ones(score):
    values = values_for(score)
    part = seeded(lambda: AttentionalOutput(look(score), 6, memory_size=values.size(-1)))
    gradients_agree(part, (X, values), lambda x, values: part(x, part.init_state(masked(values, SUMMARY)))[0])


@pytest.mark.parametrize("cell", [LSTM, GRU])
@pytest.mark.parametrize("score", ["multiplicative", "additive"])
@pytest.mark.parametrize("reader", ["before", "feeding"])
def test_gradients_of_stepwise_decoders_equal_numerical_ones(cell, score, reader):
    def make() -> StepwiseDecoder:
        read = AttentionalOutput(look(score), 6, memory_size=5)
        wide, read_by = (11, AttentionBeforeStep(look(score))) if reader == "before" else (12, InputFeeding(read))
        return StepwiseDecoder(recurrent(cell(6, input_size=wide)), read_by)

    part = seeded(make)
    gradients_agree(part, (X, VALUES, SUMMARY), lambda x, v, s: part(x, part.init_state(masked(v, s)))[0], atol=1e-5)


def test_gradients_of_cross_attention_equal_numerical_ones():
    part = seeded(lambda: CrossAttention(6, num_heads=2, memory_size=5, qk_norm=nn.RMSNorm(3)))
    gradients_agree(part, (X, VALUES), lambda x, values: part(x, part.init_state(masked(values, SUMMARY)))[0])
    narrow = seeded(lambda: CrossAttention(6, num_heads=2, memory_size=5, summary_only=True))
    gradients_agree(narrow, (X, SUMMARY), lambda x, summary: narrow(x, narrow.init_state(masked(VALUES, summary)))[0])


@pytest.mark.parametrize("cell", [LSTM, GRU])
def test_gradients_of_bridges_equal_numerical_ones(cell):
    part = seeded(lambda: ProjectionBridge(cell(6), 6, memory_size=5, num_state_vectors=2 if cell is LSTM else 1))
    gradients_agree(part, (X, SUMMARY), lambda x, summary: part(x, part.init_state(masked(VALUES, summary)))[0])
    state, copied = random(2, 6, seed=3), seeded(lambda: CopyBridge(cell(6), layer_index=1))

    def started(x: Tensor, state: Tensor) -> Tensor:
        full = (state, state.flip(0)) if cell is LSTM else state
        return copied(x, copied.init_state(masked(VALUES, SUMMARY)._replace(states=(None, full))))[0]

    gradients_agree(copied, (X, state), started)
    reminder = ContextConcat()
    gradients_agree(reminder, (X, SUMMARY), lambda x, summary: reminder(x, reminder.init_state(masked(VALUES, summary)))[0])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradients_of_copying_equal_numerical_ones(smoothing):
    part = seeded(lambda: PointerGeneratorOutput(LMHead(6, 8), 6, memory_size=5))
    source, expected = torch.tensor([[3, 4, 4, 2], [5, 2, 0, 0]]), torch.tensor([[4, 3, 7], [5, 5, 2]])

    def nats(x: Tensor, values: Tensor) -> Tensor:
        return part.loss(x, expected, part.init_state(masked(values, SUMMARY), source), smoothing)

    # its probabilities are float32: large steps with a larger tolerance
    gradients_agree(part, (X, VALUES), nats, eps=1e-2, atol=2e-3, rtol=1e-2)


def test_summary_only_memory_has_one_position():
    memory = random_memory(3, 2, hidden_size=5)
    narrowed = memory.summary_only()
    assert narrowed.values.tolist() == memory.summary[:, None].tolist()
    assert narrowed.token_mask.tolist() == [[True], [True]]
