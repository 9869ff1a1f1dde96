"""The native API: predictions, texts, scores, vectors and explanations as the commands of weft print them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from weft import __version__
from weft.decode.options import GenerationConfig, options_from
from weft.decode.score_record import score_record
from weft.errors import UsageError, WeftError
from weft.explain.options import ExplainConfig
from weft.serve import schemas
from weft.serve.call import Call, json_response
from weft.serve.errors import NotFound
from weft.serve.inputs import check_texts, prediction_records, read_inputs, read_media, reads_files
from weft.serve.jobs import Chat, Chunk, Embed, Explain, Generate, Media, Output, Predict, Score, TokenRecord
from weft.serve.limits import MAX_STOP_CHARS, Limits
from weft.serve.routes import Route
from weft.serve.served_run import ServedRun
from weft.tasks.spec import InvalidInput

# options of requests, and the limits of their values
LIMITED = {
    "max_new_tokens": "max_new_tokens",
    "min_new_tokens": "max_new_tokens",
    "num_samples": "max_outputs",
    "n_best": "max_outputs",
    "beam_size": "max_beam_size",
}


def check_options(options: Any, limits: Limits) -> None:
    """Refuse options of prediction or generation beyond the limits."""
    values = dict(options)
    for name, limit in LIMITED.items():
        if (values.get(name) or 0) > (maximum := getattr(limits, limit)):
            raise UsageError(name, f"{values[name]:,} is more than the limit of {maximum:,}")
    stops = values.get("stop") or []
    if len(stops) > limits.max_stops:
        raise UsageError("stop", f"{len(stops)} are more than the limit of {limits.max_stops}")
    if any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise UsageError("stop", f"longer than {MAX_STOP_CHARS} characters")


def served_run(call: Call, operation: str) -> ServedRun:
    """The run that the path names; it must have the operation."""
    served = call.engine.served(call.request.path_params["name"])
    if operation not in served.operations:
        problem = f"{operation} is not available for a {served.run.spec.model_noun}"
        raise NotFound(f"run {served.name}", problem, f"choose from {', '.join(served.operations)}")
    return served


def generation_options(call: Call, values: dict[str, Any], num_top: int) -> GenerationConfig:
    """The options of a request that generates."""
    options = options_from(GenerationConfig, None, values)
    check_options(options, call.limits)
    if num_top > call.limits.max_top_logprobs:
        raise UsageError("top_logprobs", f"{num_top} is more than the limit of {call.limits.max_top_logprobs}")
    if num_top and options.beam_size is not None:
        raise UsageError("top_logprobs", "cannot be combined with `beam_size`")
    return options


# ---- records


def token_object(token: TokenRecord) -> dict[str, Any]:
    top = [{"text": text, "log_prob": log_prob} for text, log_prob in token.top]
    return {"text": token.text, "log_prob": token.log_prob, "top": top}


def output_object(output: Output) -> dict[str, Any]:
    fields = {name: value for name, value in output._asdict().items() if name != "prompt_tokens"}
    return {**fields, "tokens": [token_object(token) for token in output.tokens]}


def chunk_object(chunk: Chunk) -> dict[str, Any]:
    return {**chunk._asdict(), "tokens": [token_object(token) for token in chunk.tokens]}


def _input_error(call: Call, error: WeftError) -> dict[str, Any]:
    return call.route.dialect.error_body(call.failure(error))


# ---- handlers


async def info(call: Call) -> Response:
    runs = [served.info for served in call.engine.runs.values()]
    return json_response({"version": __version__, "runs": runs, "limits": call.limits.model_dump()})


async def predict(call: Call) -> Response:
    served, body = served_run(call, "predict"), await call.json(schemas.PredictRequest)
    check_texts(body.inputs, "inputs", call.limits)
    options = options_from(served.run.spec.predict_options, None, body.options)
    check_options(options, call.limits)
    call.fields["inputs"] = len(body.inputs)
    inputs = read_inputs(served.run, body.inputs, options)
    results = await call.result(served.name, Predict(inputs.values, options))
    records = prediction_records(served.run, inputs, results, options, lambda error: _input_error(call, error))
    return json_response({"predictions": records})


async def generate(call: Call) -> Response:
    served, body = served_run(call, "generate"), await call.json(schemas.GenerateRequest)
    check_texts(body.prompts, "prompts", call.limits)
    options = generation_options(call, body.options, body.top_logprobs)
    call.fields["inputs"] = len(body.prompts)
    job = Generate(body.prompts, options, body.top_logprobs)
    if body.stream:
        return await call.event_stream(served.name, job, lambda chunk: [chunk_object(chunk)])
    outputs: list[list[Output]] = await call.result(served.name, job)
    return json_response({"continuations": [[output_object(output) for output in ranked] for ranked in outputs]})


async def chat(call: Call) -> Response:
    served, body = served_run(call, "chat"), await call.json(schemas.ChatRequest)
    check_texts([message.content for message in body.messages], "messages", call.limits)
    options = generation_options(call, body.options, body.top_logprobs)
    job = Chat([(message.role, message.content) for message in body.messages], options, body.top_logprobs)
    if body.stream:
        return await call.event_stream(served.name, job, lambda chunk: [chunk_object(chunk)])
    outputs: list[list[Output]] = await call.result(served.name, job)
    best = output_object(outputs[0][0])
    message = {"role": "assistant", "content": best["text"]}
    reply = {name: best[name] for name in ("finish_reason", "log_prob", "tokens")}
    return json_response({"message": message, **reply})


def _score_input(value: Any, *, is_pair: bool, is_media: bool) -> Any:
    """A text, or a pair of a source and a target."""
    if not is_pair:
        return value if isinstance(value, str) else InvalidInput("expected a text")
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], str):
        return InvalidInput("expected a list of two texts")
    if is_media:
        media = read_media(value[0])
        return (media, value[1]) if isinstance(media, Media) else media
    return (value[0], value[1]) if isinstance(value[0], str) else InvalidInput("expected a list of two texts")


async def score(call: Call) -> Response:
    served, body = served_run(call, "score"), await call.json(schemas.ScoreRequest)
    check_texts(body.inputs, "inputs", call.limits)
    decode = served.run.spec.decode
    is_pair, is_media = decode is not None and decode.scores_pairs, reads_files(served.run)
    call.fields["inputs"] = len(body.inputs)
    inputs = [_score_input(value, is_pair=is_pair, is_media=is_media) for value in body.inputs]
    valid = [value for value in inputs if not isinstance(value, InvalidInput)]
    results = iter(await call.result(served.name, Score(valid, body.truncate)))
    merged = [value if isinstance(value, InvalidInput) else next(results) for value in inputs]
    records = [
        _input_error(call, UsageError(f"input {number}", each.reason))
        if isinstance(each, InvalidInput)
        else score_record(each, per_token=body.per_token)
        for number, each in enumerate(merged, 1)
    ]
    return json_response({"scores": records})


async def embed(call: Call) -> Response:
    served, body = served_run(call, "embed"), await call.json(schemas.EmbedRequest)
    check_texts(body.texts, "texts", call.limits)
    call.fields["inputs"] = len(body.texts)
    vectors: Sequence[Any] = await call.result(served.name, Embed(body.texts, body.pooling))
    return json_response({"vectors": [vector.tolist() for vector in vectors]})


async def explain(call: Call) -> Response:
    served, body = served_run(call, "explain"), await call.json(schemas.ExplainRequest)
    check_texts([body.input], "input", call.limits)
    check_options(options_from(ExplainConfig, None, body.options), call.limits)
    value: Any = body.input
    if reads_files(served.run):
        media = read_media(value)
        if isinstance(media, InvalidInput):
            raise UsageError("input", media.reason)
        value = media
    elif isinstance(value, list) and all(isinstance(text, str) for text in value):
        value = "\t".join(value)
    elif not isinstance(value, str):
        raise UsageError("input", "expected a text or a list of texts")
    explanation = await call.result(served.name, Explain(value, body.view, body.options))
    record = {"view": explanation.view, "title": explanation.title, "data": explanation.data}
    return json_response({"explanations": [{**record, "pictures": [figure.svg for figure in explanation.figures]}]})


_RUN = "/v1/runs/{name}"
ROUTES = [
    Route("GET", "/info", info, "Runs, what can be asked of them, and limits", reply=schemas.InfoReply),
    Route("POST", f"{_RUN}/predict", predict, "Predict", body=schemas.PredictRequest, reply=schemas.PredictReply),
    Route(
        "POST",
        f"{_RUN}/generate",
        generate,
        "Continue prompts",
        body=schemas.GenerateRequest,
        reply=schemas.GenerateReply,
        streams=True,
    ),
    Route("POST", f"{_RUN}/chat", chat, "Respond", body=schemas.ChatRequest, reply=schemas.ChatReply, streams=True),
    Route("POST", f"{_RUN}/score", score, "Score texts", body=schemas.ScoreRequest, reply=schemas.ScoreReply),
    Route("POST", f"{_RUN}/embed", embed, "Embed texts", body=schemas.EmbedRequest, reply=schemas.EmbedReply),
    Route("POST", f"{_RUN}/explain", explain, "Explain an input", body=schemas.ExplainRequest, reply=schemas.ExplainReply),
]
