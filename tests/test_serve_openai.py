"""OpenAI's API of `weft serve`, with OpenAI's own client."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from serve_runs import ServeRuns, shared_runs

import weft
from weft.serve import Engine, Limits
from weft.serve import openai as dialect
from weft.serve.access_log import Log
from weft.serve.call import Services, check_sizes
from weft.serve.errors import TooLarge
from weft.serve.http import create_app, create_services
from weft.serve.jobs import TokenRecord
from weft.serve.openai_records import offsets, visible
from weft.serve.server import bind, serve

NAMES = ("lm", "lines", "chat", "labels")
KEY = "a-key-of-tests"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> ServeRuns:
    return shared_runs(tmp_path_factory.getbasetemp())


class Server:
    """A server in a thread, and clients of it."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        self.engine = engine
        self.log: list[dict[str, Any]] = []
        self.services: Services = create_services(engine, log=self.log.append, **options)
        self._stop, listener = threading.Event(), bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        app = create_app(self.services, tables=[dialect.ROUTES])
        arguments = (app, self.services, listener, Log(lambda line: None), self._stop.is_set)
        self._thread = threading.Thread(target=serve, args=arguments)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def client(self, key: str = KEY) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/{path}", json=body, headers={"authorization": f"Bearer {KEY}"}, timeout=30)


@pytest.fixture(scope="module")
def server(runs) -> Iterator[Server]:
    limits = Limits(max_text_chars=3000, max_texts=40, max_new_tokens=100_000, max_body_bytes=100_000)
    engine = Engine({name: runs.get(name) for name in NAMES}, limits=limits, device="cpu")
    server = Server(engine, keys=[KEY])
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def client(server) -> Iterator[openai.OpenAI]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def lm(runs) -> Any:
    return weft.load(runs.get("lm"), device="cpu")


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the condition never became true"
        time.sleep(0.005)


# ---- models


def test_models(client):
    listed = client.models.list()
    assert [model.id for model in listed] == list(NAMES)
    assert listed.data[0].owned_by == "weft"
    assert abs(listed.data[0].created - time.time()) < 3600
    assert client.models.retrieve("chat").id == "chat"
    with pytest.raises(openai.NotFoundError, match="unknown model 'chatt'; did you mean 'chat'"):
        client.models.retrieve("chatt")


# ---- completions


def test_completions_equal_those_of_the_run(client, lm):
    prompts = ["the cat", "a"]
    expected = lm.generate(prompts, max_new_tokens=12, num_samples=2, temperature=0.9, top_p=0.8, seed=5)
    reply = client.completions.create(
        model="lm", prompt=prompts, max_tokens=12, n=2, temperature=0.9, top_p=0.8, seed=5, presence_penalty=0, user="somebody"
    )
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in reply.choices] == [each.text for best in expected for each in best.ranked()]
    assert {choice.finish_reason for choice in reply.choices} == {"length"}
    assert (reply.object, reply.model, reply.choices[0].logprobs) == ("text_completion", "lm", None)
    tokens = sum(1 + len(lm.vocabulary.encode(prompt)) for prompt in prompts)
    opening = len(lm.predictor.frame.bos_ids or [0])
    assert reply.usage.prompt_tokens == tokens + 2 * (opening - 1)
    assert (reply.usage.completion_tokens, reply.usage.total_tokens) == (48, reply.usage.prompt_tokens + 48)


def test_prompts_of_every_type_are_continued_alike(client, lm):
    ids = lm.vocabulary.encode("the cat").tolist()
    texts = set()
    for prompt in ("the cat", ["the cat"], ids, [ids]):
        texts.add(client.completions.create(model="lm", prompt=prompt, max_tokens=8, temperature=0).choices[0].text)
    assert len(texts) == 1
    two = client.completions.create(model="lm", prompt=[ids, ids[:1]], max_tokens=8, temperature=0, echo=True)
    assert two.choices[0].text == "the cat" + texts.pop()
    assert two.choices[1].text.startswith(lm.vocabulary.decode(ids[:1]))
    begun = client.completions.create(model="lines", prompt=[1, 5], max_tokens=4, temperature=0, echo=True)
    assert begun.usage.prompt_tokens == 2  # the BOS token is not added again
    nothing: Any = openai.omit
    assert client.completions.create(model="lm", prompt=nothing, max_tokens=2).usage.completion_tokens == 2


