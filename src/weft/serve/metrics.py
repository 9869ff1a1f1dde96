"""Metrics in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from weft import __version__
from weft.serve.counters import BUCKETS, Histogram

if TYPE_CHECKING:
    from weft.serve.engine import Engine

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]


class HttpCounters:
    """Requests over HTTP since the start. Written by the event loop alone."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()  # by method, route and status
        self.seconds: dict[str, Histogram] = {}  # by route
        self.active = 0

    def ended(self, method: str, route: str, status: int, seconds: float) -> None:
        self.requests[method, route, str(status)] += 1
        self.seconds.setdefault(route, Histogram()).add(seconds)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _sample(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{label}="{_escape(text)}"' for label, text in labels.items())
    return f"{name}{{{inside}}} {value:g}" if inside else f"{name} {value:g}"


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[Labels, float]]) -> list[str]:
    suffix = "_total" if kind == "counter" else ""
    head = [f"# HELP {name}{suffix} {text}", f"# TYPE {name}{suffix} {kind}"]
    return [*head, *(_sample(f"{name}{suffix}", labels, value) for labels, value in samples)]


def _histograms(name: str, text: str, histograms: Iterable[tuple[Labels, Histogram]]) -> list[str]:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} histogram"]
    for labels, histogram in histograms:
        for limit, count in zip(BUCKETS, histogram.counts, strict=True):
            lines.append(_sample(f"{name}_bucket", {**labels, "le": f"{limit:g}"}, count))
        lines.append(_sample(f"{name}_bucket", {**labels, "le": "+Inf"}, histogram.number))
        lines += [_sample(f"{name}_sum", labels, histogram.total), _sample(f"{name}_count", labels, histogram.number)]
    return lines


def _by(names: tuple[str, ...], values: Mapping[Any, Any]) -> list[tuple[Labels, Any]]:
    """The values of a table whose keys have these parts."""
    keys = [(key if isinstance(key, tuple) else (key,), value) for key, value in list(values.items())]
    return [(dict(zip(names, key, strict=True)), value) for key, value in keys]


def exposition(engine: Engine, http: HttpCounters) -> str:
    """All metrics."""
    counters, both = engine.counters, ("run", "operation")
    lines = [
        *_family("weft_info", "gauge", "Version of weft.", [({"version": __version__}, 1)]),
        *_family("weft_requests_waiting", "gauge", "Requests that have not started.", [({}, engine.num_waiting)]),
        *_family("weft_requests_running", "gauge", "Requests that have started.", [({}, engine.num_running)]),
        *_family("weft_rows", "gauge", "Rows that are decoded together.", [({}, engine.num_rows)]),
        *_family("weft_http_active", "gauge", "HTTP requests that are answered now.", [({}, http.active)]),
        *_family("weft_requests", "counter", "Requests that ended.", _by((*both, "result"), counters.requests)),
        *_family("weft_requests_refused", "counter", "Requests that the full queue refused.", [({}, counters.refused)]),
        *_family("weft_prompt_tokens", "counter", "Tokens of prompts.", _by(("run",), counters.prompt_tokens)),
        *_family("weft_output_tokens", "counter", "Tokens that were generated.", _by(("run",), counters.output_tokens)),
        *_family("weft_steps", "counter", "Steps of decoding.", _by(("run",), counters.steps)),
        *_family("weft_batches", "counter", "Calls for gathered inputs.", _by(both, counters.batches)),
        *_family("weft_batch_inputs", "counter", "Inputs of these calls.", _by(both, counters.batch_inputs)),
        *_family("weft_reloads", "counter", "Attempts to load new weights.", _by(("run", "result"), counters.reloads)),
        *_family("weft_http_requests", "counter", "HTTP requests.", _by(("method", "route", "status"), http.requests)),
        *_histograms("weft_request_seconds", "Time of a request in the engine.", _by(both, counters.seconds)),
        *_histograms("weft_wait_seconds", "Time before a request starts.", _by(both, counters.wait_seconds)),
        *_histograms("weft_first_token_seconds", "Time to the first token.", _by(both, counters.first_token_seconds)),
        *_histograms("weft_http_seconds", "Time of an HTTP request.", _by(("route",), http.seconds)),
    ]
    return "\n".join(lines) + "\n"
