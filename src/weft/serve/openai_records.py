"""Outputs of runs in the shapes of OpenAI's API: choices, log-probabilities, chunks of streams, vectors and errors."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.serve.jobs import Chunk, Output, TokenRecord
from weft.serve.openai_schemas import (
    UNAVAILABLE,
    ChatCompletionRequest,
    CompletionRequest,
    EmbeddingRequest,
    OpenAIErrorReply,
)
from weft.serve.routes import Dialect, Failure

MAX_SKIPPED = 4  # characters of a text between two tokens, such as the space of a tokenizer that splits at spaces

# ---- errors

NAMES = {"max_new_tokens": "max_tokens", "num_samples": "n", "prompts": "prompt", "texts": "input", "key": "api_key"}
PARAMS = {
    *UNAVAILABLE,
    *(name for body in (CompletionRequest, ChatCompletionRequest, EmbeddingRequest) for name in body.model_fields),
}
TYPES: dict[int, tuple[str, str | None]] = {
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("invalid_request_error", "model_not_found"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    500: ("server_error", "internal_error"),
    503: ("server_error", "service_unavailable"),
}


def error_body(failure: Failure) -> dict[str, Any]:
    """An error; the names of options are those of OpenAI's API."""
    error, status = failure.error, error_status(failure)
    kind, code = TYPES.get(status, ("invalid_request_error", None))
    where = NAMES.get(error.where, error.where)
    message = ": ".join(filter(None, (where, "; ".join(filter(None, (error.problem, error.fix))))))
    return {"error": {"message": message, "type": kind, "param": where if where in PARAMS else None, "code": code}}


def error_status(failure: Failure) -> int:
    return 400 if failure.status == 422 else failure.status


DIALECT = Dialect("OpenAI", error_body, error_status, OpenAIErrorReply)


# ---- texts


def finish_reason(reason: str | None) -> str | None:
    return reason if reason in (None, "length") else "stop"


def offsets(tokens: Sequence[TokenRecord], text: str, start: int = 0) -> list[int]:
    """Where each token begins in a text whose first character has the number `start`. A token that is not in the text, such as
    EOS or a part of a character, begins where the one before it ends."""
    found, position = list[int](), 0
    for token in tokens:
        place = text.find(token.text, position, position + len(token.text) + MAX_SKIPPED) if token.text else -1
        found.append(start + (position if place < 0 else place))
        position = position if place < 0 else place + len(token.text)
    return found


def visible(tokens: Sequence[TokenRecord], text: str, reason: str | None) -> Sequence[TokenRecord]:
    """The tokens without those after the end of the text: EOS, and those of a stop string."""
    if finish_reason(reason) != "stop":
        return tokens
    starts = offsets(tokens, text)
    return [token for token, start in zip(tokens, starts, strict=True) if start < len(text)]


def completion_logprobs(tokens: Sequence[TokenRecord], text: str, *, has_top: bool, start: int = 0) -> dict[str, Any]:
    """Log-probabilities of a completion; `start` is the place of the text in the whole output."""
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.log_prob for token in tokens],
        "top_logprobs": [dict(token.top) for token in tokens] if has_top else None,
        "text_offset": offsets(tokens, text, start),
    }


def _bytes(text: str) -> list[int] | None:
    return None if "\\x" in text else list(text.encode())  # an escape is a part of a character


def chat_logprobs(tokens: Sequence[TokenRecord]) -> dict[str, Any]:
    """Log-probabilities of a message."""
    content = [
        {
            "token": token.text,
            "logprob": token.log_prob,
            "bytes": _bytes(token.text),
            "top_logprobs": [{"token": text, "logprob": value, "bytes": _bytes(text)} for text, value in token.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_choice(index: int, output: Output, body: CompletionRequest, prompt: str) -> dict[str, Any]:
    """A choice of a completion. `prompt` is the text of the prompt, if it is returned as well."""
    text, reason = (output.text, output.finish_reason) if body.max_tokens else ("", "length")
    logprobs = None
    if body.logprobs is not None:
        tokens = [*output.prompt_tokens, *(visible(output.tokens, text, reason) if body.max_tokens else [])]
        logprobs = completion_logprobs(tokens, prompt + text, has_top=body.logprobs > 0)
    return {"index": index, "text": prompt + text, "logprobs": logprobs, "finish_reason": finish_reason(reason)}


def chat_choice(index: int, output: Output, *, has_logprobs: bool) -> dict[str, Any]:
    """A choice of a chat completion."""
    tokens = visible(output.tokens, output.text, output.finish_reason)
    return {
        "index": index,
        "message": {"role": "assistant", "content": output.text, "refusal": None},
        "logprobs": chat_logprobs(tokens) if has_logprobs else None,
        "finish_reason": finish_reason(output.finish_reason),
    }


# ---- streams


class CompletionChunks:
    """Chunks of completions as choices. `prompts` are the texts that are returned before the outputs."""

    def __init__(self, body: CompletionRequest, prompts: Sequence[str]) -> None:
        self._body, self._prompts = body, prompts
        self._lengths: dict[tuple[int, int], int] = {}  # characters sent, by (prompt, sample)

    def choice(self, index: int, chunk: Chunk) -> dict[str, Any]:
        key = chunk.prompt, index
        start = self._lengths.get(key, -1)
        text = self._prompts[chunk.prompt] + chunk.text if start < 0 else chunk.text
        start = max(0, start) + len(text) - len(chunk.text)
        self._lengths[key] = start + len(chunk.text)
        logprobs = None
        if self._body.logprobs is not None:
            tokens = visible(chunk.tokens, chunk.text, chunk.finish_reason)
            logprobs = completion_logprobs(tokens, chunk.text, has_top=self._body.logprobs > 0, start=start)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason(chunk.finish_reason)}


class ChatChunks:
    """Chunks of responses as choices: the first one of each names the role."""

    def __init__(self, *, has_logprobs: bool) -> None:
        self._has_logprobs = has_logprobs
        self._started = set[int]()

    def choice(self, index: int, chunk: Chunk) -> dict[str, Any]:
        role = {} if index in self._started else {"role": "assistant"}
        self._started.add(index)
        tokens = visible(chunk.tokens, chunk.text, chunk.finish_reason)
        return {
            "index": index,
            "delta": {**role, "content": chunk.text},
            "logprobs": chat_logprobs(tokens) if self._has_logprobs else None,
            "finish_reason": finish_reason(chunk.finish_reason),
        }


# ---- vectors


def embedding(index: int, vector: Any, *, is_base64: bool) -> dict[str, Any]:
    values = np.asarray(vector, dtype="<f4")
    content = base64.b64encode(values.tobytes()).decode() if is_base64 else values.tolist()
    return {"object": "embedding", "index": index, "embedding": content}
