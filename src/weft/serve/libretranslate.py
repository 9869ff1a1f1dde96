"""LibreTranslate's API: translate texts and detect languages, for clients that are written for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import parse_qsl

from pydantic import Field
from starlette.responses import Response

from weft.config import Config, parse_config
from weft.decode.options import options_from
from weft.errors import UsageError
from weft.serve.call import Call, json_response
from weft.serve.errors import BadRequest, WrongType
from weft.serve.inputs import check_texts
from weft.serve.jobs import Predict
from weft.serve.languages import Detection, Detector, Languages, language_name
from weft.serve.native import check_options
from weft.serve.routes import Dialect, Failure, Route
from weft.serve.schemas import STOP_AT_FIRST
from weft.tasks.spec import InvalidInput

FORM = "application/x-www-form-urlencoded"
MAX_FIELDS = 1000  # of a form


# ---- bodies and answers


class TranslateRequest(Config):
    """Texts to translate."""

    q: str | Annotated[list[str], STOP_AT_FIRST]
    """A text, or a list of texts. Each line of a text is translated by itself."""
    source: str
    """The code of a language; auto: it is detected."""
    target: str
    """The code of a language."""
    format: str = "text"
    """text; HTML is not available."""
    alternatives: int = Field(0, ge=0)
    """Number of further translations."""
    api_key: str | None = None
    """The key, unless the header Authorization has it."""


class DetectRequest(Config):
    """A text whose language is detected."""

    q: str
    """The text."""
    api_key: str | None = None
    """The key, unless the header Authorization has it."""


class DetectionReply(Config):
    confidence: float
    language: str


class TranslateReply(Config):
    translatedText: str | list[str]
    detectedLanguage: DetectionReply | list[DetectionReply] | None = None
    alternatives: list[str] | list[list[str]] | None = None


class LanguageReply(Config):
    code: str
    name: str
    targets: list[str]


class LibreTranslateErrorReply(Config):
    error: str


def error_status(failure: Failure) -> int:
    return {401: 403, 404: 400, 413: 400, 415: 400, 422: 400}.get(failure.status, failure.status)


def error_body(failure: Failure) -> dict[str, Any]:
    if failure.status == 401:
        return {"error": f"Invalid API key: {failure.error.problem}"}
    return {"error": f"Slowdown: {failure.error}" if failure.status == 429 else str(failure.error)}


DIALECT = Dialect("LibreTranslate", error_body, error_status, LibreTranslateErrorReply)


# ---- reading


def parse_form(text: bytes) -> dict[str, Any]:
    """The fields of a form; the values of a field that occurs several times are a list."""
    try:
        fields = parse_qsl(text.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise BadRequest("body", f"not a valid form: {error}") from None
    values = dict[str, Any]()
    for name, value in fields:
        if name not in values:
            values[name] = value
        elif isinstance(values[name], list):
            values[name].append(value)
        else:
            values[name] = [values[name], value]
    return values


async def read_values(call: Call) -> dict[str, Any]:
    """The fields of a request, of JSON or a form. Other fields than those of the body are ignored, as in LibreTranslate."""
    if call.content_type == "application/json":
        values = await call.json_values()
    elif call.content_type in (FORM, ""):
        values = parse_form(call.request.url.query.encode()) | parse_form(await call.body())
        values |= {"q": values["q"].replace("\r\n", "\n")} if isinstance(values.get("q"), str) else {}
        if call.services.log_texts:
            call.fields["body"] = values
    else:
        raise WrongType("content-type", f"expected application/json or {FORM}, got {call.content_type}")
    known = {} if call.route.body is None else call.route.body.model_fields
    return {name: value for name, value in values.items() if name in known and value is not None}


def check_key(call: Call, values: dict[str, Any]) -> None:
    """Refuse a request without a known key, in the body or the head."""
    scheme, _, key = call.request.headers.get("authorization", "").partition(" ")
    given = key.strip() if scheme.lower() == "bearer" else values.get("api_key")
    call.services.keys.check(given if isinstance(given, str) else None)


def _number(values: dict[str, Any], name: str) -> dict[str, Any]:
    """The fields with a number that is written as a text."""
    text = values.get(name)
    is_number = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10
    return {**values, name: int(text)} if is_number else values  # type: ignore[arg-type]  # a text


# ---- translating


def split_lines(texts: Sequence[str]) -> list[list[str]]:
    return [text.split("\n") for text in texts]


async def translations(call: Call, name: str, texts: Sequence[str], num_alternatives: int) -> list[list[str]]:
    """The translations of each text, best first: its lines are translated and joined again; empty ones stay."""
    lines_of = split_lines(texts)
    lines = [line for lines in lines_of for line in lines if line.strip()]
    check_texts(lines, "lines of q", call.limits)
    run, count = call.engine.served(name).run, num_alternatives + 1
    beam_size = max(count, run.spec.decode.beam_size) if run.spec.decode is not None else count
    values: dict[str, Any] = {"n_best": count, "beam_size": beam_size} if num_alternatives else {}
    options = options_from(run.spec.predict_options, None, values)
    check_options(options, call.limits)
    results: list[Any] = await call.result(name, Predict(lines, options)) if lines else []
    for number, result in enumerate(results, 1):
        if isinstance(result, InvalidInput):
            raise UsageError(f"q, line {number}", result.reason)
    outputs = iter([[output.text for output in result.ranked()] for result in results])
    ranked = [[next(outputs) if line.strip() else [line] for line in lines] for lines in lines_of]
    return [
        ["\n".join(each[min(rank, len(each) - 1)] for each in found) for rank in range(max(map(len, found)))]
        for found in ranked
    ]


def detection(found: Detection) -> dict[str, Any]:
    return {"confidence": found.confidence, "language": found.language}


class Handlers:
    """The handlers of the API for the languages of an engine."""

    def __init__(self, languages: Languages) -> None:
        self._languages = languages

    async def _detector(self) -> Detector:
        """The detector, which reads training data when it is first used."""
        found = await asyncio.to_thread(lambda: self._languages.detector)
        if isinstance(found, str):
            raise UsageError("source", f"the language cannot be detected: {found}", "name the language")
        return found

    async def translate(self, call: Call) -> Response:
        values = await read_values(call)
        check_key(call, values)
        body = parse_config(TranslateRequest, _number(values, "alternatives"), prefix="")
        texts = [body.q] if isinstance(body.q, str) else body.q
        if not body.q:
            raise UsageError("q", "must not be empty")
        check_texts(texts, "q", call.limits)
        if body.format != "text":
            raise UsageError("format", f"{body.format} format is not supported", "use text")
        call.fields["inputs"] = len(texts)
        found = (await self._detector()).detect(" ".join(texts))[0] if body.source == "auto" else None
        name = self._languages.run_for(body.source if found is None else found.language, body.target)
        if name is None:
            ranked = [[text] for text in texts]
        else:
            ranked = await translations(call, name, texts, body.alternatives)
        best = [each[0] for each in ranked]
        others = [[text for text in dict.fromkeys(each[1:]) if text != each[0]] for each in ranked]
        is_list = isinstance(body.q, list)
        reply: dict[str, Any] = {"translatedText": best if is_list else best[0]}
        if found is not None:
            reply["detectedLanguage"] = [detection(found)] * len(texts) if is_list else detection(found)
        if body.alternatives:
            reply["alternatives"] = others if is_list else others[0]
        return json_response(reply)

    async def detect(self, call: Call) -> Response:
        values = await read_values(call)
        check_key(call, values)
        body = parse_config(DetectRequest, values, prefix="")
        if not body.q:
            raise UsageError("q", "must not be empty")
        check_texts([body.q], "q", call.limits)
        return json_response([detection(found) for found in (await self._detector()).detect(body.q)])

    async def languages(self, call: Call) -> Response:
        known = self._languages
        each = [{"code": code, "name": language_name(code), "targets": known.targets(code)} for code in known.codes]
        return json_response(each)

    async def settings(self, call: Call) -> Response:
        """What a page of LibreTranslate asks for."""
        pair = next(iter(self._languages.pairs.values()), ("", ""))
        source, target = ({"code": code, "name": language_name(code)} for code in pair)
        return json_response(
            {
                "charLimit": call.limits.max_text_chars,
                "frontendTimeout": 500,
                "apiKeys": bool(call.services.keys),
                "keyRequired": bool(call.services.keys),
                "suggestions": False,
                "filesTranslation": False,
                "supportedFilesFormat": [],
                "language": {"source": source, "target": target},
            }
        )


async def health(call: Call) -> Response:
    return json_response({"status": "ok"})


def routes(languages: Languages) -> list[Route]:
    """The table of the API."""
    handlers = Handlers(languages)
    return [
        Route(
            "POST",
            "/translate",
            handlers.translate,
            "Translate texts",
            DIALECT,
            body=TranslateRequest,
            reply=TranslateReply,
            reads_key=True,
            reads_forms=True,
        ),
        Route(
            "POST",
            "/detect",
            handlers.detect,
            "Detect the language of a text",
            DIALECT,
            body=DetectRequest,
            reply=list[DetectionReply],
            reads_key=True,
            reads_forms=True,
        ),
        Route("GET", "/languages", handlers.languages, "Languages", DIALECT, reply=list[LanguageReply], is_open=True),
        Route("GET", "/frontend/settings", handlers.settings, "Settings of a page", DIALECT, is_open=True),
        Route("GET", "/health", health, "Whether the process answers", DIALECT, is_open=True),
    ]
