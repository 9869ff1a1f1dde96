"""The web application of `weft serve`: the native API, every status, keys, limits, metrics, the log, and connections."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from serve_runs import ServeRuns, make_runs
from small_runs import SilentCallback, train_here
from speech_runs import make_recordings, speech_run_file

import weft
from weft.cli.main import main
from weft.errors import UsageError
from weft.explain.options import ExplainConfig
from weft.serve import Engine, Limits
from weft.serve.access_log import Log
from weft.serve.call import Services
from weft.serve.http import create_app, create_services
from weft.serve.inputs import plain
from weft.serve.jobs import Media
from weft.serve.keys import parse_keys, read_keys
from weft.serve.media import safe_name, stored
from weft.serve.protocol import num_undelivered, protocol_class
from weft.serve.routes import Dialect, Failure, Route
from weft.serve.server import bind, serve
from weft.tasks.word_vectors.predict import Neighbors
from weft.vectors.word_vectors import Neighbor

NAMES = ("lm", "mt", "labels", "chat")
LIMITS = {"max_body_bytes": 20_000, "max_text_chars": 2000, "max_texts": 8, "max_new_tokens": 5000, "body_seconds": 0.3}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> ServeRuns:
    return make_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def engine(runs) -> Iterator[Engine]:
    with Engine({name: runs.get(name) for name in NAMES}, limits=Limits(**LIMITS), device="cpu") as engine:
        yield engine


class Client:
    """Sends requests to an application without a network."""

    def __init__(self, services: Services, **options: Any) -> None:
        self.services, self.app = services, create_app(services, **options)

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def request() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url=options.pop("base", "http://localhost")) as client:
                return await client.request(method, path, **options)

        return asyncio.run(request())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.send("GET", path, **options)

    def post(self, run: str, operation: str, **body: Any) -> httpx.Response:
        return self.send("POST", f"/v1/runs/{run}/{operation}", json=body)


@pytest.fixture
def log() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def client(engine, log) -> Client:
    return Client(create_services(engine, log=log.append))


def problem(response: httpx.Response, status: int) -> str:
    """The message of an error, whose form is checked."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"where", "problem", "fix", "message", "request_id"}
    assert error["request_id"] == response.headers["x-request-id"]
    return error["message"]


# ---- operations


def test_info(client, engine):
    info = client.get("/info").json()
    assert info["version"] == weft.__version__
    assert info["limits"] == engine.limits.model_dump()
    by_name = {run["name"]: run for run in info["runs"]}
    assert list(by_name) == list(NAMES)
    assert by_name["labels"]["operations"] == ["predict", "embed", "explain"]
    assert by_name["chat"]["operations"] == ["generate", "chat", "score", "explain"]
    assert by_name["mt"]["inputs"] == ["source"]
    assert by_name["labels"]["labels"]
    assert "attention" in by_name["lm"]["views"]


def test_predictions_are_the_records_of_the_command(client, runs, capsys, tmp_path):
    (tmp_path / "in.txt").write_text("abc\nde\n")
    assert main(["predict", str(runs.get("mt")), "--input", str(tmp_path / "in.txt"), "--json", "--beam-size", "3"]) == 0
    expected = [json.loads(line) for line in capsys.readouterr().out.split("\n") if line]
    found = client.post("mt", "predict", inputs=["abc", "de"], options={"beam_size": 3}).json()["predictions"]
    for one, other in zip(found, expected, strict=True):
        assert one["source"] == other["source"]
        assert one["predictions"][0]["text"] == other["predictions"][0]["text"]
        assert one["predictions"][0]["score"] == pytest.approx(other["predictions"][0]["score"], abs=1e-5)


def test_inputs_that_cannot_be_used_have_errors_and_others_predictions(client):
    records = client.post("mt", "predict", inputs=["abc", 3, "x" * 40, ["a", "b"]]).json()["predictions"]
    assert records[0]["source"] == "abc"
    assert records[1]["error"]["message"] == "input 2: expected a text or a list of texts"
    assert "exceed the model's limit of 16" in records[2]["error"]["message"]
    assert records[3]["error"]["message"] == "input 4: expected 1 text (source), got 2"
    labels = client.post("labels", "predict", inputs=["the cat", "", {"text": "the cat"}, {"x": "y"}]).json()["predictions"]
    assert labels[0]["labels"] == labels[2]["labels"]
    assert labels[1] == {"text": "", "labels": [], "probabilities": {}}
    assert labels[3]["error"]["problem"] == "expected the keys text"