def test_greedy_outputs_are_copied(client):
    reply = client.completions.create(model="lm", prompt=["the", "a"], n=3, temperature=0, max_tokens=5, seed=-3)
    texts = [choice.text for choice in reply.choices]
    assert texts[:3] == [texts[0]] * 3
    assert texts[3:] == [texts[3]] * 3
    assert reply.usage.completion_tokens == 10
    same = client.completions.create(model="lm", prompt="the", top_p=0, max_tokens=5)
    assert same.choices[0].text == texts[0]


def test_seeds(client):
    def text(seed: Any) -> str:
        return client.completions.create(model="lm", prompt="the", max_tokens=30, seed=seed).choices[0].text

    assert text(-7) == text(-7)
    assert text(openai.omit) != text(openai.omit)


def test_stop(client):
    full = client.completions.create(model="lm", prompt="the", max_tokens=30, seed=1).choices[0].text
    stop = full[8:12]
    assert full.index(stop) == 8
    for stops in (stop, [stop, "never"]):
        reply = client.completions.create(model="lm", prompt="the", max_tokens=30, seed=1, stop=stops, logprobs=0)
        choice = reply.choices[0]
        assert (choice.text, choice.finish_reason) == (full[: full.index(stop)], "stop")
        assert "".join(choice.logprobs.tokens).startswith(choice.text)
        assert choice.logprobs.text_offset[-1] < len(choice.text)


def test_logprobs(client, lm):
    reply = client.completions.create(model="lm", prompt="the", max_tokens=6, seed=1, logprobs=3)
    logprobs = reply.choices[0].logprobs
    text = reply.choices[0].text
    assert "".join(logprobs.tokens) == text
    assert logprobs.text_offset == [sum(map(len, logprobs.tokens[:index])) for index in range(6)]
    assert all(len(top) == 3 for top in logprobs.top_logprobs)
    (expected,) = lm.generate(["the"], max_new_tokens=6, seed=1)
    assert sum(logprobs.token_logprobs) == pytest.approx(expected.log_prob, abs=1e-4)
    for token, log_prob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert top.get(token, log_prob) == pytest.approx(log_prob, abs=1e-5)
        assert log_prob <= max(top.values()) + 1e-6
    plain = client.completions.create(model="lm", prompt="the", max_tokens=6, seed=1, logprobs=0).choices[0].logprobs
    assert plain.top_logprobs is None
    assert plain.token_logprobs == pytest.approx(logprobs.token_logprobs, abs=1e-5)


def test_echo_with_log_probabilities_scores_the_prompt(client, runs):
    """The log-probabilities of a line are those of `weft score`, and the continuation is that without `echo`."""
    run, text = weft.load(runs.get("lines"), device="cpu"), "the cat sees"
    scored = run.score(text)
    plain = client.completions.create(model="lines", prompt=text, max_tokens=5, seed=4)
    reply = client.completions.create(model="lines", prompt=[text, "a"], max_tokens=5, seed=4, echo=True, logprobs=2)
    choice = reply.choices[0]
    assert choice.text == text + plain.choices[0].text
    length = len(scored.tokens) - 1  # without EOS
    assert choice.logprobs.tokens[:length] == scored.tokens[:-1]
    assert choice.logprobs.token_logprobs[:length] == pytest.approx(scored.token_log_probs[:-1], abs=1e-4)
    assert all(choice.text[start:].startswith(token) for token, start in zip(*_tokens(choice), strict=True))
    assert len(choice.logprobs.top_logprobs[0]) == 2
    assert reply.choices[1].text.startswith("a")
    assert reply.usage.completion_tokens <= 10
    only = client.completions.create(model="lines", prompt=text, max_tokens=0, echo=True, logprobs=1)
    assert (only.choices[0].text, only.choices[0].finish_reason, only.usage.completion_tokens) == (text, "length", 0)
    assert only.choices[0].logprobs.token_logprobs == pytest.approx(scored.token_log_probs[:-1], abs=1e-4)


def _tokens(choice: Any) -> tuple[list[str], list[int]]:
    return choice.logprobs.tokens, choice.logprobs.text_offset


