"""The optimizations of beam search give the same results as the plain computation."""

from __future__ import annotations

import math

import pytest
import torch
from test_predict import encoded, every_decoder, model_of, source_tokens
from toy_decoding import TOY_MODELS

from weft.decode import beam_step as module
from weft.decode.beam import BeamOptions, beam_search
from weft.decode.logits_processors import ban_tokens
from weft.nn import state as state_module
from weft.nn.attention import SelfAttention
from weft.nn.lm_head import LMHead
from weft.nn.positions import AlibiBias, PositionEncoding, RelativeBias, RelativePositions, RotaryEmbedding
from weft.nn.state import BeamCache, SharedState, compact, expand_to_beams, join, select, tree_leaves


def sizes(state) -> list[int]:
    """How many rows each fixed tensor of a state has."""
    if isinstance(state, SharedState):
        return [len(part) for part in state.parts]
    return [size for part in state for size in sizes(part)] if isinstance(state, tuple) else []


@every_decoder
@torch.no_grad()
def test_rows_with_a_shared_source_equal_rows_with_copies(name):
    model = model_of(name)
    state = encoded(model, source_tokens(3, seed=4))
    _, state = model.start(torch.tensor([[1], [1], [1]]), None, state)
    shared = alone = state
    moves = [  # parents, and the sources that stay: a beam of 3 opens, is reordered, loses a source
        (torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2]), None),
        (torch.tensor([2, 0, 0, 4, 4, 5, 6, 8, 7]), None),
        (torch.tensor([1, 0, 2, 7, 8, 7]), torch.tensor([0, 2])),
    ]
    for rows, sources in moves:
        tokens = torch.arange(len(rows)) % 8 + 3
        single, shared = model.step(tokens, expand_to_beams(shared, rows, sources))
        other, alone = model.step(tokens, select(alone, rows))
        torch.testing.assert_close(single, other, rtol=0, atol=1e-5)
        assert set(sizes(shared)) <= {len(rows) // 3} and set(sizes(alone)) <= {len(rows)}


@torch.no_grad()
def test_a_source_is_stored_once():
    model = model_of("transformer")
    state = encoded(model, source_tokens(2))
    before = {part.data_ptr() for part in tree_leaves(state)}
    _, state = model.start(torch.tensor([[1], [1]]), None, state)
    after = tree_leaves(expand_to_beams(state, torch.tensor([0, 0, 1, 1]), None))
    assert before <= {part.data_ptr() for part in after}


POSITIONS = {
    "none": PositionEncoding,
    "rotary": lambda: RotaryEmbedding(8),
    "alibi": lambda: AlibiBias(2),
    "relative": lambda: RelativePositions(8, max_distance=3),
    "relative bias": lambda: RelativeBias(2, bidirectional=False, num_buckets=8, max_distance=6),
}


@pytest.mark.parametrize("max_dead_columns", [0, 16])
@pytest.mark.parametrize("context_length", [None, 4])
@pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS.keys())
@torch.no_grad()
def test_hypotheses_that_share_their_columns_equal_rows_with_copies(positions, context_length, max_dead_columns, monkeypatch):
    monkeypatch.setattr(state_module, "MAX_DEAD_COLUMNS", max_dead_columns)
    torch.manual_seed(1)
    attention = SelfAttention(16, num_heads=2, positions=positions(), context_length=context_length).eval()
    num_beams, token_mask = 3, torch.tensor([[True, True, True], [True, False, False]])
    shared = alone = attention(torch.randn(2, 3, 16), None, token_mask)[1]
    parents = [[0] * num_beams, *(torch.randint(num_beams, (15, num_beams)).tolist())]
    for number, beams in enumerate(parents):
        num_sentences = 1 if number > 12 else 2 if number < 6 else 4
        sources = torch.tensor([2]) if number == 13 else None  # three of the four sentences end
        kept = sources if sources is not None else torch.arange(num_sentences)
        rows = (kept.unsqueeze(1) * (num_beams if number else 1) + torch.tensor(beams)).flatten()
        x = torch.randn(len(rows), 1, 16)
        y, shared = attention(x, expand_to_beams(shared, rows, sources))
        expected, alone = attention(x, select(alone, rows))
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-5)
        assert isinstance(shared, BeamCache) and len(shared.keys) == num_sentences
        if number == 5:  # two more sentences enter, which have read fewer tokens
            new = attention(torch.randn(2, 1, 16))[1]
            rows = torch.tensor([0, 0, 0, 1, 1, 1])
            shared = compact(join(shared, expand_to_beams(new, rows, None)))
            alone = join(alone, select(new, rows))
    num_tokens = 3 + num_beams * len(parents) if context_length is None else num_beams * context_length
    assert shared.positions.size(1) <= num_tokens + max_dead_columns + num_beams


