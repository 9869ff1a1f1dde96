"""OpenAI's API: models, completions, chat completions and embeddings, for clients that are written for it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.responses import Response

from weft.config import parse_config
from weft.decode.options import GenerationConfig, options_from
from weft.errors import UsageError, unknown_name
from weft.serve import openai_schemas as schemas
from weft.serve.call import Call, json_response
from weft.serve.errors import NotFound, TooLarge
from weft.serve.inputs import check_texts
from weft.serve.jobs import Chat, Chunk, Embed, Generate, Job, Output
from weft.serve.native import check_options
from weft.serve.openai_records import (
    DIALECT,
    ChatChunks,
    CompletionChunks,
    chat_choice,
    completion_choice,
    embedding,
)
from weft.serve.openai_schemas import ChatCompletionRequest, ChatMessage, CompletionRequest, EmbeddingRequest, SamplingRequest
from weft.serve.prompt_tokens import check_token_ids
from weft.serve.routes import Route
from weft.serve.served_run import ServedRun

OPERATIONS = ("generate", "chat", "embed")
MAX_SEED = 1 << 63  # seeds of any sign, as in OpenAI's API
R = TypeVar("R", CompletionRequest, ChatCompletionRequest, EmbeddingRequest)

# ---- requests


async def read_body(call: Call, body_class: type[R]) -> R:
    """The body of a request. A null asks for nothing; what weft does not have is refused by its name."""
    values = {name: value for name, value in (await call.json_values()).items() if value is not None}
    for name, neutral in schemas.UNAVAILABLE.items():
        if name in values and values.pop(name) not in neutral:
            raise UsageError(name, "is not available", "leave it out")
    known = {name: value for name, value in values.items() if name not in schemas.IGNORED}
    return parse_config(body_class, known, prefix="")


def served_model(call: Call, name: str, operation: str) -> ServedRun:
    """The run with this name; it must have the operation."""
    runs = call.engine.runs
    if name not in runs:
        raise NotFound("model", *unknown_name("model", name, runs))
    served = runs[name]
    if operation not in served.operations:
        fitting = [other for other, each in runs.items() if operation in each.operations]
        problem = f"{operation} is not available for {name!r}, a {served.run.spec.model_noun}"
        raise NotFound("model", problem, f"choose from {', '.join(fitting)}" if fitting else "")
    return served


@dataclass(frozen=True)
class Sampling:
    """The options of a request. A greedy request has one output, which is copied."""

    options: GenerationConfig
    num_copies: int

    def indices(self, chunk: Chunk) -> range:
        """The numbers of the choices that a chunk belongs to."""
        first = chunk.prompt * self.num_copies * self.options.num_samples + chunk.sample
        return range(first, first + self.num_copies)


def read_sampling(call: Call, body: SamplingRequest, *, max_new_tokens: int | None, num_samples: int, num_top: int) -> Sampling:
    """The options of a request that samples."""
    if body.n > call.limits.max_outputs:
        raise UsageError("n", f"{body.n:,} is more than the limit of {call.limits.max_outputs:,}")
    if num_top > call.limits.max_top_logprobs:
        raise UsageError("top_logprobs", f"{num_top:,} is more than the limit of {call.limits.max_top_logprobs:,}")
    is_greedy = 0 in (body.temperature, body.top_p)
    values = {
        "temperature": 0.0 if is_greedy else body.temperature,
        "top_p": None if is_greedy or body.top_p == 1 else body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
        "no_repeat_ngram_size": body.no_repeat_ngram_size,
        "seed": secrets.randbits(48) if body.seed is None else body.seed % MAX_SEED,
        "stop": [body.stop] if isinstance(body.stop, str) else body.stop,
        "num_samples": 1 if is_greedy else num_samples,
    }
    if max_new_tokens is not None:
        values["max_new_tokens"] = max(1, max_new_tokens)
    options = options_from(GenerationConfig, None, values)
    check_options(options, call.limits)
    return Sampling(options, body.n if is_greedy else 1)


def read_prompts(call: Call, prompt: str | list[str] | list[int] | list[list[int]]) -> list[str] | list[list[int]]:
    """The prompts of a request: texts or token IDs."""
    prompts: Any = [prompt] if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)) else prompt
    if not prompts:
        raise UsageError("prompt", "must not be empty")
    check_texts(prompts, "prompt", call.limits)
    longest = max((len(each) for each in prompts if isinstance(each, list)), default=0)
    if longest > call.limits.max_text_chars:
        raise TooLarge("prompt", f"{longest:,} token IDs are more than {call.limits.max_text_chars:,}", "split the text")
    return prompts  # type: ignore[no-any-return]


def echoed(served: ServedRun, prompts: Sequence[str | Sequence[int]]) -> list[str]:
    """The prompts as texts."""
    check_token_ids(served.run, [prompt for prompt in prompts if not isinstance(prompt, str)])
    return [prompt if isinstance(prompt, str) else served.run.vocabulary.decode(prompt) for prompt in prompts]


# ---- answers


class Answer:
    """What the chunks of an answer, or the whole of it, have in common."""

    def __init__(self, call: Call, model: str, kind: str) -> None:
        self._call = call
        prefix = "chatcmpl" if kind.startswith("chat") else "cmpl"
        self._head = {"id": f"{prefix}-{secrets.token_hex(12)}", "object": kind, "created": int(time.time()), "model": model}

    def usage(self, *, has_output: bool = True) -> dict[str, int]:
        """Numbers of tokens, when the job has ended."""
        fields = self._call.fields
        prompt, output = fields.get("prompt_tokens", 0), fields.get("output_tokens", 0) if has_output else 0
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}

    def whole(self, choices: Sequence[Any], *, has_output: bool = True) -> Response:
        return json_response({**self._head, "choices": choices, "usage": self.usage(has_output=has_output)})

    async def stream(
        self, job: Job, sampling: Sampling, body: SamplingRequest, choice: Callable[[int, Chunk], dict[str, Any]]
    ) -> Response:
        """Chunks; the last one has the numbers of tokens, if they are requested."""
        has_usage = body.stream_options.include_usage
        extra: dict[str, Any] = {"usage": None} if has_usage else {}

        def write(chunk: Chunk) -> list[Any]:
            return [{**self._head, "choices": [choice(index, chunk)], **extra} for index in sampling.indices(chunk)]

        def last() -> list[Any]:
            return [{**self._head, "choices": [], "usage": self.usage()}] if has_usage else []

        return await self._call.event_stream(body.model, job, write, last)


def best(outputs: Sequence[Output], count: int) -> list[Output]:
    """The outputs with the highest log-probability per token, in this order."""
    return sorted(outputs, key=lambda output: -output.log_prob / max(1, len(output.tokens)))[:count]


# ---- handlers


def _created(served: ServedRun) -> int:
    return max((nanoseconds for _, _, _, nanoseconds in served.files), default=0) // 10**9


def _model(served: ServedRun) -> dict[str, Any]:
    return {"id": served.name, "object": "model", "created": _created(served), "owned_by": "weft"}


async def models(call: Call) -> Response:
    runs = [served for served in call.engine.runs.values() if set(OPERATIONS) & set(served.operations)]
    return json_response({"object": "list", "data": [_model(served) for served in runs]})


async def model(call: Call) -> Response:
    name = call.request.path_params["model"]
    if name not in call.engine.runs:
        raise NotFound("model", *unknown_name("model", name, call.engine.runs))
    return json_response(_model(call.engine.runs[name]))


def _check_combinations(body: CompletionRequest) -> None:
    if body.best_of is not None and body.best_of < body.n:
        raise UsageError("best_of", f"must be at least `n` ({body.n}), got {body.best_of}")
    if body.stream and body.best_of is not None and body.best_of > body.n:
        raise UsageError("best_of", "cannot be combined with `stream`")
    if body.stream and not body.max_tokens:
        raise UsageError("max_tokens", "0 cannot be combined with `stream`")
    if body.stream and body.echo and body.logprobs is not None:
        raise UsageError("logprobs", "cannot be combined with `echo` and `stream`")


async def completions(call: Call) -> Response:
    body = await read_body(call, CompletionRequest)
    served = served_model(call, body.model, "generate")
    _check_combinations(body)
    prompts, num_top = read_prompts(call, body.prompt), body.logprobs or 0
    sampling = read_sampling(call, body, max_new_tokens=body.max_tokens, num_samples=body.best_of or body.n, num_top=num_top)
    call.fields["inputs"] = len(prompts)
    job = Generate(prompts, sampling.options, num_top, scores_prompts=body.echo and body.logprobs is not None)
    answer = Answer(call, body.model, "text_completion")
    texts = echoed(served, prompts) if body.echo else [""] * len(prompts)
    if body.stream:
        return await answer.stream(job, sampling, body, CompletionChunks(body, texts).choice)
    outputs: list[list[Output]] = await call.result(body.model, job)
    ranked = [best(each, body.n) if len(each) > body.n else each * sampling.num_copies for each in outputs]
    pairs = [(text, output) for text, each in zip(texts, ranked, strict=True) for output in each]
    choices = [completion_choice(index, output, body, text) for index, (text, output) in enumerate(pairs)]
    return answer.whole(choices, has_output=body.max_tokens > 0)


def conversation(messages: Sequence[ChatMessage]) -> list[tuple[str, str]]:
    """The messages as turns: the system messages as one, and then the user and the assistant by turns."""
    turns, system = list[tuple[str, str]](), list[str]()
    for message in messages:
        parts = message.content
        text = parts if isinstance(parts, str) else "\n".join(part.text for part in parts)
        if message.role in ("system", "developer"):
            system.append(text)
        elif turns and turns[-1][0] == message.role:
            turns[-1] = (message.role, f"{turns[-1][1]}\n{text}")
        else:
            turns.append((message.role, text))
    if not turns or turns[0][0] != "user" or turns[-1][0] != "user":
        raise UsageError("messages", "the first and the last message must be of the user")
    return [*([("system", "\n".join(system))] if system else []), *turns]


async def chat_completions(call: Call) -> Response:
    body = await read_body(call, ChatCompletionRequest)
    served_model(call, body.model, "chat")
    if body.top_logprobs and not body.logprobs:
        raise UsageError("top_logprobs", "requires `logprobs`")
    turns = conversation(body.messages)
    check_texts([text for _, text in turns], "messages", call.limits)
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    sampling = read_sampling(call, body, max_new_tokens=max_tokens, num_samples=body.n, num_top=body.top_logprobs)
    job = Chat(turns, sampling.options, body.top_logprobs)
    if body.stream:
        answer = Answer(call, body.model, "chat.completion.chunk")
        return await answer.stream(job, sampling, body, ChatChunks(has_logprobs=body.logprobs).choice)
    outputs: list[list[Output]] = await call.result(body.model, job)
    ranked = outputs[0] * sampling.num_copies
    choices = [chat_choice(index, output, has_logprobs=body.logprobs) for index, output in enumerate(ranked)]
    return Answer(call, body.model, "chat.completion").whole(choices)


async def embeddings(call: Call) -> Response:
    body = await read_body(call, EmbeddingRequest)
    served = served_model(call, body.model, "embed")
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not texts:
        raise UsageError("input", "must not be empty")
    check_texts(texts, "input", call.limits)
    call.fields["inputs"] = len(texts)
    vectors: Sequence[Any] = await call.result(served.name, Embed(texts))
    num_tokens = await asyncio.to_thread(_count_tokens, served, texts)
    is_base64 = body.encoding_format == "base64"
    data = [embedding(index, vector, is_base64=is_base64) for index, vector in enumerate(vectors)]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return json_response({"object": "list", "data": data, "model": body.model, "usage": usage})


def _count_tokens(served: ServedRun, texts: Sequence[str]) -> int:
    tokenizer = next(iter(served.run.vocabulary.by_name().values()))
    return len(tokenizer.encode_concatenated(texts)[0])


ROUTES = [
    Route("GET", "/v1/models", models, "Runs as models", DIALECT, reply=schemas.ModelsReply),
    Route("GET", "/v1/models/{model}", model, "A run as a model", DIALECT, reply=schemas.ModelReply),
    Route(
        "POST",
        "/v1/completions",
        completions,
        "Continue prompts",
        DIALECT,
        body=CompletionRequest,
        reply=schemas.CompletionReply,
        streams=True,
    ),
    Route(
        "POST",
        "/v1/chat/completions",
        chat_completions,
        "Respond",
        DIALECT,
        body=ChatCompletionRequest,
        reply=schemas.ChatCompletionReply,
        streams=True,
    ),
    Route("POST", "/v1/embeddings", embeddings, "Embed texts", DIALECT, body=EmbeddingRequest, reply=schemas.EmbeddingReply),
]
