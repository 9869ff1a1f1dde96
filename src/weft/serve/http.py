"""The web application: tables of routes over one engine, with keys, limits, request ids, metrics and an access log."""

from __future__ import annotations

import ipaddress
import secrets
import time
import traceback
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import Message, Receive, Scope, Send

from weft.errors import WeftError
from weft.serve import native
from weft.serve.call import Call, Services, json_response
from weft.serve.engine import Engine
from weft.serve.errors import BadRequest, NotFound, RunFailed, ServeError, Unavailable, WrongMethod
from weft.serve.keys import Keys
from weft.serve.metrics import CONTENT_TYPE, HttpCounters, exposition
from weft.serve.openapi import document
from weft.serve.routes import Failure, Route, error_object

MAX_ID_CHARS = 100
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src 'self' data: blob:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
# the scripts of the page; app imports the others
MODULES = (
    *("app", "api", "compare", "dom", "errors", "explain", "figure", "form"),
    *("hints", "modes", "panel", "records", "snippets", "tokens", "weights"),
)
PAGE = {"/": "index.html", "/app.css": "app.css", **{f"/{name}.js": f"{name}.js" for name in MODULES}}
PAGE_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


def request_id(request: Request) -> str:
    """The id that the client sent, if it is harmless, or a new one."""
    given = request.headers.get("x-request-id", "")
    is_valid = 0 < len(given) <= MAX_ID_CHARS and given.isascii() and given.isprintable() and not set(given) & set(' "\\')
    return given if is_valid else secrets.token_hex(8)