def test_best_of(client, lm):
    expected = lm.generate(["the"], max_new_tokens=5, num_samples=6, seed=2)[0].ranked()
    expected = sorted(expected, key=lambda each: -each.log_prob / len(each.token_ids))
    reply = client.completions.create(model="lm", prompt="the", max_tokens=5, best_of=6, n=2, seed=2)
    assert [choice.text for choice in reply.choices] == [each.text for each in expected[:2]]
    assert reply.usage.completion_tokens == 30


def test_places_of_tokens():
    tokens = [TokenRecord(text, -1.0) for text in ("a", "\\xe2\\x82", "\\xac", "cat", "</s>")]
    assert offsets(tokens, "a€ cat") == [0, 1, 1, 3, 6]
    assert offsets(tokens, "a€ cat", 10)[0] == 10
    assert [token.text for token in visible(tokens, "a€ cat", "eos")] == ["a", "\\xe2\\x82", "\\xac", "cat"]
    assert list(visible(tokens, "a€ cat", "length")) == tokens


# ---- streams


def test_streams_of_completions(client):
    options: Any = {"model": "lm", "prompt": ["the", "a"], "n": 2, "max_tokens": 9, "seed": 3, "logprobs": 1}
    whole = client.completions.create(**options)
    texts, tokens, last = [""] * 4, [list[str]() for _ in range(4)], None
    offsets_of = [list[int]() for _ in range(4)]
    for chunk in client.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        last = chunk
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            tokens[choice.index] += choice.logprobs.tokens
            offsets_of[choice.index] += choice.logprobs.text_offset
            assert chunk.usage is None
    assert texts == [choice.text for choice in whole.choices]
    assert tokens == [choice.logprobs.tokens for choice in whole.choices]
    assert offsets_of == [choice.logprobs.text_offset for choice in whole.choices]
    assert (last.choices, last.usage) == ([], whole.usage)


def test_streams_of_greedy_outputs_and_with_echo(client):
    chunks = list(client.completions.create(model="lm", prompt="the", n=2, temperature=0, max_tokens=4, stream=True, echo=True))
    texts = ["".join(choice.text for chunk in chunks for choice in chunk.choices if choice.index == i) for i in range(2)]
    whole = client.completions.create(model="lm", prompt="the", temperature=0, max_tokens=4, echo=True)
    assert texts == [whole.choices[0].text] * 2
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-2:] == ["length"] * 2


def test_32_asynchronous_streams_equal_requests_alone(server, client):
    async def stream(client: openai.AsyncOpenAI, seed: int) -> str:
        text = ""
        async for chunk in await client.completions.create(model="lm", prompt="the", max_tokens=12, seed=seed, stream=True):
            text += chunk.choices[0].text
        return text

    async def all_streams() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
            return await asyncio.gather(*(stream(client, seed) for seed in range(32)))

    found = asyncio.run(all_streams())
    for seed in (0, 7, 31):
        assert found[seed] == client.completions.create(model="lm", prompt="the", max_tokens=12, seed=seed).choices[0].text
    assert len(set(found)) > 20


def test_closing_a_stream_frees_its_rows(server, client):
    stream = client.completions.create(model="lm", prompt="the", max_tokens=90_000, n=3, stream=True)
    next(iter(stream))
    wait_until(lambda: server.engine.num_rows == 3)
    stream.close()
    wait_until(lambda: server.engine.num_rows == 0 and server.engine.num_running == 0)


def test_an_error_after_the_head_is_raised(server, client):
    stream = client.completions.create(model="lm", prompt="the", max_tokens=90_000, stream=True)
    next(iter(stream))
    (ticket,) = server.engine._live.values()
    ticket.seconds = 0.0  # its time is over
    with pytest.raises(openai.APIError, match="run lm: not ready after 0 seconds; ask for less text"):
        for _ in stream:
            pass


# ---- chat


