"""What can be asked of a run, and the results that are not of weft itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from weft.config import Config
from weft.decode.options import GenerationConfig


class TokenRecord(NamedTuple):
    """A generated token as text, with its log-probability and the most probable ones, if requested. A beam search returns no
    log-probabilities of single tokens."""

    text: str
    log_prob: float | None
    top: Sequence[tuple[str, float]] = ()


class Output(NamedTuple):
    """One continuation of a prompt."""

    text: str
    finish_reason: str  # eos, stop, length or stuck
    score: float
    log_prob: float
    tokens: Sequence[TokenRecord]
    prompt_tokens: Sequence[TokenRecord] = ()  # of the prompt, if its log-probabilities are requested


class Chunk(NamedTuple):
    """New text of a continuation, for a stream."""

    prompt: int
    sample: int
    text: str
    tokens: Sequence[TokenRecord]
    finish_reason: str | None = None  # None: it continues


class Media(NamedTuple):
    """The content of a file of sound, images or video; `name` is for messages, and its suffix names the format."""

    name: str
    content: bytes


@dataclass(frozen=True)
class Generate:
    """Continue prompts: a list of outputs for each."""

    operation: ClassVar[str] = "generate"
    prompts: Sequence[str | Sequence[int]]  # texts, or token IDs
    options: GenerationConfig
    num_top: int = 0  # most probable tokens with each token
    scores_prompts: bool = False  # whether tokens of prompts have log-probabilities as well


@dataclass(frozen=True)
class Chat:
    """Respond to a conversation of (role, text) messages: outputs, as of one prompt."""

    operation: ClassVar[str] = "chat"
    messages: Sequence[tuple[str, str]]
    options: GenerationConfig
    num_top: int = 0
    scores_prompts: ClassVar[bool] = False


@dataclass(frozen=True)
class Predict:
    """One result per input, as of `Run.try_predict`. An `InvalidInput` is its own result, and so is None, an empty input."""

    operation: ClassVar[str] = "predict"
    inputs: Sequence[Any]
    options: Config


@dataclass(frozen=True)
class Score:
    """One result per text or pair, as of `Run.try_score`."""

    operation: ClassVar[str] = "score"
    inputs: Sequence[Any]
    truncate: bool = False


@dataclass(frozen=True)
class Embed:
    """One vector per text, as of `Run.embed`."""

    operation: ClassVar[str] = "embed"
    inputs: Sequence[Any]
    pooling: str = "mean"


@dataclass(frozen=True)
class Explain:
    """An explanation of one input, as of `Run.explain`."""

    operation: ClassVar[str] = "explain"
    input: Any
    view: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


Job = Generate | Chat | Predict | Score | Embed | Explain