@lru_cache(maxsize=64)
def _is_local(host: str) -> bool:
    """Whether the host of a request is an address, or a name of this machine: a foreign page can have a name of its own that
    points here, but not one of these."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    name = name.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def error_response(call: Call, error: WeftError) -> Response:
    """An error in the form of the dialect."""
    failure = call.failure(error)
    status = call.route.dialect.error_status(failure)
    headers = dict[str, str]()
    if isinstance(error, ServeError) and error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if failure.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    call.fields["error"] = error.problem
    return json_response(call.route.dialect.error_body(failure), status, headers)


class Endpoint:
    """Answers the requests of one route: checks, the handler, errors, and a line of the log at the end."""

    def __init__(self, route: Route, services: Services) -> None:
        self.route, self.services = route, services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, request = time.monotonic(), Request(scope, receive)
        call = Call(request, self.route, self.services, request_id(request))
        status = 500

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(b"x-request-id", call.request_id.encode()), (b"x-content-type-options", b"nosniff")]
                if self.services.is_draining:
                    extra.append((b"connection", b"close"))
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        self.services.http.active += 1
        try:
            response = await self._answer(call)
            await response(scope, receive, send_with_id)
        finally:
            self.services.http.active -= 1
            seconds = time.monotonic() - start
            self.services.http.ended(request.method, self.route.path, status, seconds)
            self._log(call, status, seconds)

    async def _answer(self, call: Call) -> Response:
        try:
            self._check(call)
            return await self.route.handler(call)
        except WeftError as error:
            return error_response(call, error)
        except Exception as error:  # a bug: the client gets no details
            call.fields["traceback"] = "".join(traceback.format_exception(error))
            return error_response(call, RunFailed("server", "internal error", "the log of the server has the details"))

    def _check(self, call: Call) -> None:
        services, route = self.services, self.route
        host = call.request.headers.get("host", "localhost")
        if services.refuses_foreign_hosts and not _is_local(host):
            raise BadRequest("host", "is not a name of this machine", "set a key, or use --no-key")
        if services.is_draining and not route.is_open:
            raise Unavailable("server", "is stopping", "try again later", retry_after=1)
        if not (route.is_open or route.reads_key):
            scheme, _, key = call.request.headers.get("authorization", "").partition(" ")
            services.keys.check(key.strip() if scheme.lower() == "bearer" else None)

    def _log(self, call: Call, status: int, seconds: float) -> None:
        request = call.request
        client = None if request.client is None else request.client.host
        head = {"time": time.time(), "id": call.request_id, "client": client, "method": request.method}
        self.services.log(
            {**head, "path": request.scope["path"], "status": status, "seconds": round(seconds, 6), **call.fields}
        )


# ---- routes that every server has


async def health(call: Call) -> Response:
    """The process answers."""
    return json_response({"status": "ok"})


async def ready(call: Call) -> Response:
    """Requests would be computed."""
    if call.services.is_draining or not call.engine.is_alive:
        raise Unavailable("server", "is stopping", retry_after=1)
    return json_response({"status": "ready"})


async def metrics(call: Call) -> Response:
    return Response(exposition(call.engine, call.services.http), media_type=CONTENT_TYPE)


async def page(call: Call) -> Response:
    """A file of the page."""
    name = PAGE[call.request.url.path]
    file = files("weft.serve").joinpath("page", name)
    if not file.is_file():
        raise NotFound("path", f"there is no {call.request.url.path}")
    headers = {"Content-Security-Policy": CSP, "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}
    return Response(file.read_bytes(), media_type=f"{PAGE_TYPES[name.rpartition('.')[2]]}; charset=utf-8", headers=headers)


def _openapi(routes: Sequence[Route]) -> Callable[[Call], Any]:
    @cache
    def content() -> dict[str, Any]:
        return document(routes)

    async def openapi(call: Call) -> Response:
        return json_response(content())

    return openapi


COMMON = [
    Route("GET", "/healthz", health, "Whether the process answers", is_open=True),
    Route("GET", "/readyz", ready, "Whether requests are computed", is_open=True),
    Route("GET", "/metrics", metrics, "Metrics for Prometheus"),
    *(Route("GET", path, page, "The page", is_open=True) for path in PAGE),
]


# ---- the application


def create_app(services: Services, *, tables: Sequence[Sequence[Route]] = (), cors_origins: Sequence[str] = ()) -> Starlette:
    """The application: the native API, and further tables of routes."""
    routes = [*native.ROUTES, *(route for table in tables for route in table), *COMMON]  # in the order of their search
    described = [route for route in routes if route.handler is not page]
    routes.append(Route("GET", "/openapi.json", _openapi(described), "This description", is_open=True))

    async def not_routed(request: Request, error: Exception) -> Response:
        """A path or a method that does not exist."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
        path, name = request.url.path, request_id(request)
        problem: WeftError = NotFound("path", f"there is no {path[:200]}", "see /openapi.json")
        if status == 405:
            problem = WrongMethod("method", f"{request.method} is not available for {path[:200]}")
        services.http.ended(request.method if request.method in METHODS else "other", "other", status, 0.0)
        services.log({"time": time.time(), "id": name, "method": request.method, "path": path, "status": status})
        return json_response(error_object(Failure(problem, status, name)), status, {**headers, "X-Request-ID": name})

    middleware = []
    if cors_origins:
        # any header, since clients send some of their own, such as OpenAI's in a page
        options: dict[str, Any] = {"allow_origins": list(cors_origins), "allow_methods": ["GET", "POST"]}
        middleware.append(Middleware(CORSMiddleware, **options, allow_headers=["*"], expose_headers=["X-Request-ID"]))
    starlette_routes = [StarletteRoute(route.path, Endpoint(route, services), methods=[route.method]) for route in routes]
    return Starlette(routes=starlette_routes, middleware=middleware, exception_handlers={HTTPException: not_routed})


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def create_services(
    engine: Engine,
    *,
    keys: Sequence[str] = (),
    log: Callable[[dict[str, Any]], None] | None = None,
    log_texts: bool = False,
    refuses_foreign_hosts: bool = False,
) -> Services:
    """What the requests of an application share."""
    return Services(
        engine,
        Keys(keys),
        HttpCounters(),
        log or (lambda line: None),
        log_texts=log_texts,
        refuses_foreign_hosts=refuses_foreign_hosts,
    )