def test_chat(client, runs):
    messages: Any = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Repeat apple."}]
    options: Any = {"model": "chat", "messages": messages, "seed": 1}
    reply = client.chat.completions.create(**options, max_tokens=6, n=2, logprobs=True, top_logprobs=2)
    first, second = reply.choices
    assert (first.message.role, first.index, second.index) == ("assistant", 0, 1)
    assert "".join(entry.token for entry in first.logprobs.content) == first.message.content
    assert all(len(entry.top_logprobs) == 2 for entry in first.logprobs.content)
    assert first.logprobs.content[0].bytes == list(first.logprobs.content[0].token.encode())
    assert reply.usage.completion_tokens >= len(first.message.content)
    with Engine({"chat": runs.get("chat")}, device="cpu") as engine:
        turns = [("system", "Be brief."), ("user", "Repeat apple.")]
        expected = engine.chat("chat", turns, max_new_tokens=6, num_samples=2, seed=1)
    assert [choice.message.content for choice in reply.choices] == [each.text for each in expected]
    deltas = list(client.chat.completions.create(**options, max_completion_tokens=6, stream=True, n=2))
    assert [chunk.choices[0].delta.role for chunk in deltas if chunk.choices[0].index == 0][:2] == ["assistant", None]
    text = "".join(chunk.choices[0].delta.content for chunk in deltas if chunk.choices[0].index == 1)
    assert text == second.message.content


