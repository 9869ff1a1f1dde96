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
from weft.nn.lm_head import LMHead
from weft.nn.state import SharedState, expand_to_beams, select, tree_leaves


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
