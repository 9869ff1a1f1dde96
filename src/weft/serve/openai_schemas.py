"""The bodies of requests and answers of OpenAI's API, as far as the runs of weft have them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from weft.config import Config
from weft.serve.schemas import STOP_AT_FIRST

MAX_LOGPROBS = 5
Texts = Annotated[list[str], STOP_AT_FIRST]
TokenIds = Annotated[list[int], STOP_AT_FIRST]


class StreamOptions(Config):
    include_usage: bool = False
    """Send the numbers of tokens in a last chunk."""
    include_obfuscation: bool = False
    """Without effect."""


class SamplingRequest(Config):
    """What completions and chat have in common."""

    model: str
    """The name of a run."""
    temperature: float = Field(1.0, ge=0.0)
    """Sampling temperature; 0 is greedy."""
    top_p: float = Field(1.0, ge=0.0, le=1.0)
    """Sample from the smallest set of tokens with this total probability."""
    n: int = Field(1, ge=1)
    """Number of outputs per prompt."""
    seed: int | None = None
    """Sampling seed; outputs of the same seed are equal. Default: a random one."""
    stop: str | Texts = Field(default_factory=list)
    """Stop before the first of these strings."""
    stream: bool = False
    """Send the text as server-sent events while it grows."""
    stream_options: StreamOptions = Field(default_factory=StreamOptions)
    """Options of the stream."""
    top_k: int | None = None
    """Sample from this many of the most probable tokens. Not in OpenAI's API."""
    min_p: float | None = None
    """Sample from tokens with at least this fraction of the probability of the best. Not in OpenAI's API."""
    repetition_penalty: float = 1.0
    """As `weft generate`. Not in OpenAI's API."""
    no_repeat_ngram_size: int | None = None
    """As `weft generate`. Not in OpenAI's API."""


class CompletionRequest(SamplingRequest):
    """A prompt to continue, or several."""

    prompt: str | Texts | TokenIds | Annotated[list[TokenIds], STOP_AT_FIRST] = ""
    """Texts or token IDs."""
    max_tokens: int = Field(16, ge=0)
    """Maximum number of tokens to generate."""
    best_of: int | None = Field(None, ge=1)
    """Sample this many outputs per prompt, and return the `n` with the highest log-probability per token."""
    echo: bool = False
    """Return the prompt before the text; with `logprobs`, its tokens as well."""
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    """Return log-probabilities, with this many of the most probable tokens."""


class TextPart(Config):
    type: Literal["text"]
    text: str


class ChatMessage(Config):
    role: Literal["system", "developer", "user", "assistant"]
    """Who wrote it; a developer writes system messages."""
    content: str | Annotated[list[TextPart], STOP_AT_FIRST]
    """Its text."""
    name: str | None = None
    """Without effect."""
    refusal: None = None
    """Without effect."""


class ChatCompletionRequest(SamplingRequest):
    """A conversation to continue."""

    messages: Annotated[list[ChatMessage], STOP_AT_FIRST]
    """The messages so far; the last one is of the user."""
    max_tokens: int | None = Field(None, ge=1)
    """Maximum number of tokens to generate. Default: 100."""
    max_completion_tokens: int | None = Field(None, ge=1)
    """The newer name of `max_tokens`."""
    logprobs: bool = False
    """Return log-probabilities."""
    top_logprobs: int = Field(0, ge=0)
    """Number of most probable tokens with each token."""


class EmbeddingRequest(Config):
    """Texts whose vectors are computed."""

    model: str
    """The name of a run."""
    input: str | Texts
    """Texts."""
    encoding_format: Literal["float", "base64"] = "float"
    """base64: little-endian float32."""


# ---- answers


class ModelReply(Config):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsReply(Config):
    object: Literal["list"]
    data: list[ModelReply]


class Usage(Config):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionLogprobs(Config):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class CompletionChoice(Config):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class CompletionReply(Config):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class TopLogprob(Config):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Config):
    content: list[TokenLogprob]
    refusal: None


class ReplyMessage(Config):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(Config):
    index: int
    message: ReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]


class ChatCompletionReply(Config):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class EmbeddingItem(Config):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Config):
    prompt_tokens: int
    total_tokens: int


class EmbeddingReply(Config):
    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage


class OpenAIProblem(Config):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorReply(Config):
    error: OpenAIProblem


# ---- fields of requests that are not in the classes above

# without effect on the output
IGNORED = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "parallel_tool_calls",
}
# not available, and the values that ask for nothing
UNAVAILABLE: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "verbosity": (),
    "dimensions": (),
}