def test_messages_become_turns():
    def turns(*messages: tuple[str, Any]) -> list[tuple[str, str]]:
        return dialect.conversation([dialect.ChatMessage(role=role, content=content) for role, content in messages])  # type: ignore[arg-type]

    parts = [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
    assert turns(("user", "a"), ("user", parts)) == [("user", "a\nb\nc")]
    mixed = turns(("system", "x"), ("user", "a"), ("assistant", "b"), ("system", "y"), ("user", "c"))
    assert mixed == [("system", "x\ny"), ("user", "a"), ("assistant", "b"), ("user", "c")]


# ---- embeddings


def test_embeddings_equal_those_of_the_run(client, runs):
    texts = ["the cat", "a dog sees"]
    expected = weft.load(runs.get("labels"), device="cpu").embed(texts)
    reply = client.embeddings.create(model="labels", input=texts)  # base64
    assert np.array_equal(np.array([item.embedding for item in reply.data], dtype=np.float32), expected)
    plain = client.embeddings.create(model="labels", input=texts, encoding_format="float")
    assert np.array_equal(np.array([item.embedding for item in plain.data], dtype=np.float32), expected)
    assert [item.index for item in reply.data] == [0, 1]
    assert reply.usage.prompt_tokens == reply.usage.total_tokens > 3
    single = client.embeddings.create(model="labels", input="the cat").data[0].embedding
    assert single == pytest.approx(expected[0].tolist(), abs=1e-6)


# ---- errors


@pytest.mark.parametrize(
    ("options", "message", "param"),
    [
        ({"presence_penalty": 0.5}, "presence_penalty: is not available; leave it out", "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias: is not available; leave it out", "logit_bias"),
        ({"max_tokens": 100_001}, "max_tokens: 100,001 is more than the limit of 100,000", "max_tokens"),
        ({"n": 17}, "n: 17 is more than the limit of 16", "n"),
        ({"best_of": 17}, "n: 17 is more than the limit of 16", "n"),
        ({"n": 0}, "n: must be at least 1, got 0", "n"),
        ({"n": 2, "best_of": 1}, "best_of: must be at least `n` (2), got 1", "best_of"),
        ({"best_of": 2, "stream": True}, "best_of: cannot be combined with `stream`", "best_of"),
        ({"max_tokens": 0, "stream": True}, "max_tokens: 0 cannot be combined with `stream`", "max_tokens"),
        (
            {"logprobs": 0, "echo": True, "stream": True},
            "logprobs: cannot be combined with `echo` and `stream`",
            "logprobs",
        ),
        ({"temperature": "hot"}, "temperature: expected a number, got 'hot'", "temperature"),
        ({"logprobs": 6}, "logprobs: must be at most 5, got 6", "logprobs"),
        ({"prompt": []}, "prompt: must not be empty", "prompt"),
        ({"prompt": [2**40], "echo": True}, "prompt: 1099511627776 is not a token ID; use 0 to", "prompt"),
        ({"prompt": [100_000]}, "prompt: 100000 is not a token ID; use 0 to", "prompt"),
        (
            {"prompt": [2], "echo": True, "logprobs": 1},
            "prompt: 2, the end of a text, cannot be scored in the middle of one",
            "prompt",
        ),
        ({"prompt": "\0"}, "prompt 1: ", None),
        ({"top_q": 1}, "top_q: unknown option; did you mean 'top_p'", None),
        ({"stop": ""}, "stop: must not be empty", "stop"),
        ({"stream_options": {"x": 1}}, "stream_options.x: unknown option", None),
    ],
)
def test_bad_requests(client, options, message, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{"model": "lm", "prompt": "the", "extra_body": options})
    body: Any = caught.value.body
    assert body["message"].startswith(message)
    assert (body["type"], body["param"]) == ("invalid_request_error", param)


def test_numbers_of_more_than_64_bits(server):
    for number in (1 << 64, -(10**400), [{"a": 1 << 70}]):
        reply = server.post("runs/lm/generate", prompts=["a"], options={"max_new_tokens": number})
        assert (reply.status_code, reply.json()["error"]["message"]) == (422, "body: a number has more than 64 bits")
    text = "1" * 30
    assert server.post("completions", model="lm", prompt=text, seed=(1 << 64) - 1, max_tokens=1).status_code == 200


def test_nulls_ask_for_nothing(server):
    names = ("max_tokens", "logprobs", "stop", "suffix", "logit_bias", "seed", "n", "stream", "stream_options", "best_of", "x")
    reply = server.post("completions", model="lm", prompt="the", **dict.fromkeys(names))
    assert reply.json()["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("embeddings", {"model": "labels", "input": "a", "dimensions": 3}, "dimensions: is not available; leave it out"),
        ("embeddings", {"model": "labels", "input": []}, "input: must not be empty"),
        ("embeddings", {"model": "labels", "input": [[1, 2]]}, "input: expected"),
        ("chat/completions", {"model": "chat", "messages": []}, "messages: the first and the last message must be of the user"),
        (
            "chat/completions",
            {"model": "chat", "messages": [{"role": "user", "content": "a"}], "top_logprobs": 1},
            "top_logprobs: requires `logprobs`",
        ),
        (
            "chat/completions",
            {"model": "chat", "messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 21},
            "top_logprobs: 21 is more than the limit of 20",
        ),
        (
            "chat/completions",
            {"model": "chat", "messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]},
            "tools: is not available; leave it out",
        ),
        ("completions", {"model": "chat", "prompt": [5]}, "prompt: the model reads prompts in a template, not token IDs"),
        (
            "completions",
            {"model": "chat", "prompt": "a", "echo": True, "logprobs": 1},
            "echo: the model reads prompts in a template, which has no log-probabilities; leave out `logprobs`",
        ),
    ],
)
def test_other_bad_requests(server, path, body, message):
    reply = server.post(path, **body)
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error")
    assert reply.json()["error"]["message"].startswith(message), reply.text


def test_every_error_is_an_exception_of_the_client(server, client, monkeypatch):
    with server.client("another") as stranger, pytest.raises(openai.AuthenticationError) as caught:
        stranger.models.list()
    assert caught.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="lmm", prompt="a")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    expected = "model: chat is not available for 'lm', a language model; choose from chat"
    with pytest.raises(openai.NotFoundError, match=expected):
        client.chat.completions.create(model="lm", messages=[{"role": "user", "content": "a"}])
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="lm", input="a")
    for prompt in ("a" * 3001, ["a"] * 41, [5] * 3001, "a" * 100_000):
        with pytest.raises(openai.APIStatusError) as large:
            client.completions.create(model="lm", prompt=prompt)
        assert (large.value.status_code, large.value.code) == (413, "request_too_large")
    monkeypatch.setattr(dialect, "check_texts", lambda *arguments: 1 / 0)
    with pytest.raises(openai.InternalServerError, match="server: internal error") as failed:
        client.completions.create(model="lm", prompt="a")
    assert failed.value.status_code == 500


def test_a_full_server_and_one_that_is_late(runs):
    limits = Limits(max_rows=1, max_queue=1, request_seconds=1.0, max_new_tokens=10**6)
    server = Server(Engine({"lm": runs.get("lm")}, limits=limits, device="cpu"))
    errors = list[openai.APIStatusError]()

    def ask() -> None:
        with server.client() as client:
            try:
                client.completions.create(model="lm", prompt="the", max_tokens=10**6)
            except openai.APIStatusError as error:
                errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        for thread in threads:
            thread.join()
    finally:
        server.close()
    kinds = {type(error): error for error in errors}
    assert set(kinds) == {openai.RateLimitError, openai.InternalServerError}
    assert kinds[openai.RateLimitError].code == "rate_limit_exceeded"
    assert kinds[openai.InternalServerError].status_code == 503
    assert all(int(error.response.headers["retry-after"]) >= 1 for error in errors)


