"""Send broken and hostile requests to `weft serve`, and report every 5xx but 503, every hang and every traceback in its log.

    python benchmarks/serve_fuzz.py runs/lm mt=runs/mt --languages mt=de,en --requests 3000

The server is started with short times. Bodies are made from the OpenAPI document and then broken: values of other types, lone
surrogates, NaN, numbers beyond every range, deep nesting, truncated JSON. Some requests break the protocol: slow bodies,
sockets that are closed half-way, heads that are too large. With `--schemathesis`, that program makes requests as well. The exit
status is 1 if something was found.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

LIMITS = (
    "body_seconds=1",
    "head_seconds=1",
    "request_seconds=3",
    "max_new_tokens=500",
    "max_queue=16",
    "max_body_bytes=300000",
)
NATIVE = ("predict", "generate", "chat", "score", "embed", "explain")
OPERATIONS = dict(
    zip((*NATIVE, "completions", "embeddings"), (*NATIVE, "generate", "embed"), strict=True)
)  # by the end of a path
TIMEOUT = 20.0  # seconds after which an answer counts as a hang
HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 16, 17, 2**31, 2**63, -(2**63), 2**64, 10**400, 0.5, -0.0, 1e-320, 1e308, "", " ", "a",
    "the", "\0", "\ufeff", "\u2028", "\ud83d\ude00", "a" * 5000, "\n" * 300, "\r\n\t", "../../etc/passwd", "auto", "</s>",
    "<s>", "%s%n{}", [], [[]], [None], ["a", 1], [1, 2, 3], [[1], [2]], [-1], [2**40], ["a"] * 300, {}, {"a": 1},
    {"base64": "!"}, {"type": "text", "text": "a"}, [{"role": "user", "content": "hi"}], [{"role": "user"}],
    {"base64": "UklGRg==", "name": "../a.wav"},
]  # fmt: skip
RAW = [
    b"", b"{", b"}", b"null", b"[]", b'"a"', b"NaN", b"Infinity", b"\xff\xfe", b"\xef\xbb\xbf{}", b"[" * 100_000,
    b'{"a":' * 50_000, b'{"prompts": ["\\ud800"]}', b'{"model": "lm", "prompt": "\\udfff"}',
    b'{"q": "\xed\xa0\x80", "source": "de", "target": "en"}',
    b'{"model": "lm", "prompt": "a", "temperature": NaN}', b'{"prompts": ["a"], "options": {"temperature": 1e999}}',
    b'{"model": "lm", "model": "lm", "prompt": "a", "max_tokens": 1}', b'{"model": "lm", "prompt": [1e5]}',
    b"q=%ff%fe&source=%00", b"q=a&" * 2000, b"q=a;b&source&target=", b'{"inputs": [' + b"1," * 60_000 + b"1]}",
]  # fmt: skip


class Finding(NamedTuple):
    problem: str
    request: str


class Outcome(NamedTuple):
    kind: str
    status: int | None  # None: no answer
    finding: Finding | None = None


# ---- the server


@contextmanager
def serving(runs: list[str], languages: list[str], log: Path) -> Iterator[str]:
    """The address of a server, whose log is written to a file."""
    words = [sys.executable, "-m", "weft", "serve", *runs, "--port", "0", "--device", "cpu"]
    words += [word for pair in languages for word in ("--languages", pair)]
    words += [word for limit in LIMITS for word in ("--limit", limit)]
    with log.open("wb") as file:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=file, text=True)
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
            found = re.search(r"http://\S+", line)
            if found is None:
                raise SystemExit(f"the server does not start: {line}{log.read_text()}")
            yield found[0]
            if process.poll() is not None:
                raise SystemExit(f"the server ended with status {process.returncode}")
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def log_findings(log: Path) -> list[Finding]:
    """Tracebacks, and lines that are not JSON."""
    findings = list[Finding]()
    for line in log.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            values = json.loads(line) if line else {}
        except ValueError:
            findings.append(Finding("a line of the log is not JSON", line[:300]))
            continue
        if "traceback" in values or "Traceback" in json.dumps(values):
            findings.append(Finding("traceback in the log", json.dumps(values)[-1500:]))
    return findings


# ---- bodies


class Bodies:
    """Makes bodies from the schemas of an OpenAPI document."""

    def __init__(self, document: dict[str, Any], rng: random.Random) -> None:
        self._schemas, self._rng = document["components"]["schemas"], rng
        self._names = re.findall(r'"(\w+)"', json.dumps([schema.get("properties", {}) for schema in self._schemas.values()]))

    def make(self, schema: dict[str, Any], depth: int = 0) -> Any:
        """A value of a schema, more or less."""
        rng = self._rng
        if "$ref" in schema:
            return self.make(self._schemas[schema["$ref"].rpartition("/")[2]], depth)
        if "enum" in schema or "const" in schema:
            return rng.choice(schema.get("enum", [schema.get("const")]))
        options = schema.get("anyOf") or schema.get("oneOf")
        if options:
            return self.make(rng.choice(options), depth)
        kind = schema.get("type")
        if kind == "object" and "properties" in schema:
            required = set(schema.get("required", []))
            return {
                name: self.make(inner, depth + 1)
                for name, inner in schema["properties"].items()
                if name in required or rng.random() < 0.3
            }
        if kind == "array":
            return [self.make(schema.get("items", {}), depth + 1) for _ in range(rng.randint(0, 3))]
        simple: dict[str, list[Any]] = {
            "integer": [0, 1, 2, 3, 5, 20],
            "number": [0.0, 0.5, 1.0, 2.0],
            "boolean": [True, False],
            "string": ["the cat", "abc", "", "de", "en", "lm", "mean", "attention"],
            "object": [{}, {"max_new_tokens": 5}, {"beam_size": 3}, {"temperature": 0.5, "top_p": 0.9, "num_samples": 2}],
            "null": [None],
        }
        return rng.choice(simple.get(kind or "", HOSTILE))

    def break_value(self, value: Any) -> Any:
        """The value with one part replaced, removed or added."""
        rng = self._rng
        if isinstance(value, dict) and value and rng.random() < 0.85:
            name = rng.choice(list(value))
            return {**value, name: self.break_value(value[name])}
        if isinstance(value, list) and value and rng.random() < 0.6:
            index = rng.randrange(len(value))
            return [*value[:index], self.break_value(value[index]), *value[index + 1 :]]
        if isinstance(value, dict):
            return {**value, rng.choice(self._names or ["x"]): rng.choice(HOSTILE)}
        return rng.choice(HOSTILE)

    def content(self, body: Any) -> bytes:
        """The body as JSON, sometimes broken."""
        text = json.dumps(body, ensure_ascii=self._rng.random() < 0.5).encode("utf-8", "surrogatepass")
        roll = self._rng.random()
        if roll < 0.04:
            return text[: self._rng.randrange(len(text) + 1)]
        if roll < 0.08 and text:
            position = self._rng.randrange(len(text))
            return text[:position] + bytes([self._rng.randrange(256)]) + text[position + 1 :]
        return text


# ---- requests


class Fuzzer:
    """Sends one request after the other."""

    def __init__(self, url: str, seed: int) -> None:
        self.url, self._rng = url, random.Random(seed)
        self._host, self._port = url.removeprefix("http://").split(":")
        document = httpx.get(f"{url}/openapi.json", timeout=TIMEOUT).json()
        runs = httpx.get(f"{url}/info", timeout=TIMEOUT).json()["runs"]
        self._names: list[str] = [run["name"] for run in runs]
        self._able: dict[str, list[str]] = {
            name: [run["name"] for run in runs if name in run["operations"]] for name in OPERATIONS.values()
        }
        self._bodies = Bodies(document, self._rng)
        self._operations = [
            (method.upper(), path, operation) for path, item in document["paths"].items() for method, operation in item.items()
        ]
        self._client = httpx.Client(timeout=TIMEOUT)

    def _name(self, path: str) -> str:
        """The name of a run, most often of one that has the operation of a path."""
        able = self._able.get(OPERATIONS.get(path.rpartition("/")[2], "")) or self._names
        if self._rng.random() < 0.9:
            return self._rng.choice(able)
        return self._rng.choice([*self._names, "nope", "%00", "..%2f..", "a" * 3000, "\u00e9"])

    def _path(self, path: str) -> str:
        return re.sub(r"{\w+}", lambda _: self._name(path), path)

    def described(self) -> Outcome:
        """A request of the document, with a body that may be broken."""
        rng = self._rng
        bodies = [each for each in self._operations if "requestBody" in each[2]]
        method, path, operation = rng.choice(bodies if rng.random() < 0.9 else self._operations)
        content, headers = b"", {"content-type": "application/json"}
        if "requestBody" in operation:
            body = self._bodies.make(operation["requestBody"]["content"]["application/json"]["schema"])
            if isinstance(body, dict) and "model" in body:
                body["model"] = self._name("chat" if "chat" in path else path)
            for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
                body = self._bodies.break_value(body)
            content = self._bodies.content(body)
        if rng.random() < 0.05:
            headers["content-type"] = rng.choice(
                ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data", "\u00e9"]
            )
        if rng.random() < 0.03:
            method = rng.choice(["PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "X"])
        return self._send("described", method, self._path(path), content, headers)

    def raw(self) -> Outcome:
        """A body that is no JSON, or strange JSON."""
        method, path, _ = self._rng.choice([each for each in self._operations if "requestBody" in each[2]])
        kind = self._rng.choice(["application/json"] * 4 + ["application/x-www-form-urlencoded"])
        return self._send("raw", method, self._path(path), self._rng.choice(RAW), {"content-type": kind})

    def _send(self, kind: str, method: str, path: str, content: bytes, headers: dict[str, str]) -> Outcome:
        shown = f"{method} {path[:200]} {headers} {content[:1500]!r}"
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        try:
            reply = self._client.request(method, f"{self.url}{path}", content=content, headers=encoded)
        except httpx.TimeoutException:
            return Outcome(kind, None, Finding("no answer", shown))
        except httpx.RemoteProtocolError as error:
            # refusals before the body is read may close the connection
            return Outcome(kind, None, None if "disconnected" in str(error) else Finding(str(error), shown))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            is_closed = isinstance(error, httpx.WriteError | httpx.ReadError | httpx.InvalidURL)
            return Outcome(kind, None, None if is_closed else Finding(repr(error), shown))
        return Outcome(kind, reply.status_code, self._check(reply, shown))

    def _check(self, reply: httpx.Response, shown: str) -> Finding | None:
        if reply.status_code >= 500 and reply.status_code != 503:
            return Finding(f"status {reply.status_code}: {reply.text[:300]}", shown)
        if "Traceback" in reply.text or "site-packages" in reply.text:
            return Finding("the answer has a traceback", shown)
        kind = reply.headers.get("content-type", "")
        if kind.startswith("application/json") and reply.request.method != "HEAD":
            try:
                json.loads(reply.text, parse_constant=lambda name: 1 / 0)
            except (ValueError, ZeroDivisionError):
                return Finding(f"the answer is not JSON: {reply.text[:300]}", shown)
        return None

    def wire(self) -> Outcome:
        """Bytes on a socket that are not quite HTTP."""
        rng = self._rng
        body = json.dumps(
            {"model": self._names[0], "prompt": "the", "prompts": ["the"], "stream": True, "max_tokens": 400}
        ).encode()
        path = rng.choice(["/v1/completions", f"/v1/runs/{self._names[0]}/generate", "/translate", "/detect"])
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
        length = f"Content-Length: {len(body)}\r\n\r\n".encode()
        cases: dict[str, list[bytes | float | None]] = {  # bytes are sent, numbers are pauses, None closes our half
            "half a body": [head + length + body[:20], None],
            "slow body": [head + length, *[part for byte in body[:8] for part in (bytes([byte]), 0.2)]],
            "no body": [head + length],
            "half a head": [head[:40], None],
            "slow head": [part for byte in head[:8] for part in (bytes([byte]), 0.2)],
            "stream and away": [head + length + body, 0.02],
            "closed half": [head + length + body, None],
            "large head": [head + b"X-A: " + b"a" * 70_000 + b"\r\n\r\n"],
            "many headers": [head + b"".join(b"X-%d: a\r\n" % number for number in range(3000)) + length + body],
            "wrong length": [head + b"Content-Length: -5\r\n\r\n" + body],
            "two lengths": [head + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + body],
            "huge length": [head + b"Content-Length: 99999999999999999999\r\n\r\n" + body],
            "bad chunks": [head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n"],
            "endless chunks": [head + b"Transfer-Encoding: chunked\r\n\r\n" + b"10\r\n" + b" " * 16 + b"\r\n", 1.3],
            "no protocol": [bytes(rng.randrange(256) for _ in range(200)) + b"\r\n\r\n"],
            "other protocol": [rng.choice([b"GET /info\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])],
            "upgrade": [b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"],
            "pipelined": [b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * 20, None],
            "header with zero": [b"GET /info HTTP/1.1\r\nHost: a\0b\r\nX-Request-ID: \xff\r\n\r\n"],
        }
        name = rng.choice(list(cases))
        return self._exchange(name, cases[name])

    def _exchange(self, name: str, parts: list[bytes | float | None]) -> Outcome:
        kind, answer, end = f"wire: {name}", b"", time.monotonic() + TIMEOUT
        try:
            with socket.create_connection((self._host, int(self._port)), timeout=TIMEOUT) as connection:
                for part in parts:
                    _play(connection, part)
                if name == "stream and away":
                    return Outcome(kind, None)
                while time.monotonic() < end and (new := connection.recv(65536)):
                    answer += new
                    if name not in ("half a body", "slow body") and b"\r\n\r\n" in answer:
                        break
        except TimeoutError:
            return Outcome(kind, None, Finding("no answer, and the connection stays open", kind))
        except OSError:
            return Outcome(kind, None)  # closed by the server
        found = re.match(rb"HTTP/1\.1 (\d+)", answer)
        status = int(found[1]) if found else None
        wrong = status is not None and status >= 500 and status != 503
        return Outcome(kind, status, Finding(f"status {status}: {answer[-300:]!r}", kind) if wrong else None)


def _play(connection: socket.socket, part: bytes | float | None) -> None:
    if part is None:
        connection.shutdown(socket.SHUT_WR)
    elif isinstance(part, bytes):
        connection.sendall(part)
    else:
        time.sleep(part)


def fuzz(url: str, count: int, seed: int, jobs: int) -> list[Outcome]:
    """The outcomes of requests that `jobs` threads send."""

    def work(number: int) -> list[Outcome]:
        fuzzer, rng = Fuzzer(url, seed * 1000 + number), random.Random(seed * 1000 + number)
        choices: list[Callable[[], Outcome]] = [fuzzer.described] * 16 + [fuzzer.raw] * 3 + [fuzzer.wire]
        return [rng.choice(choices)() for _ in range(count // jobs)]

    with ThreadPoolExecutor(jobs) as pool:
        return [outcome for outcomes in pool.map(work, range(jobs)) for outcome in outcomes]


def with_names(document: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The document with the names of the runs, so that requests made from it find them."""
    for schema in document["components"]["schemas"].values():
        if "model" in schema.get("properties", {}):
            schema["properties"]["model"]["enum"] = names
    for item in document["paths"].values():
        for operation in item.values():
            for parameter in operation.get("parameters", []):
                parameter["schema"]["enum"] = names
    return document


