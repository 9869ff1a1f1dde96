"""The memory that beam search needs is estimated before its first step."""

from __future__ import annotations

import pytest
import torch
from test_predict import CPU, asking, encoded, every_decoder, model_of, source_tokens

from weft.decode import batch_size as room
from weft.decode import predict as module
from weft.decode.ensemble import Ensemble, LinearEnsemble
from weft.decode.predict import predict
from weft.decode.predict_options import PredictionConfig
from weft.errors import ResourceError
from weft.nn.state import tree_leaves

GROWING, STANDING = "transformer", "luong"


@pytest.fixture(autouse=True)
def every_search_is_checked(monkeypatch):
    """Searches of a few tokens are not estimated: that would take longer than some of them."""
    monkeypatch.setattr(module, "MIN_CHECKED_TOKENS", 0)


def needed(name: str, monkeypatch, sources=None, **options: int) -> int:
    """The smallest free memory with which the first source is accepted, by bisection."""
    low, high = 0, 1 << 40
    while high - low > 1:
        middle = (low + high) // 2
        monkeypatch.setattr(room, "free_device_memory", lambda device, there=middle: there)
        try:
            request, config = asking(model_of(name), sources or source_tokens(1)), PredictionConfig(**options)
            module._batch_size(request, config, [module.max_new_tokens_for(request, 0, config)], 0)
            high = middle
        except ResourceError:
            low = middle
    return high


@pytest.mark.parametrize("name", [GROWING, STANDING])
def test_memory_grows_with_the_beam_size(name, monkeypatch):
    assert needed(name, monkeypatch, beam_size=10) == pytest.approx(2 * needed(name, monkeypatch, beam_size=5), rel=0.01)


def test_only_growing_states_need_more_memory_for_more_tokens(monkeypatch):
    for name, factor in ((GROWING, 5), (STANDING, 1)):
        short, long = (needed(name, monkeypatch, max_new_tokens=length) for length in (100, 1000))
        assert long > factor * short
    # if the state does not grow, only the tokens are added
    assert (
        needed(STANDING, monkeypatch, max_new_tokens=1000) - needed(STANDING, monkeypatch, max_new_tokens=100)
        == 3 * 5 * 900 * 8
    )


@pytest.mark.parametrize(
    ("options", "unit", "suggestion"),
    [
        ({"beam_size": 4}, "a beam of 4 rows", "`beam_size` or `max_new_tokens`"),
        ({"num_samples": 3}, "a line with 3 samples", "`num_samples` or `max_new_tokens`"),
        ({"beam_size": 1}, "a line", "`max_new_tokens`"),
    ],
)
def test_a_search_that_exceeds_memory_is_rejected_before_the_first_step(options, unit, suggestion, monkeypatch):
    monkeypatch.setattr(room, "free_device_memory", lambda device: 1000)
    with pytest.raises(ResourceError) as caught:
        predict(asking(model_of(GROWING), source_tokens(3)), PredictionConfig(max_new_tokens=10, **options))
    message = str(caught.value)
    assert message.startswith(f"predict: {unit} of up to 10 tokens needs about ")
    assert message.endswith(f" kB, 1.0 kB are free; reduce {suggestion}")


def test_short_memory_reduces_the_batch(monkeypatch):
    sources = source_tokens(8)
    full = predict(asking(model_of(GROWING), sources), PredictionConfig(beam_size=3))
    longest_source = sorted(sources, key=len)[-1:]
    bytes_per_source = needed(GROWING, monkeypatch, longest_source, beam_size=3)
    sizes = []
    request = asking(model_of(GROWING), sources)

    def encode(rows):
        sizes.append(len(rows))
        return request.encode(rows)

    monkeypatch.setattr(room, "free_device_memory", lambda device: 4 * bytes_per_source + 1)
    again = predict(request._replace(encode=encode, device=torch.device(CPU)), PredictionConfig(beam_size=3))
    assert max(sizes) == 4
    assert [best[0].token_ids for best in again] == [best[0].token_ids for best in full]


@every_decoder
def test_estimated_state_size_equals_the_actual_size(name):
    """For any source: its own state, and what is added per target token."""
    model = model_of(name)
    for source in source_tokens(4):
        state = start = encoded(model, [source])
        before = sum(part.nbytes for part in tree_leaves(state))
        for read in range(1, 12):
            log_probs, state = model.step(torch.tensor([3]), state)
            assert (
                model.bytes_per_row(read, start) + before
                == sum(part.nbytes for part in tree_leaves(state)) + 2 * log_probs.nbytes
            )


def test_state_size_is_measured_per_row_for_any_source(monkeypatch):
    """A source may be audio frames: no dummy tokens are encoded."""
    model = model_of(GROWING)
    state = encoded(model, source_tokens(1))
    monkeypatch.setattr(model, "encode", None)
    assert room.estimate_bytes(model, room.Rows(1, 9, state)) > room.estimate_bytes(model, room.Rows(1, 8, state)) > 0


def test_ensemble_memory_is_the_sum_of_its_members_with_tokens_once():
    parts = [model_of(GROWING), model_of(STANDING)]
    ensemble = Ensemble(parts, LinearEnsemble([0.5, 0.5]))
    state = tuple(encoded(part, source_tokens(1)) for part in parts)
    assert ensemble.bytes_per_row(9, state) == sum(
        part.bytes_per_row(9, member_state) for part, member_state in zip(parts, state, strict=True)
    )
    apart = sum(
        room.estimate_bytes(part, room.Rows(3, 9, member_state)) for part, member_state in zip(parts, state, strict=True)
    )
    assert room.estimate_bytes(ensemble, room.Rows(3, 9, state)) == apart - room.COPIES * 3 * 8 * 9
