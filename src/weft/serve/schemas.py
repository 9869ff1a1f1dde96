"""The bodies of requests and answers of the native API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_core import CoreSchema

from weft.config import Config


class _StopAtFirst:
    """Describes only the first wrong value of a list. (pydantic's `FailFast` cannot be a part of a union.)"""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        schema: CoreSchema = {**handler(source), "fail_fast": True}
        return schema


STOP_AT_FIRST = _StopAtFirst()


class PredictRequest(Config):
    """Inputs for a model, as `weft predict` reads them."""

    inputs: list[Any]
    """Texts; lists of texts for models that read several; {"base64": ..., "name": ...} for sounds, images and video."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of prediction, such as beam_size."""


class GenerateRequest(Config):
    """Prompts to continue."""

    prompts: Annotated[list[str], STOP_AT_FIRST]
    """Texts to continue; an empty one is the beginning of a text."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of `weft generate`, such as max_new_tokens, temperature, top_p, seed and stop."""
    top_logprobs: int = Field(0, ge=0)
    """Number of most probable tokens to return with each token."""
    stream: bool = False
    """Send the text as server-sent events while it grows."""


class Message(Config):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant"]
    """Who wrote it."""
    content: str
    """Its text."""


class ChatRequest(Config):
    """A conversation to continue."""

    messages: Annotated[list[Message], STOP_AT_FIRST]
    """The messages so far; the last one is of the user."""
    options: dict[str, Any] = Field(default_factory=dict)
    """As of generate."""
    top_logprobs: int = Field(0, ge=0)
    """As of generate."""
    stream: bool = False
    """As of generate."""


class ScoreRequest(Config):
    """Texts whose probability is computed."""

    inputs: list[Any]
    """Texts; [source, target] for models that predict targets, [prompt, response] for models that respond."""
    truncate: bool = False
    """Truncate sources that are too long."""
    per_token: bool = False
    """Return each token with its surprisal."""


class EmbedRequest(Config):
    """Texts whose vectors are computed."""

    texts: Annotated[list[str], STOP_AT_FIRST]
    """The texts."""
    pooling: str = "mean"
    """mean or first."""


class ExplainRequest(Config):
    """An input to explain."""

    input: Any
    """As one of the inputs of predict."""
    view: str | None = None
    """The name of the view; default: the first that the run has."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of `weft explain`."""


class Problem(Config):
    """What is wrong."""

    where: str
    problem: str
    fix: str
    message: str
    """where: problem; fix"""
    request_id: str


class ErrorReply(Config):
    error: Problem


class PredictReply(Config):
    predictions: list[dict[str, Any]]
    """A record for each input, as `weft predict --json` prints it; {"error": ...} for an input that cannot be used."""


class TopToken(Config):
    text: str
    log_prob: float


class Token(Config):
    text: str
    log_prob: float | None
    """null for beam search."""
    top: list[TopToken]


class ContinuationReply(Config):
    text: str
    finish_reason: Literal["eos", "stop", "length", "stuck"]
    score: float | None
    log_prob: float | None
    tokens: list[Token]


class GenerateReply(Config):
    continuations: list[list[ContinuationReply]]
    """For each prompt, its samples or the best outputs."""


class ChatReply(Config):
    message: Message
    finish_reason: str
    log_prob: float | None
    tokens: list[Token]


class ScoreReply(Config):
    scores: list[dict[str, Any]]
    """A record for each input, as `weft score --json` prints it."""


class EmbedReply(Config):
    vectors: list[list[float]]


class ExplanationReply(Config):
    view: str
    title: str
    data: dict[str, Any]
    pictures: list[str]
    """SVG."""


class ExplainReply(Config):
    explanations: list[ExplanationReply]


class RunInfo(Config):
    name: str
    task: str
    arch: str
    noun: str
    operations: list[str]
    labels: list[str]
    views: list[str]
    input: str
    inputs: list[str]
    parameters: int


class InfoReply(Config):
    version: str
    runs: list[RunInfo]
    limits: dict[str, float]