def test_a_stream_ends_although_the_engine_is_busy(runs, monkeypatch):
    server = Server(Engine({"lm": runs.get("lm")}, limits=Limits(request_seconds=0.1), device="cpu"))
    monkeypatch.setattr("weft.serve.call.GRACE_SECONDS", 0.1)
    monkeypatch.setattr("weft.serve.work.Worker.place", lambda worker, ticket, finish: time.sleep(1.5))
    try:
        with (
            server.client() as client,
            pytest.raises(openai.InternalServerError, match=r"run lm: not ready after 0\.2 seconds"),
        ):
            client.completions.create(model="lm", prompt="the", stream=True)
    finally:
        server.close()


def test_a_connection_whose_body_never_ends_is_closed(runs):
    """Also if the client sends more after the answer."""
    server = Server(Engine({"lm": runs.get("lm")}, limits=Limits(body_seconds=0.3), device="cpu"))
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    try:
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=10) as connection:
            connection.sendall(head)
            assert connection.recv(65536).startswith(b"HTTP/1.1 408")
            connection.sendall(b" ")
            while connection.recv(65536):
                pass
            start = time.monotonic()
            with pytest.raises(OSError, match=r"reset|Broken pipe"):
                while time.monotonic() < start + 10:
                    connection.sendall(b" ")
                    time.sleep(0.05)
    finally:
        server.close()


def test_large_wrong_bodies_are_refused_quickly():
    """A message for each of a million wrong values would take seconds and gigabytes."""
    from weft.config import parse_config
    from weft.errors import ConfigError
    from weft.serve.schemas import EmbedRequest, GenerateRequest

    wrong = [1, "a"] * 500_000
    start = time.process_time()
    for body, name in [
        (dialect.CompletionRequest, "prompt"),
        (dialect.CompletionRequest, "stop"),
        (dialect.EmbeddingRequest, "input"),
        (dialect.ChatCompletionRequest, "messages"),
        (GenerateRequest, "prompts"),
        (EmbedRequest, "texts"),
    ]:
        with pytest.raises(ConfigError, match=f"{name}: expected"):
            parse_config(body, {"model": "lm", name: wrong} if "model" in body.model_fields else {name: wrong}, prefix="")
    with pytest.raises(TooLarge, match="body: an object has 1,001 fields, more than 1,000"):
        check_sizes({"messages": [{str(number): 1 for number in range(1001)}]})
    with pytest.raises(TooLarge, match=r"options\.stop: 1,001 values are more than 1,000"):
        check_sizes({"options": {"stop": [1] * 1001}})
    check_sizes({"options": {"stop": [1] * 1000}, "inputs": wrong})
    assert time.process_time() - start < 3


def test_prompts_with_log_probabilities_are_not_searched(runs):
    from weft.decode.options import GenerationConfig
    from weft.errors import UsageError
    from weft.serve.jobs import Generate

    with Engine({"lm": runs.get("lm")}, device="cpu") as engine:
        job = Generate(["a"], GenerationConfig(beam_size=2), scores_prompts=True)
        with pytest.raises(UsageError, match="echo: log-probabilities cannot be combined with `beam_size`"):
            engine.submit("lm", job).result()


def test_pages_may_send_the_headers_of_the_client(server):
    app = create_app(server.services, tables=[dialect.ROUTES], cors_origins=["https://a.example"])

    async def preflight() -> httpx.Response:
        asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, x-stainless-lang"}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            return await client.options("/v1/completions", headers={"origin": "https://a.example", **asked})

    assert "x-stainless-lang" in asyncio.run(preflight()).headers["access-control-allow-headers"]


def test_the_description_has_the_routes(server):
    document = httpx.get(f"{server.url}/openapi.json").json()
    post = document["paths"]["/v1/completions"]["post"]
    assert set(post["responses"]) == {"200", "400", "401", "404", "408", "413", "415", "429", "503"}
    assert post["responses"]["400"]["content"]["application/json"]["schema"]["$ref"].endswith("/OpenAIErrorReply")
    assert document["components"]["schemas"]["CompletionRequest"]["properties"]["echo"]["description"]