def schemathesis(url: str, examples: int) -> str:
    """The output of schemathesis, which checks statuses and schemas of answers."""
    program = shutil.which("schemathesis", path=str(Path(sys.executable).parent)) or shutil.which("schemathesis")
    if program is None:
        return "schemathesis is not installed"
    names = [run["name"] for run in httpx.get(f"{url}/info", timeout=TIMEOUT).json()["runs"]]
    document = with_names(httpx.get(f"{url}/openapi.json", timeout=TIMEOUT).json(), names)
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    options = ["--url", url, "--checks", checks, "--max-examples", str(examples), "--no-color", "--request-timeout", "20"]
    with tempfile.TemporaryDirectory() as directory:  # for its files
        (Path(directory) / "openapi.json").write_text(json.dumps(document))
        result = subprocess.run([program, "run", "openapi.json", *options], capture_output=True, text=True, cwd=directory)
    return result.stdout + result.stderr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="as of `weft serve`")
    parser.add_argument("--languages", action="append", default=[], metavar="NAME=SOURCE,TARGET")
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--jobs", type=int, default=8, help="threads that send")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--schemathesis", type=int, default=0, metavar="N", help="examples per operation of schemathesis")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        log, start = Path(directory) / "log", time.monotonic()
        with serving(arguments.runs, arguments.languages, log) as url:
            outcomes = fuzz(url, arguments.requests, arguments.seed, arguments.jobs)
            if arguments.schemathesis:
                print(schemathesis(url, arguments.schemathesis))
            time.sleep(4)  # for requests that nobody waits for
            alive = httpx.get(f"{url}/readyz", timeout=TIMEOUT).status_code == 200
            metrics = httpx.get(f"{url}/metrics", timeout=TIMEOUT).text
        left = [line for line in metrics.split("\n") if re.match(r"weft_(rows|requests_waiting|requests_running) [1-9]", line)]
        findings = [outcome.finding for outcome in outcomes if outcome.finding is not None] + log_findings(log)
    statuses = Counter("none" if outcome.status is None else str(outcome.status) for outcome in outcomes)
    print(f"{len(outcomes):,} requests in {time.monotonic() - start:.0f} s: {dict(sorted(statuses.items()))}")
    if not alive or left:
        findings.append(Finding("the server is not idle at the end", f"ready: {alive}; {left}"))
    examples = {(finding.problem[:80], finding.request[-120:]): finding for finding in findings}  # one of each kind
    for finding in list(examples.values())[:20]:
        print(f"\n{finding.problem}\n    {finding.request}")
    print(f"{len(findings)} findings")
    raise SystemExit(1 if findings else 0)


if __name__ == "__main__":
    main()
