"""The limits of a server: one table, which `/info` shows, and which options and a file set."""

from __future__ import annotations

from pydantic import Field

from weft.config import Config


class Limits(Config):
    """Limits of a server. A request beyond one of them is refused; a time that is over ends it."""

    max_body_bytes: int = Field(default=4 << 20, ge=1)
    """Bytes of the body of a request."""
    max_text_chars: int = Field(default=100_000, ge=1)
    """Characters of one text."""
    max_texts: int = Field(default=256, ge=1)
    """Texts, prompts, inputs or messages of a request."""
    max_new_tokens: int = Field(default=2048, ge=1)
    """Tokens of one output, if a request asks for a number."""
    max_outputs: int = Field(default=16, ge=1)
    """Samples, or outputs of a beam search, for one prompt."""
    max_beam_size: int = Field(default=16, ge=1)
    """Beam size."""
    max_stops: int = Field(default=8, ge=0)
    """Stop strings of a request, each of at most 200 characters."""
    max_top_logprobs: int = Field(default=20, ge=0, le=100)
    """Most probable tokens that are returned with each token."""
    max_queue: int = Field(default=64, ge=1)
    """Requests that wait. One more gets status 429."""
    max_rows: int = Field(default=192, ge=1)
    """Rows of a run that are decoded together: one per sample, or one per beam."""
    max_batch: int = Field(default=64, ge=1)
    """Inputs of other operations that are computed in one call."""
    gather_seconds: float = Field(default=0.003, ge=0.0, le=1.0)
    """Seconds that an input waits for others, if requests arrive at the same time."""
    request_seconds: float = Field(default=60.0, gt=0.0)
    """Seconds until a request ends with status 503."""
    explain_seconds: float = Field(default=10.0, gt=0.0)
    """Seconds that an explanation may take, because all others wait for it. Status 503 otherwise."""
    head_seconds: float = Field(default=10.0, gt=0.0)
    """Seconds until the head of a request must be there. The connection is closed otherwise."""
    body_seconds: float = Field(default=20.0, gt=0.0)
    """Seconds until the body of a request must be there. Status 408 otherwise."""
    idle_seconds: float = Field(default=30.0, gt=0.0)
    """Seconds that a connection may be idle between requests, or not read its answer."""
    drain_seconds: float = Field(default=30.0, ge=0.0)
    """Seconds that running requests have after SIGTERM or Ctrl-C."""
    max_connections: int = Field(default=512, ge=1)
    """Open connections. One more gets status 503."""
    reload_seconds: float = Field(default=5.0, ge=0.0)
    """Seconds between checks for new weights. 0: they are never loaded."""


MAX_STOP_CHARS = 200