def test_generate_and_its_stream(client, runs):
    body = {"prompts": ["the", "a"], "options": {"max_new_tokens": 6, "num_samples": 2}, "top_logprobs": 2}
    whole = client.post("lm", "generate", **body).json()["continuations"]
    expected = weft.load(runs.get("lm"), device="cpu").generate(["the", "a"], max_new_tokens=6, num_samples=2)
    assert [[each["text"] for each in ranked] for ranked in whole] == [[e.text for e in best.ranked()] for best in expected]
    assert len(whole[0][0]["tokens"][0]["top"]) == 2
    response = client.post("lm", "generate", **body, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    *lines, last = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert last == "[DONE]"
    texts: dict[tuple[int, int], str] = {}
    for event in map(json.loads, lines):
        key = event["prompt"], event["sample"]
        texts[key] = texts.get(key, "") + event["text"]
    assert texts == {(p, s): whole[p][s]["text"] for p in range(2) for s in range(2)}


def test_chat_score_embed_and_explain(client, runs):
    reply = client.post("chat", "chat", messages=[{"role": "user", "content": "Hi"}], options={"max_new_tokens": 3}).json()
    assert reply["message"]["role"] == "assistant"
    assert reply["message"]["content"] == "".join(token["text"] for token in reply["tokens"] if token["text"] != "</s>")
    stream = client.post(
        "chat", "chat", messages=[{"role": "user", "content": "Hi"}], options={"max_new_tokens": 3}, stream=True
    )
    assert stream.text.endswith("data: [DONE]\n\n")
    (scored,) = client.post("lm", "score", inputs=["the cat"], per_token=True).json()["scores"]
    assert sum(token["surprisal"] for token in scored["tokens"]) == pytest.approx(-scored["log_prob"], rel=1e-4)
    pairs = client.post("mt", "score", inputs=[["abc", "A B"], "abc", [1, "A"]]).json()["scores"]
    assert pairs[0]["tokens"] == 3
    assert pairs[1]["error"]["message"] == "input 2: expected a list of two texts"
    assert pairs[2]["error"]["problem"] == "expected a list of two texts"
    assert client.post("lm", "score", inputs=[1]).json()["scores"][0]["error"]["problem"] == "expected a text"
    vectors = client.post("labels", "embed", texts=["a dog"]).json()["vectors"]
    assert vectors[0] == pytest.approx(weft.load(runs.get("labels"), device="cpu").embed(["a dog"])[0].tolist(), abs=1e-6)
    (view,) = client.post("lm", "explain", input="the cat", view="surprisal").json()["explanations"]
    assert view["view"] == "surprisal"
    assert view["pictures"][0].startswith("<svg")
    assert problem(client.post("lm", "explain", input=3), 422) == "input: expected a text or a list of texts"
    for name, value in (("beam_size", 1000), ("max_new_tokens", 10**6)):
        message = problem(client.post("lm", "explain", input="the", view="beam-search", options={name: value}), 422)
        assert message.startswith(f"{name}: {value:,} is more than the limit of ")
    message = problem(client.post("labels", "explain", input="the", view="units", options={"unit": [1] * 1001}), 413)
    assert message == "options.unit: 1,001 values are more than 1,000"
    with pytest.raises(UsageError, match=r"^unit: 1,001 units are more than 1,000$"):
        ExplainConfig(unit=[1] * 1001)


# ---- statuses


def send_raw(client: Client, content: Any, kind: str = "application/json") -> httpx.Response:
    return client.send("POST", "/v1/runs/lm/generate", content=content, headers={"content-type": kind})


def test_statuses_of_bad_requests(client):
    assert problem(send_raw(client, b"{"), 400).startswith("body: not valid JSON: EOF")
    assert problem(send_raw(client, b'{"prompts": ["\xff"]}'), 400).startswith("body: not valid JSON")
    assert problem(send_raw(client, b'{"prompts": ["\\ud800"]}'), 400).startswith("body: not valid JSON")
    assert problem(send_raw(client, b"[" * 5000), 400).startswith("body: not valid JSON")
    assert problem(send_raw(client, b"[]"), 422) == "body: expected a JSON object"
    assert problem(send_raw(client, b"{}", "text/plain"), 415) == "content-type: expected application/json, got text/plain"
    assert problem(client.get("/nope"), 404) == "path: there is no /nope; see /openapi.json"
    assert problem(client.send("POST", "/info"), 405) == "method: POST is not available for /info"
    assert client.send("POST", "/info").headers["allow"]
    assert problem(client.post("nope", "generate", prompts=[]), 404).startswith("run: unknown run 'nope'")
    expected = "run labels: generate is not available for a classifier; choose from predict, embed, explain"
    assert problem(client.post("labels", "generate", prompts=[]), 404) == expected
    assert problem(client.post("lm", "generate", prompts="x"), 422) == "prompts: expected a list, got 'x'"
    assert problem(client.post("lm", "generate"), 422) == "prompts: required option is missing"
    assert problem(client.post("lm", "generate", prompts=[], x=1), 422).startswith("x: unknown option")
    temperature = {"temperature": 1e999}
    assert problem(send_raw(client, json.dumps({"prompts": ["a"], "options": temperature}).replace("Infinity", "1e999")), 422)
    assert problem(client.post("lm", "generate", prompts=[""], options={"top": 1}), 422).startswith("top: unknown option")
    assert problem(client.post("lm", "generate", prompts=["\x00"]), 422).startswith("prompt 1: ")
    assert client.post("lm", "generate", prompts=[]).json() == {"continuations": []}


def test_limits(client):
    assert problem(send_raw(client, b" " * 30_000), 413) == "body: larger than 20,000 bytes; send less in one request"

    async def chunks() -> Any:
        for _ in range(30):
            yield b" " * 1000

    assert problem(send_raw(client, chunks()), 413).startswith("body: larger than 20,000 bytes")
    many = client.post("lm", "generate", prompts=["a"] * 9)
    assert problem(many, 413) == "prompts: 9 are more than 8; send them in several requests"
    long = client.post("mt", "predict", inputs=["a", ["x" * 1500, "y" * 1500]])
    assert problem(long, 413) == "inputs, number 2: 3,000 characters are more than 2,000; split the text"
    for options, message in [
        ({"max_new_tokens": 5001}, "max_new_tokens: 5,001 is more than the limit of 5,000"),
        ({"num_samples": 17}, "num_samples: 17 is more than the limit of 16"),
        ({"beam_size": 17}, "beam_size: 17 is more than the limit of 16"),
        ({"stop": ["x"] * 9}, "stop: 9 are more than the limit of 8"),
        ({"stop": ["x" * 201]}, "stop: longer than 200 characters"),
    ]:
        assert problem(client.post("lm", "generate", prompts=["a"], options=options), 422) == message
    top = client.post("lm", "generate", prompts=["a"], top_logprobs=21)
    assert problem(top, 422) == "top_logprobs: 21 is more than the limit of 20"
    both = client.post("lm", "generate", prompts=["a"], top_logprobs=1, options={"beam_size": 2})
    assert problem(both, 422) == "top_logprobs: cannot be combined with `beam_size`"


def test_a_slow_body_gets_408(client):
    async def slow() -> Any:
        yield b"{"
        await asyncio.sleep(1)
        yield b"}"

    assert problem(send_raw(client, slow()), 408) == "body: not complete after 0.3 seconds"


def test_a_full_queue_gets_429_and_a_late_request_503(runs):
    limits = Limits(max_rows=1, max_queue=1, max_new_tokens=50_000, request_seconds=0.4)
    with Engine({"lm": runs.get("lm")}, limits=limits, device="cpu") as engine:
        client = Client(create_services(engine))
        body = {"prompts": ["the"], "options": {"max_new_tokens": 50_000}, "stream": False}
        results: list[httpx.Response] = []
        threads = [threading.Thread(target=lambda: results.append(client.post("lm", "generate", **body))) for _ in range(4)]
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        by_status = {response.status_code: response for response in results}
        assert set(by_status) == {429, 503}
        assert problem(by_status[429], 429) == "server: 1 requests wait already; try again later"
        assert problem(by_status[503], 503).startswith("run lm: not ready after 0.4 seconds")
        assert all(int(response.headers["retry-after"]) >= 1 for response in results)


def test_a_bug_is_logged_and_not_shown(client, log, monkeypatch):
    monkeypatch.setattr("weft.serve.native.check_texts", lambda *args: 1 / 0)
    response = client.post("lm", "generate", prompts=["secret"])
    assert problem(response, 500) == "server: internal error; the log of the server has the details"
    assert "ZeroDivisionError" in log[-1]["traceback"]
    assert "Zero" not in response.text


# ---- keys, hosts, ids, headers


def test_keys(engine):
    client = Client(create_services(engine, keys=["first-key", "second-key"]))
    assert problem(client.get("/info"), 401) == "key: missing; send the header Authorization: Bearer KEY"
    assert client.get("/info").headers["www-authenticate"] == "Bearer"
    wrong = client.get("/info", headers={"authorization": "Bearer x"})
    assert problem(wrong, 401) == "key: unknown; send the header Authorization: Bearer KEY"
    assert problem(client.get("/metrics"), 401)
    assert client.get("/info", headers={"authorization": "bearer second-key"}).status_code == 200
    for path in ("/healthz", "/readyz", "/", "/openapi.json"):
        assert client.get(path).status_code == 200


def test_key_files(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# clients\nabcdefgh\n\n12345678\n")
    assert read_keys(path) == ["abcdefgh", "12345678"]
    path.write_bytes(b"\xef\xbb\xbfabcdefgh\r\n\r\n12345678\r\n")  # as of an editor of Windows
    assert read_keys(path) == ["abcdefgh", "12345678"]
    with pytest.raises(UsageError, match=r"key_file: .*/none cannot be read: No such file or directory"):
        read_keys(tmp_path / "none")
    with pytest.raises(UsageError, match="key_file: contains no key"):
        parse_keys("# nothing\n", "key_file")
    with pytest.raises(UsageError, match="key 1 is not 8 or more printable ASCII characters without spaces"):
        parse_keys("short\n", "key_file")


def test_names_of_other_machines_are_refused_without_a_key(engine):
    client = Client(create_services(engine, refuses_foreign_hosts=True))
    for host in ("localhost", "127.0.0.1:8080", "[::1]:8080", "a.localhost"):
        assert client.get("/healthz", base=f"http://{host}").status_code == 200
    response = client.get("/info", base="http://evil.example")
    assert problem(response, 400) == "host: is not a name of this machine; set a key, or use --no-key"


def test_request_ids(client):
    assert client.get("/info", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert client.get("/info", headers={"x-request-id": 'a"b'}).headers["x-request-id"] != 'a"b'
    assert client.get("/nope", headers={"x-request-id": "abc-2"}).json()["error"]["request_id"] == "abc-2"


def test_origins(engine):
    preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
    plain = Client(create_services(engine))
    assert "access-control-allow-origin" not in plain.get("/info", headers={"origin": "https://a.example"}).headers
    client = Client(create_services(engine), cors_origins=["https://a.example"])
    allowed = client.send("OPTIONS", "/v1/runs/lm/generate", headers=preflight)
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"
    refused = client.send("OPTIONS", "/v1/runs/lm/generate", headers={**preflight, "origin": "https://b.example"})
    assert "access-control-allow-origin" not in refused.headers


def test_the_page_loads_nothing_from_elsewhere(client):
    response = client.get("/")
    assert response.headers["content-type"].startswith("text/html")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    for path in ("/../http.py", "/page/index.html", "/%2e%2e/http.py", "//etc/passwd"):
        assert client.get(path).status_code == 404


def test_a_missing_file_of_the_page(client, monkeypatch):
    monkeypatch.setitem(__import__("weft.serve.http", fromlist=["PAGE"]).PAGE, "/app.js", "none.js")
    assert problem(client.get("/app.js"), 404) == "path: there is no /app.js"


# ---- media: never a path


def test_files_are_content_and_never_paths(tmp_path):
    assert safe_name("../../etc/passwd") == "passwd"
    assert safe_name("..\\a b.wav") == "a_b.wav"
    assert safe_name("...") == "file"
    with stored([Media("../x.wav", b"abc"), "text"]) as files:
        path = files.inputs[0].path
        assert (path.name, path.read_bytes(), files.inputs[1]) == ("x.wav", b"abc", "text")
        assert files.hide({"a": [f"{path}: bad"]}) == {"a": ["x.wav: bad"]}
    assert not path.exists()


def test_recordings_are_sent_as_content(tmp_path):
    manifest = make_recordings(tmp_path / "data")
    train_here(speech_run_file(manifest, train__max_steps=2), tmp_path / "asr", SilentCallback())
    path = tmp_path / "data" / "wav" / "train0.wav"
    content = base64.b64encode(path.read_bytes()).decode()
    limits = Limits(max_body_bytes=1 << 20)
    with Engine({"asr": tmp_path / "asr"}, limits=limits, device="cpu") as engine:
        client = Client(create_services(engine))
        (info,) = client.get("/info").json()["runs"]
        assert (info["input"], info["inputs"]) == ("audio", ["audio"])
        damaged = base64.b64encode(b"RIFF").decode()
        inputs = [{"base64": content, "name": "a.wav"}, {"base64": "?"}, str(path), {"base64": damaged, "name": "../b.wav"}]
        records = client.post("asr", "predict", inputs=inputs, options={"beam_size": 2}).json()["predictions"]
        expected = weft.load(tmp_path / "asr", device="cpu").predict(str(path), beam_size=2)
        assert records[0]["source"] == "a.wav"
        assert records[0]["predictions"][0]["text"] == expected.text
        assert records[1]["error"]["problem"] == "not valid base64"
        assert records[2]["error"]["problem"] == 'expected {"base64": content, "name": file name}'
        assert records[3]["error"]["problem"].startswith("b.wav: ")
        scored = client.post("asr", "score", inputs=[[{"base64": content, "name": "a.wav"}, "ab"], [str(path), "ab"]]).json()[
            "scores"
        ]
        assert scored[0]["log_prob"] < 0
        assert scored[1]["error"]["problem"] == 'expected {"base64": content, "name": file name}'
        view = info["views"][0]
        explained = client.post("asr", "explain", input={"base64": content, "name": "a.wav"}, view=view)
        assert explained.status_code == 200
        assert "weft-serve-" not in explained.text
        assert problem(client.post("asr", "explain", input=str(path)), 422).startswith('input: expected {"base64"')


def test_predictions_without_a_format_of_lines():
    neighbors = Neighbors("king", [Neighbor("queen", 0.5), Neighbor("x", float("nan"))])
    assert plain(neighbors) == {
        "text": "king",
        "neighbors": [{"word": "queen", "similarity": 0.5}, {"word": "x", "similarity": None}],
    }


# ---- metrics, log, description


def test_metrics_are_in_the_format_of_prometheus(client):
    client.post("lm", "generate", prompts=["the"], options={"max_new_tokens": 3})
    for _ in range(100):  # a request is counted after its answer
        response = client.get("/metrics")
        if (
            'weft_output_tokens_total{run="lm"' in response.text
            and "weft_first_token_seconds_count" in response.text
            and "/generate" in response.text
        ):
            break
        time.sleep(0.02)
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    tokens = {sample.labels["run"]: sample.value for sample in families["weft_output_tokens"].samples}
    assert tokens["lm"] >= 3
    requests = families["weft_http_requests"].samples
    assert any(sample.labels["route"] == "/v1/runs/{name}/generate" for sample in requests)
    buckets = [sample.value for sample in families["weft_http_seconds"].samples if sample.name.endswith("_bucket")]
    assert buckets
    assert {"weft_rows", "weft_requests_waiting", "weft_first_token_seconds", "weft_wait_seconds"} <= set(families)
    by_route: dict[str, list[float]] = {}
    for sample in families["weft_http_seconds"].samples:
        if sample.name.endswith("_bucket"):
            by_route.setdefault(sample.labels["route"], []).append(sample.value)
    assert all(values == sorted(values) for values in by_route.values())


def test_the_log_has_no_texts_unless_asked(engine, client, log):
    client.post("lm", "generate", prompts=["secret words"], options={"max_new_tokens": 2})
    assert "secret" not in json.dumps(log)
    entry = log[-1]
    assert (entry["status"], entry["run"], entry["operation"], entry["inputs"]) == (200, "lm", "generate", 1)
    assert entry["output_tokens"] == 2
    Client(create_services(engine, log=log.append, log_texts=True)).post("lm", "generate", prompts=["secret words"])
    assert log[-1]["body"]["prompts"] == ["secret words"]


def test_lines_of_the_log():
    lines: list[str] = []
    log = Log(lines.append)
    log.request({"time": 0.0, "path": "/\n", "seconds": float("nan")})
    log.event("new weights")
    assert json.loads(lines[0]) == {"time": "1970-01-01T00:00:00.000+00:00", "path": "/\n", "seconds": None}
    assert json.loads(lines[1])["event"] == "new weights"
    assert all(line.count("\n") == 1 for line in lines)


def test_the_description_of_the_api(client):
    document = client.get("/openapi.json").json()
    assert set(document["paths"]["/v1/runs/{name}/generate"]["post"]["responses"]) >= {"200", "400", "401", "404", "422", "429"}
    schemas = document["components"]["schemas"]
    assert schemas["GenerateRequest"]["properties"]["stream"]["description"].startswith("Send the text")
    text = json.dumps(document)
    for name in set(part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]):
        assert name in schemas


def test_tables_of_other_dialects(engine):
    async def handler(call: Any) -> Any:
        raise UsageError("q", "is bad")

    def body(failure: Failure) -> dict[str, Any]:
        return {"error": failure.error.problem}

    route = Route("GET", "/other", handler, "Another", Dialect("other", body, lambda failure: 400))
    response = Client(create_services(engine), tables=[[route]]).get("/other")
    assert (response.status_code, response.json()) == (400, {"error": "is bad"})


# ---- connections


@pytest.fixture
def server(runs, request) -> Iterator[tuple[Engine, int, Services]]:
    """A server in a thread."""
    limits = Limits(head_seconds=0.4, max_connections=3, max_queue=300, **getattr(request, "param", {}))
    engine = Engine({"lm": runs.get("lm")}, limits=limits, device="cpu")
    services, listener, stop = create_services(engine), bind("127.0.0.1", 0), threading.Event()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # of its connections; otherwise megabytes
    port = listener.getsockname()[1]
    thread = threading.Thread(
        target=serve, args=(create_app(services), services, listener, Log(lambda line: None), stop.is_set)
    )
    thread.start()
    try:
        yield engine, port, services
    finally:
        stop.set()
        thread.join(20)
        assert not thread.is_alive()


def open_socket(port: int, text: str) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.sendall(text.encode())
    return connection


def read_all(connection: socket.socket) -> str:
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the condition never became true"
        time.sleep(0.005)


STREAM = '{"prompts": ["the"], "stream": true, "options": {"max_new_tokens": 2000}}'
HEAD = f"POST /v1/runs/lm/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(STREAM)}\r\n\r\n"


def test_connections(server):
    engine, port, _ = server
    start = time.monotonic()
    answer = read_all(open_socket(port, "GET /info HTTP/1.1\r\nHost: loc"))  # a head that never ends
    assert answer.startswith("HTTP/1.1 408 Request Timeout")
    assert '"head: not complete after 0.4 seconds"' in answer
    assert time.monotonic() - start < 5
    kept = open_socket(port, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert kept.recv(65536).startswith(b"HTTP/1.1 200")
    kept.sendall(b"GET /healthz")  # the second head of a connection
    assert "408 Request Timeout" in read_all(kept)
    # a client that goes away frees its row
    connection = open_socket(port, HEAD + STREAM)
    assert b"200 OK" in connection.recv(65536)
    wait_until(lambda: engine.num_rows == 1)
    connection.close()
    wait_until(lambda: engine.num_rows == 0 and engine.num_running == 0)
    # one connection too many
    idle = [open_socket(port, "") for _ in range(3)]
    time.sleep(0.1)
    assert "503 Service Unavailable" in read_all(open_socket(port, "GET /healthz HTTP/1.1\r\n\r\n"))
    for each in idle:
        each.close()


def test_a_client_that_goes_away_before_the_answer(server):
    engine, port, _ = server
    body = STREAM.replace("true", "false")
    head = HEAD.replace(str(len(STREAM)), str(len(body)))
    connection = open_socket(port, head + body)
    wait_until(lambda: engine.num_rows == 1)
    connection.close()
    wait_until(lambda: engine.num_rows == 0 and engine.num_running == 0)
    # a stream of a beam search has its first event at the end
    body = STREAM.replace('"options": {', '"options": {"beam_size": 2, ')
    assert body != STREAM
    connection = open_socket(port, HEAD.replace(str(len(STREAM)), str(len(body))) + body)
    wait_until(lambda: engine.num_rows == 2)
    connection.close()
    wait_until(lambda: engine.num_rows == 0 and engine.num_running == 0)


def test_the_next_request_may_come_with_the_one_before(server):
    _, port, _ = server
    body = '{"prompts": ["the"], "options": {"max_new_tokens": 1}}'
    head = HEAD.replace(str(len(STREAM)), str(len(body)))
    last = head.replace("Host", "Connection: close\r\nHost")
    connection = open_socket(port, head + body + last + body[:10])  # the body of the second one is not complete
    answer = b""
    while b"continuations" not in answer:
        answer += connection.recv(65536)
    connection.sendall(body[10:].encode())
    assert "continuations" in read_all(connection)
    # what comes after the last request changes nothing
    body = STREAM.replace("2000", "300")
    connection = open_socket(port, HEAD.replace(str(len(STREAM)), f"{len(body)}\r\nConnection: close") + body)
    assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK")
    connection.sendall(b"\r\n")
    assert "[DONE]" in read_all(connection)


@pytest.mark.parametrize("server", [{"idle_seconds": 0.3}], indirect=True)
def test_an_answer_that_is_not_read(server):
    """It does not keep its connection, and a client that reads slowly gets all of it."""
    _, port, services = server
    requests = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 9
    last = requests[: len(requests) // 9].replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")
    unread, slow = [socket.socket() for _ in range(2)]
    for connection in (unread, slow):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", port))
    unread.sendall(requests.encode())
    slow.sendall((requests + last).encode())
    answer = b""
    while part := slow.recv(8192):
        answer += part
        time.sleep(0.01)
    slow.close()
    assert answer.count(b"200 OK") == 10 and answer.endswith(b"}")
    wait_until(lambda: services.http.active == 0)
    assert read_all(unread).count("200 OK") < 9


@pytest.mark.parametrize("last", [b"", b"GET / HT", b"\0garbage\r\n\r\n"], ids=["complete", "half a head", "malformed"])
def test_few_bytes_of_an_answer_that_is_not_read(last):
    """So few that writing is not paused; whatever comes after the requests, the connection is closed."""
    seconds, body = 0.2, bytes(40_000)
    protocol = protocol_class(Limits(idle_seconds=seconds, head_seconds=seconds, body_seconds=seconds))

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        head = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": body})

    async def connect() -> None:
        config = uvicorn.Config(answer, http=protocol, ws="none", lifespan="off", log_config=None, timeout_keep_alive=1)
        server = uvicorn.Server(config)
        with socket.socket() as listener, socket.socket() as client:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(listener.getsockname())
            connections: set[Any] = server.server_state.connections
            while not connections:
                await asyncio.sleep(0.01)
            (connection,) = connections
            while not connection.transport.get_write_buffer_size():  # the buffers of the system are not full
                client.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                await asyncio.sleep(0.002)
            client.send(last)
            async with asyncio.timeout(20):
                while connections:
                    await asyncio.sleep(0.02)
            server.should_exit = True
            await serving

    asyncio.run(connect())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux is asked for it")
def test_bytes_in_the_buffer_of_the_system_are_not_delivered():
    """To a slow client, they are sent for minutes, in which the buffer of the connection does not become smaller."""
    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        client.connect(listener.getsockname())
        connection, _ = listener.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            while connection.send(bytes(1 << 16)):
                pass
        transport: Any = SimpleNamespace(get_write_buffer_size=lambda: 7, get_extra_info=lambda name: connection)
        before = num_undelivered(transport)
        received = sum(len(client.recv(1 << 14)) for _ in range(8))
        wait_until(lambda: before - received <= num_undelivered(transport) < before)
        connection.close()
        assert num_undelivered(transport) == 7


def test_answers_are_sent_at_once(server):
    """Not 40 ms later, when the client has confirmed the head of the answer."""
    _, port, _ = server
    with httpx.Client() as client:
        client.get(f"http://127.0.0.1:{port}/healthz")
        seconds = []
        for _ in range(20):
            start = time.monotonic()
            client.get(f"http://127.0.0.1:{port}/healthz")
            seconds.append(time.monotonic() - start)
    assert min(seconds) < 0.03


def test_ports_in_use():
    from weft.errors import ResourceError

    listener = bind("127.0.0.1", 0)
    with listener, pytest.raises(ResourceError, match="cannot listen: Address already in use; choose another `port` or `host`"):
        bind("127.0.0.1", listener.getsockname()[1])