@torch.no_grad()
def test_packing_a_beam_cache_removes_the_tokens_that_no_hypothesis_contains():
    torch.manual_seed(1)
    visible = torch.tensor([[[True, False, True, False], [True, False, False, False]], [[False, True, True, True]] * 2])
    cache = BeamCache(torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5), torch.arange(4).expand(2, 4), visible)
    packed = cache.packed()
    assert packed.positions.tolist() == [[0, 2, -1], [1, 2, 3]]
    assert packed.visible.tolist() == [[[True, True, False], [True, False, False]], [[True, True, True]] * 2]
    for sentence, columns in enumerate(([0, 2], [1, 2, 3])):
        for new, old in ((packed.keys, cache.keys), (packed.values, cache.values)):
            assert new[sentence][:, : len(columns)].equal(old[sentence][:, columns])


@pytest.mark.parametrize("words", [64 * 9, 64 * 9 + 1, 64 * 31 - 1])
@pytest.mark.parametrize("beams", [1, 3])
def test_the_best_totals_in_blocks_equal_those_of_all_tokens(words, beams):
    generator = torch.Generator().manual_seed(words)
    values = torch.randn(4 * beams, words, generator=generator)
    sums = torch.randn(4, beams, generator=generator, dtype=torch.float64)
    values[1], values[2, : words // 2] = -math.inf, -math.inf
    sums[3, 0] = -math.inf  # an empty beam
    totals = (sums.unsqueeze(2) + values.view(4, beams, words)).flatten(1)
    actual, index = module._best_in_blocks(sums, values, 10)
    torch.testing.assert_close(actual, totals.topk(10, dim=1).values, rtol=0, atol=0)
    torch.testing.assert_close(totals.gather(1, index), actual, rtol=0, atol=0)
    assert module.best_totals(sums, values, 10)[0].equal(actual)
    assert module.best_totals(sums, values.T.contiguous().T, 10)[0].equal(actual)  # any memory layout
    values[4 % len(values), words - 1] = math.nan
    assert module._best_in_blocks(sums, values, 10)[0].isnan().sum() == 1


@pytest.mark.parametrize("words", [1, 4, 63])
def test_the_best_totals_of_a_small_vocabulary(words):
    values, sums = torch.randn(6, words), torch.randn(2, 3, dtype=torch.float64)
    totals = (sums.unsqueeze(2) + values.view(2, 3, words)).flatten(1)
    actual, index = module.best_totals(sums, values, 10)
    assert actual.equal(totals.topk(min(10, 3 * words), dim=1).values) and totals.gather(1, index).equal(actual)


def test_of_equal_totals_the_first_are_the_best():
    index = module.best_totals(torch.zeros(1, 3, dtype=torch.float64), torch.zeros(3, 2), 4)[1]
    assert len(set(index[0].tolist())) == 4
    assert module.best_first(torch.zeros(2, 9), 3)[1].tolist() == [[0, 1, 2]] * 2


@pytest.mark.parametrize("toy", TOY_MODELS.values(), ids=TOY_MODELS.keys())
@pytest.mark.parametrize("least", [0, 3])
@pytest.mark.parametrize("never", [(), (0, 1), (0, 1, 2, 3, 4, 5)])
def test_excluded_tokens_equal_banned_tokens(toy, least, never):
    model, prompt = toy(6), torch.tensor([[1], [4]])
    options = BeamOptions(beam_size=3, max_new_tokens=5, eos_id=2, n_best=3, min_new_tokens=least)
    filtered = beam_search(model, prompt, options=options, processor=ban_tokens(never))
    assert beam_search(model, prompt, options=options._replace(banned_tokens=never)) == filtered


def test_log_probabilities_are_the_same_with_and_without_autograd():
    torch.manual_seed(1)
    for cap in (None, 2.0):
        head, x = LMHead(16, 300, logit_softcap=cap), torch.randn(5, 16)
        kept = x.clone()
        with torch.no_grad():
            short = head(x)
        assert torch.equal(short, head(x)) and torch.equal(x, kept)
        assert torch.equal(short.exp().sum(1).round(decimals=4), torch.ones(5))
