"""What a search needs is known before its first step."""

from __future__ import annotations

import pytest
import torch
from test_predict import CPU, asking, model_of, source_tokens

from weft.decode import predict as module
from weft.decode.predict import predict
from weft.decode.predict_options import PredictOptions
from weft.errors import ResourceError

GROWING, STANDING = "transformer", "luong"


def needed(name: str, monkeypatch, sources=None, **options: int) -> int:
    """The least free memory with which the first source is not refused, by halving."""
    low, high = 0, 1 << 40
    while high - low > 1:
        middle = (low + high) // 2
        monkeypatch.setattr(module, "free", lambda device, there=middle: there)
        try:
            module._fitting(asking(model_of(name), sources or source_tokens(1)), PredictOptions(**options), 0)
            high = middle
        except ResourceError:
            low = middle
    return high


@pytest.mark.parametrize("name", [GROWING, STANDING])
def test_memory_grows_with_the_beam(name, monkeypatch):
    assert needed(name, monkeypatch, beam=10) == pytest.approx(2 * needed(name, monkeypatch, beam=5), rel=0.01)


def test_only_a_state_that_grows_takes_more_for_more_tokens(monkeypatch):
    for name, factor in ((GROWING, 5), (STANDING, 1)):
        short, long = (needed(name, monkeypatch, length=length) for length in (100, 1000))
        assert long > factor * short
    # where it stands still, only the tokens themselves are added
    assert needed(STANDING, monkeypatch, length=1000) - needed(STANDING, monkeypatch, length=100) == 3 * 5 * 900 * 8


def test_what_does_not_fit_is_refused_before_the_first_step(monkeypatch):
    monkeypatch.setattr(module, "free", lambda device: 1000)
    with pytest.raises(ResourceError) as caught:
        predict(asking(model_of(GROWING), source_tokens(3)), PredictOptions(beam=4, length=10))
    said = str(caught.value)
    assert said.startswith("predict: 4 rows of up to 10 tokens need about ")
    assert said.endswith(" for their states and scores, but 1.0 kB are free; lower --beam, --samples or --length")


def test_fewer_are_searched_at_once_where_memory_is_short(monkeypatch):
    sources = source_tokens(8)
    whole = predict(asking(model_of(GROWING), sources), PredictOptions(beam=3))
    longest = sorted(sources, key=len)[-1:]
    one = needed(GROWING, monkeypatch, longest, beam=3)
    sizes = []
    request = asking(model_of(GROWING), sources)

    def encode(rows):
        sizes.append(len(rows))
        return request.encode(rows)

    monkeypatch.setattr(module, "free", lambda device: 4 * one + 1)
    again = predict(request._replace(encode=encode, device=torch.device(CPU)), PredictOptions(beam=3))
    assert max(sizes) == 4
    assert [best[0].tokens for best in again] == [best[0].tokens for best in whole]
