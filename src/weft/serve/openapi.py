"""The OpenAPI document, from the tables of routes and the classes of their bodies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from weft import __version__
from weft.config import Config, described_fields
from weft.errors import UsageError
from weft.serve.routes import Failure, Route
from weft.serve.schemas import ErrorReply

REFERENCE = "#/components/schemas/{model}"
STATUSES = {
    "400": "The body is not JSON",
    "401": "The key is missing or unknown",
    "404": "Unknown run, or an operation that it does not have",
    "408": "The body did not arrive in time",
    "413": "The body or a text is too large",
    "415": "The body is not application/json",
    "422": "A value, an option or an input is invalid",
    "429": "Too many requests wait",
    "503": "Too little memory or time, or the server stops",
}


def _schema(config_class: type[Config], schemas: dict[str, Any]) -> dict[str, Any]:
    """A reference to the schema of a class, which is added to `schemas` with those that it contains."""
    described_fields(config_class)
    config_class.model_rebuild(force=True)
    schema = config_class.model_json_schema(ref_template=REFERENCE)
    schemas |= schema.pop("$defs", {})
    schemas[config_class.__name__] = schema
    return {"$ref": REFERENCE.format(model=config_class.__name__)}


def _content(kind: Any, schemas: dict[str, Any], *, forms: bool = False) -> dict[str, Any]:
    """The content of a body: a class, or a list of its objects."""
    if get_origin(kind) is list:
        schema: dict[str, Any] = {"type": "array", "items": _schema(get_args(kind)[0], schemas)}
    else:
        schema = _schema(kind, schemas)
    types = ["application/json", *["application/x-www-form-urlencoded"] * forms]
    return {"content": {content_type: {"schema": schema} for content_type in types}}


def _statuses(route: Route) -> dict[str, str]:
    """The errors of a route, by the status that its dialect has for them."""
    has_name = "{" in route.path
    which = STATUSES if route.body is not None else {status: STATUSES[status] for status in ("401", "503")}
    which = {**which, "404": STATUSES["404"]} if has_name else which
    problem = UsageError("", "")
    return {str(route.dialect.error_status(Failure(problem, int(status), ""))): text for status, text in which.items()}


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    name = re.sub(r"\W+", "_", f"{route.method.lower()} {route.path}").strip("_")
    operation: dict[str, Any] = {"summary": route.summary, "operationId": name, "tags": [route.dialect.name]}
    names = re.findall(r"{(\w+)}", route.path)
    if names:
        operation["parameters"] = [
            {"name": each, "in": "path", "required": True, "schema": {"type": "string"}} for each in names
        ]
    if route.body is not None:
        operation["requestBody"] = {"required": True, **_content(route.body, schemas, forms=route.reads_forms)}
    answer: dict[str, Any] = {"description": "The result"}
    if route.reply is not None:
        answer |= _content(route.reply, schemas)
    if route.streams:
        events = {"description": "Server-sent events; the data of each is a JSON object, and [DONE] at the end"}
        answer.setdefault("content", {})["text/event-stream"] = {"schema": events}
    errors = dict[str, Any]()
    if not route.is_open:
        error_content = _content(route.dialect.error_reply or ErrorReply, schemas)
        errors = {status: {"description": text, **error_content} for status, text in _statuses(route).items()}
    if not route.is_open and not route.reads_key:
        operation["security"] = [{"bearer": []}]
    return {**operation, "responses": {"200": answer, **errors}}


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The description of all routes."""
    schemas, paths = dict[str, Any](), dict[str, dict[str, Any]]()
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "weft", "version": __version__, "description": "Trained runs over HTTP."},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
