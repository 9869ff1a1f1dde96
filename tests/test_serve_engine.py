"""The engine of `weft serve`: equal to each request alone, cancelling, limits, failures, new weights."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from serve_runs import ServeRuns, make_runs, random_words

import weft
from weft.decode.options import GenerationConfig
from weft.errors import DataError, UsageError
from weft.serve import Engine, Limits
from weft.serve.errors import Cancelled, NotFound, Overloaded, RunFailed, Unavailable, status_of
from weft.serve.jobs import Chat, Embed, Explain, Generate, Predict, Score
from weft.serve.served_run import fingerprint
from weft.tasks.spec import InvalidInput
from weft.tensors import read_tensors, write_tensors

NAMES = ("lm", "lines", "ngram", "mt", "labels", "tags", "chat")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> ServeRuns:
    return make_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def loaded(runs) -> dict[str, Any]:
    return {name: weft.load(runs.get(name), device="cpu") for name in NAMES}


@pytest.fixture
def engine(runs) -> Iterator[Engine]:
    limits = Limits(max_queue=1000, max_rows=8, max_batch=5)
    with Engine({name: runs.get(name) for name in NAMES}, limits=limits, device="cpu") as engine:
        yield engine


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the condition never became true"
        time.sleep(0.002)


# ---- equality


def same(found: Any, expected: Any, score: float, other_score: float) -> None:
    """Equal outputs, or two that are equally good but for rounding."""
    assert abs(score - other_score) < 1e-4
    assert found == expected or abs(score - other_score) < 1e-6


def generation(rng: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {"max_new_tokens": rng.randint(1, 8)}
    kind = rng.choice(["greedy", "sampled", "beam"])
    if kind == "greedy":
        options["temperature"] = 0
    elif kind == "sampled":
        options |= {"seed": rng.randint(0, 99), "num_samples": rng.randint(1, 3)}
        options |= rng.choice([{}, {"top_p": 0.8}, {"top_k": 5, "temperature": 0.7}, {"min_p": 0.1}])
    else:
        beam_size = rng.randint(1, 4)
        options |= {"beam_size": beam_size, "n_best": rng.randint(1, beam_size)}
        options |= rng.choice([{}, {"length_penalty": 0.6}])
    options |= rng.choice([{}, {}, {"stop": ["e", "th"]}, {"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 2}])
    return options | rng.choice([{}, {"min_new_tokens": 1}])


def check_generation(run: Any, prompts: list[str], options: dict[str, Any], outputs: Any) -> None:
    for number, (prompt, ranked) in enumerate(zip(prompts, outputs, strict=True)):
        whole = run.generate(prompts, **options)[number] if len(prompts) > 1 else run.generate(prompt, **options)
        for found, expected in zip(ranked, whole.ranked(), strict=True):
            same(found.text, expected.text, found.score, expected.score)
            if found.text == expected.text:
                assert found.finish_reason == expected.finish_reason
                assert [token.text for token in found.tokens] == [run.vocabulary.token_text(t) for t in expected.token_ids]


def prediction(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.5:
        options = {"seed": rng.randint(0, 99), "num_samples": rng.randint(1, 3), "temperature": rng.choice([None, 0.8])}
        return options if options["num_samples"] > 1 or options["temperature"] else {"top_k": 3}
    options = {"beam_size": rng.randint(1, 5), "length_penalty": rng.choice([None, 0.0, 1.5])}
    return options | rng.choice([{}, {"n_best": 1, "patience": 0.0}, {"min_new_tokens": 3}, {"target_prefix": "A"}])


def check_prediction(run: Any, inputs: list[str], options: dict[str, Any], results: list[Any]) -> None:
    for found, expected in zip(results, run.predict(inputs, **options), strict=True):
        for one, other in zip(found.ranked(), expected.ranked(), strict=True):
            same(one.text, other.text, one.score, other.score)


def submit_one(engine: Engine, loaded: dict[str, Any], rng: random.Random) -> Callable[[], None]:
    """Submit a random request; returns the check of its result."""
    name = rng.choice(["lm", "lm", "lines", "ngram", "mt", "mt", "mt", "labels", "tags", "chat", "score"])
    if name in ("lm", "lines", "ngram"):
        prompts = [random_words(rng, 0) for _ in range(rng.choice([1, 1, 2]))]
        options = generation(rng)
        ticket = engine.submit(name, Generate(prompts, GenerationConfig(**options)))
        return lambda: check_generation(loaded[name], prompts, options, ticket.result(60))
    if name == "chat":
        messages = [("user", f"Repeat {random_words(rng, 1, 2)}.")]
        options = {"max_new_tokens": 5, "seed": rng.randint(0, 9)}
        ticket = engine.submit(name, Chat(messages, GenerationConfig(**options)))

        def check() -> None:
            chunks = loaded[name].spec.decode.chat(loaded[name], messages, GenerationConfig(**options))
            assert ticket.result(60)[0][0].text == "".join(chunks)

        return check
    if name == "mt":
        inputs = ["".join(rng.choices("abcdef", k=rng.randint(0, 6))) for _ in range(rng.choice([1, 1, 3]))]
        options = prediction(rng)
        ticket = engine.submit(name, Predict(inputs, loaded[name].spec.predict_options(**options)))
        return lambda: check_prediction(loaded[name], inputs, options, ticket.result(60))
    run = loaded["lines" if name == "score" else name]
    inputs = [random_words(rng) for _ in range(rng.randint(1, 7))]
    if name == "score":
        ticket = engine.submit("lines", Score(inputs))
        return lambda: (
            [
                pytest.approx(expected.log_prob, abs=1e-4) == found.log_prob
                for found, expected in zip(ticket.result(60), run.score(inputs), strict=True)
            ]
            == [True] * len(inputs)
            or pytest.fail("scores differ")
        )
    ticket = engine.submit(name, Predict(inputs, run.spec.predict_options()))

    def check_labels() -> None:
        for found, expected in zip(ticket.result(60), run.predict(inputs), strict=True):
            if name == "tags":
                assert (found.words, found.tags) == (expected.words, expected.tags)
            else:
                assert found.labels == expected.labels
                assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-5)

    return check_labels


def test_mixed_requests_get_what_they_would_get_alone(engine, loaded):
    rng = random.Random(1)
    checks: list[Callable[[], None]] = []

    def submit(seed: int) -> None:
        own = random.Random(seed)
        for _ in range(75):
            checks.append(submit_one(engine, loaded, own))
            time.sleep(own.random() * 0.004)

    threads = [threading.Thread(target=submit, args=(rng.randint(0, 10**6),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(checks) == 300
    for check in checks:
        check()
    assert (engine.num_waiting, engine.num_running, engine.num_rows) == (0, 0, 0)
    batches = engine.counters
    assert sum(batches.batch_inputs.values()) > 1.2 * sum(batches.batches.values())  # inputs were gathered
    assert batches.output_tokens["lm"] > 1.5 * batches.steps["lm"]  # rows shared steps


def test_long_prompts_are_read_in_parts(engine, loaded):
    prompt = "the cat sees " * 60  # more than 700 characters
    for name in ("lm", "lines"):
        found = engine.generate(name, prompt, temperature=0, max_new_tokens=6, repetition_penalty=1.5)[0]
        expected = loaded[name].generate(prompt, temperature=0, max_new_tokens=6, repetition_penalty=1.5)
        assert found.text == expected.text
        assert found.log_prob == pytest.approx(expected.log_prob, abs=1e-4)


def test_streams_are_the_text_of_generate(engine, loaded):
    chunks = list(engine.stream("lines", "the", seed=4, max_new_tokens=12))
    expected = loaded["lines"].generate("the", seed=4, max_new_tokens=12)
    assert "".join(chunk.text for chunk in chunks) == expected.text
    assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + [expected.finish_reason]
    beams = list(engine.stream("lines", "the", beam_size=3, n_best=2, max_new_tokens=4))
    assert [(chunk.sample, bool(chunk.finish_reason)) for chunk in beams] == [(0, True), (1, True)]


def test_most_probable_tokens(engine, loaded):
    output = engine.generate("lm", "the", temperature=0, max_new_tokens=4, num_top=3)[0]
    for token in output.tokens:
        assert token.top[0] == (token.text, pytest.approx(token.log_prob))
        assert [log_prob for _, log_prob in token.top] == sorted((value for _, value in token.top), reverse=True)
        assert len(token.top) == 3
    assert all(not token.top for token in engine.generate("lm", "the", temperature=0, max_new_tokens=4)[0].tokens)


def test_calls_are_those_of_a_run(engine, loaded):
    assert engine.predict("labels", "the cat").labels == loaded["labels"].predict("the cat").labels
    assert len(engine.predict("labels", ["the cat", "a dog"])) == 2
    assert [scored.text for scored in engine.score("lines", ["a", "b"])] == ["a", "b"]
    assert engine.embed("labels", ["a dog"])[0] == pytest.approx(loaded["labels"].embed(["a dog"])[0], abs=1e-6)
    assert engine.chat("chat", [("user", "Repeat apple.")], max_new_tokens=3)[0].finish_reason in ("length", "eos")
    results = engine.try_predict("mt", ["abc", "x" * 40])
    assert results[0].text == loaded["mt"].predict("abc").text
    assert isinstance(results[1], InvalidInput)
    with pytest.raises(DataError, match="line 1: "):
        engine.predict("mt", "x" * 40)


def test_alignments_and_prefixes_of_single_inputs(engine, loaded):
    options = {"target_prefixes": ["A", "B"], "return_alignments": True}
    found = engine.predict("mt", ["abc", "de"], **options)
    expected = loaded["mt"].predict(["abc", "de"], **options)
    assert [each.text for each in found] == [each.text for each in expected]
    assert all(each.alignment is not None for each in found)


def test_explanations_name_the_run_and_not_its_path(engine, loaded):
    explanation = engine.explain("lm", "the cat", "surprisal")
    assert explanation.data == loaded["lm"].explain("the cat", "surprisal").data
    assert str(loaded["lm"].path) not in explanation.title
    with pytest.raises(UsageError, match="view: unknown view 'x'"):
        engine.explain("lm", "the cat", "x")


# ---- limits, cancelling, failures


def test_an_explanation_does_not_hold_up_others(runs, monkeypatch):
    monkeypatch.setattr("weft.explain.beam_search.MAX_NODES", 10**9)
    with Engine({"lm": runs.get("lm")}, limits=Limits(explain_seconds=0.3), device="cpu") as engine:
        start = time.monotonic()
        slow = engine.submit("lm", Explain("the", "beam-search", {"beam_size": 50, "max_new_tokens": 10**6}))
        with pytest.raises(Unavailable, match=r"run lm: the explanation is not ready after [01] seconds; use a shorter text"):
            slow.result(30)
        assert engine.explain("lm", "the", "surprisal").data
        assert time.monotonic() - start < 10


def test_the_end_does_not_wait_for_a_call_that_takes_long(runs, monkeypatch):
    monkeypatch.setattr("weft.serve.engine.JOIN_SECONDS", 0.1)
    end, started = threading.Event(), threading.Event()
    engine = Engine({"labels": runs.get("labels")}, device="cpu")

    def wait(*_: Any) -> list[Any]:
        started.set()
        end.wait(30)
        return []

    monkeypatch.setattr("weft.serve.work.compute", wait)
    ticket = engine.submit("labels", Embed(["the"]))
    assert started.wait(10)
    start = time.monotonic()
    engine.close()
    assert time.monotonic() - start < 5
    with pytest.raises(Unavailable, match="is stopping"):
        ticket.result(0)
    end.set()


def test_an_engine_that_no_run_uses_is_refused(runs):
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    with pytest.raises(UsageError, match="engine: 'ctranslate2' is not used: there is no encoder-decoder; remove it"):
        Engine({"labels": runs.get("labels")}, device="cpu", engine="ctranslate2")


def test_unknown_runs_and_operations(engine):
    with pytest.raises(NotFound, match="run: unknown run 'label'; did you mean 'labels'"):
        engine.generate("label", "")
    with pytest.raises(NotFound, match="run labels: generate is not available for a classifier; choose from predict, embed"):
        engine.generate("labels", "")
    with pytest.raises(UsageError, match="runs: there is no run to serve"):
        Engine({})
    with pytest.raises(UsageError, match="options: expected Options, got GenerationConfig"):
        engine.submit("labels", Predict(["a"], GenerationConfig())).result(10)


def test_cancelled_streams_free_their_rows(runs):
    with Engine({"lm": runs.get("lm")}, limits=Limits(max_rows=16, max_queue=300), device="cpu") as engine:
        tickets, first = [], threading.Event()
        for seed in range(200):
            options = GenerationConfig(max_new_tokens=10_000, seed=seed)
            tickets.append(engine.submit("lm", Generate(["the"], options), on_event=lambda _: first.set()))
        assert first.wait(10)
        for ticket in tickets:
            ticket.cancel()
        wait_until(lambda: all(ticket.has_ended for ticket in tickets))
        assert (engine.num_rows, engine.num_waiting, engine.num_running) == (0, 0, 0)
        assert not engine.served("lm").tickets()
        assert engine.counters.requests["lm", "generate", "cancelled"] == 200
        assert engine.generate("lm", "the", max_new_tokens=2)[0].finish_reason == "length"
        with pytest.raises(Cancelled, match="run lm: the request was given up"):
            tickets[0].result(0)


def test_leaving_a_stream_gives_it_up(engine):
    for _ in engine.stream("lm", "the", max_new_tokens=10_000):
        break
    wait_until(lambda: engine.num_rows == 0)


def test_a_full_queue_refuses(runs):
    with Engine({"lm": runs.get("lm")}, limits=Limits(max_rows=1, max_queue=2), device="cpu") as engine:
        long = GenerationConfig(max_new_tokens=10_000)
        tickets = [engine.submit("lm", Generate(["the"], long))]
        wait_until(lambda: engine.num_rows == 1)
        tickets += [engine.submit("lm", Generate(["the"], long)) for _ in range(2)]
        with pytest.raises(Overloaded, match="server: 2 requests wait already; try again later") as caught:
            engine.submit("lm", Generate(["the"], long))
        assert caught.value.retry_after >= 1
        assert engine.counters.refused == 1
        for ticket in tickets:
            ticket.cancel()


def test_requests_take_turns(runs):
    """A request with many prompts does not keep others from the rows."""
    with Engine({"lm": runs.get("lm")}, limits=Limits(max_rows=2), device="cpu") as engine:
        many = engine.submit("lm", Generate(["the"] * 60, GenerationConfig(max_new_tokens=20)))
        wait_until(lambda: engine.num_rows > 0)
        few = engine.submit("lm", Generate(["the"], GenerationConfig(max_new_tokens=2)))
        few.result(30)
        assert not many.has_ended
        many.cancel()


def test_deadlines(runs):
    with Engine({"lm": runs.get("lm")}, limits=Limits(request_seconds=0.2), device="cpu") as engine:
        start = time.monotonic()
        with pytest.raises(Unavailable, match=r"run lm: not ready after 0.2 seconds; ask for less text"):
            engine.generate("lm", "the", max_new_tokens=10**6)
        assert time.monotonic() - start < 5
        assert engine.num_rows == 0
        slow = engine.submit("lm", Generate(["the"], GenerationConfig(max_new_tokens=10**6)))
        with pytest.raises(Unavailable, match=r"run lm: no result after 0\.01 seconds"):
            slow.result(0.01)


def test_failures_of_a_model_fail_its_requests_alone(engine, monkeypatch):
    lm = engine.served("lm").run.model
    stepper = type(lm).stepper

    def fail_with(error):
        monkeypatch.setattr(type(lm), "stepper", lambda model: lambda *args: (_ for _ in ()).throw(error))

    fail_with(RuntimeError("boom"))
    with pytest.raises(RunFailed, match="run lm: internal error; the log of the server has the details") as caught:
        engine.generate("lm", "the", max_new_tokens=3)
    assert status_of(caught.value) == 500
    fail_with(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    with pytest.raises(Unavailable, match="run lm: not enough memory; use less or shorter text"):
        engine.generate("lm", "the", max_new_tokens=3)
    monkeypatch.setattr(type(lm), "stepper", stepper)
    assert engine.generate("lm", "the", max_new_tokens=3)
    with torch.no_grad():
        lm.head.weight.fill_(float("nan")) if "head" in dir(lm) else next(lm.parameters()).fill_(float("nan"))
    with pytest.raises(RunFailed, match="run lm: "):
        engine.generate("lm", "the", max_new_tokens=3)
    assert engine.predict("labels", "the cat").labels  # the others are served


def test_a_bad_input_in_a_batch_fails_alone(engine, monkeypatch):
    run = engine.served("labels").run
    embed = run.spec.embed

    def picky(run: Any, texts: Any, pooling: str, progress: Any) -> Any:
        if "bad" in texts:
            raise DataError("text", "is bad")
        time.sleep(0.01)
        return embed(run, texts, pooling, progress)

    object.__setattr__(run.spec, "embed", picky)
    try:
        tickets = [engine.submit("labels", Embed([text])) for text in ("a", "b", "bad", "c")]
        for ticket in tickets[:2] + tickets[3:]:
            assert len(ticket.result(10)) == 1
        with pytest.raises(DataError, match="text: is bad"):
            tickets[2].result(10)
    finally:
        object.__setattr__(run.spec, "embed", embed)


def test_an_explanation_that_nobody_waits_for_ends(engine):
    ticket = engine.submit("lm", Explain("the cat sees " * 20, "attribution", {"method": "occlusion"}))
    wait_until(lambda: ticket.timing.started is not None)
    ticket.cancel()
    start = time.monotonic()
    with pytest.raises(Cancelled):
        ticket.result(20)
    assert time.monotonic() - start < 5


def test_the_end_of_an_engine_ends_requests(runs):
    engine = Engine({"lm": runs.get("lm")}, device="cpu")
    short = engine.submit("lm", Generate(["the"], GenerationConfig(max_new_tokens=30)))
    long = engine.submit("lm", Generate(["the"], GenerationConfig(max_new_tokens=10**6)))
    engine.close(1.0)
    assert short.result(0)
    with pytest.raises(Unavailable, match="server: is stopping; try again later"):
        long.result(0)
    with pytest.raises(Unavailable, match="server: is stopping; try another server"):
        engine.generate("lm", "the")
    assert not engine.is_alive


# ---- new weights


def replace_weights(run_dir: Path, source: Path) -> None:
    temporary = run_dir / "new.tmp"
    shutil.copy(source / "model.safetensors", temporary)
    temporary.replace(run_dir / "model.safetensors")


def test_new_weights_are_loaded_and_damaged_ones_are_not(runs, tmp_path):
    run_dir, other = tmp_path / "lm", tmp_path / "other"
    shutil.copytree(runs.get("lm"), run_dir)
    shutil.copytree(run_dir, other)
    tensors, metadata = read_tensors(other / "model.safetensors")
    write_tensors(other / "model.safetensors", {name: value * 1.5 for name, value in tensors.items()}, metadata)
    new = weft.load(other, device="cpu").generate("the", temperature=0, max_new_tokens=30)
    log: list[str] = []
    limits = Limits(reload_seconds=0.05)
    with Engine({"lm": run_dir}, limits=limits, device="cpu", log=log.append) as engine:
        old = engine.generate("lm", "the", temperature=0, max_new_tokens=30)[0]
        assert old.log_prob != pytest.approx(new.log_prob)
        running = engine.submit("lm", Generate(["the"], GenerationConfig(max_new_tokens=1200, seed=1)))
        wait_until(lambda: engine.num_rows == 1)
        before = engine.served("lm")
        replace_weights(run_dir, other)
        wait_until(lambda: engine.served("lm") is not before)
        assert log == ["run lm: new weights loaded"]
        assert engine.generate("lm", "the", temperature=0, max_new_tokens=30)[0].log_prob == pytest.approx(
            new.log_prob, abs=1e-4
        )
        assert not running.has_ended
        expected = weft.load(runs.get("lm"), device="cpu").generate("the", max_new_tokens=1200, seed=1)
        assert running.result(60)[0][0].text == expected.text  # with the old weights
        content = (run_dir / "model.safetensors").read_bytes()
        (run_dir / "model.safetensors").write_bytes(content[: len(content) // 2])
        wait_until(lambda: len(log) == 2)
        assert "run lm: new files cannot be loaded, the old weights stay: " in log[1]
        assert "model.safetensors" in log[1]
        assert engine.generate("lm", "the", temperature=0, max_new_tokens=30)[0].log_prob == pytest.approx(
            new.log_prob, abs=1e-4
        )
        assert dict(engine.counters.reloads) == {("lm", "ok"): 1, ("lm", "error"): 1}


def test_ctranslate2_searches_for_encoder_decoders(runs, loaded):
    """Outputs equal those of weft; other models and samples are computed by weft."""
    pytest.importorskip("ctranslate2")
    rng = random.Random(4)
    sources = [" ".join(rng.choice("abcd") for _ in range(rng.randint(1, 6))) for _ in range(12)]
    expected = loaded["mt"].predict(sources, n_best=2)
    names = {"mt": runs.get("mt"), "labels": runs.get("labels")}
    with Engine(names, device="cpu", engine="ctranslate2", quantization="float32") as engine:
        found = engine.predict("mt", sources, n_best=2)
        sampled = engine.predict("mt", sources[0], temperature=1.0, seed=3)
        assert engine.served("mt").info["engine"].startswith("ctranslate2")
        assert engine.served("labels").info["engine"] == "torch"
    assert [output.text for output in found] == [output.text for output in expected]
    assert sampled.text == loaded["mt"].predict(sources[0], temperature=1.0, seed=3).text


def test_an_unknown_engine_is_refused(runs):
    with pytest.raises(UsageError, match="unknown engine 'tensorrt'"):
        Engine({"mt": runs.get("mt")}, engine="tensorrt")


def test_messages_do_not_name_the_place_of_a_run(tmp_path):
    """An unknown word is named with the run, but without its directory on this machine."""
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat and a dog sat by the old red rug in our small green house\n" * 20)
    values = {"task": "word-vectors", "data": {"train": str(text)}, "model": {"arch": "ppmi", "vector_size": 4}}
    weft.train(values, output_dir=tmp_path / "vectors")
    with Engine({"v": tmp_path / "vectors"}, device="cpu") as engine:
        (result,) = engine.try_predict("v", ["zebra"])
    assert isinstance(result, InvalidInput) and "zebra" in result.reason and str(tmp_path) not in result.reason


def test_the_end_waits_for_a_run_that_is_loaded(runs, monkeypatch):
    """PyTorch aborts a process that ends while one of its threads computes."""
    is_loading = threading.Event()

    def slow(path: Path) -> Any:
        is_loading.set()
        time.sleep(0.3)
        return fingerprint(path)

    with Engine({"lm": runs.get("lm")}, limits=Limits(reload_seconds=0.01), device="cpu") as engine:
        monkeypatch.setattr("weft.serve.reload.fingerprint", slow)
        assert is_loading.wait(10)
    assert not engine.is_busy


def test_an_engine_that_ends_loads_no_run(runs, tmp_path):
    """Not while it waits for running requests either."""
    path = shutil.copytree(runs.get("lm"), tmp_path / "lm")
    engine = Engine({"lm": path}, limits=Limits(reload_seconds=0.02), device="cpu")
    endless = engine.submit("lm", Generate([""], GenerationConfig(max_new_tokens=100_000)))
    wait_until(lambda: endless.output_tokens > 0)
    closing = threading.Thread(target=engine.close, args=(0.5,))
    closing.start()
    wait_until(lambda: not engine.is_alive)
    model = path / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    closing.join()
    assert not engine.counters.reloads and not engine.is_busy
