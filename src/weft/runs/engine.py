"""Decoding engines for runs that generate tokens, and the requests that such an engine takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from weft.decode.engine import Engine, Request
from weft.decode.logits_processors import ban_tokens

if TYPE_CHECKING:
    from weft.runs.run import Run
    from weft.tasks.spec import Decode


def engine_of(decode: Decode[Any], run: Run[Any, Any]) -> Engine[Any]:
    """A new engine without rows."""
    return Engine(decode.incremental_model(run), run.device)


def request_of(decode: Decode[Any], run: Run[Any, Any], text: Any, max_new_tokens: int | None) -> Request:
    """A greedy request for a prompt or a source; None: as many tokens as `generate` and `predict` allow by default."""
    with torch.inference_mode():
        state = None if decode.encode_source is None else decode.encode_source(run, text)
    limit = decode.max_new_tokens(run, text) if max_new_tokens is None else max_new_tokens
    return Request(
        decode.prompt_ids(run, text),
        limit,
        decode.eos_id(run),
        logits_processor=ban_tokens(decode.suppressed_tokens(run)),
        state=state,
    )
