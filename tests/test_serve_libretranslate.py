"""LibreTranslate's API of `weft serve`, with the client of LibreTranslate."""

from __future__ import annotations

import threading
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI
from seq2seq_runs import Seq2SeqRuns
from serve_runs import ServeRuns, shared_runs

import weft
from weft.cli.commands.serve import Serve
from weft.cli.main import main
from weft.errors import UsageError
from weft.serve import Engine, Limits, libretranslate
from weft.serve.access_log import Log
from weft.serve.http import create_app, create_services
from weft.serve.languages import Detector, Languages, Pair, language_name, parse_languages
from weft.serve.server import bind, serve

KEY = "a-key-of-tests"
PAIRS = {"mt": Pair("de", "en"), "lstm": Pair("en", "pt-BR")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> ServeRuns:
    return shared_runs(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def run_dirs(runs) -> dict[str, Path]:
    mt = runs.get("mt")
    pairs: Seq2SeqRuns = runs._pairs
    return {"mt": mt, "lstm": pairs.run_dir("lstm"), "labels": runs.get("labels")}


class Server:
    """A server in a thread."""

    def __init__(self, engine: Engine, pairs: dict[str, Pair], **options: Any) -> None:
        self.engine, self.log = engine, list[dict[str, Any]]()
        services = create_services(engine, log=self.log.append, **options)
        self.languages = Languages(engine, pairs)
        self._stop, listener = threading.Event(), bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        app = create_app(services, tables=[libretranslate.routes(self.languages)])
        arguments = (app, services, listener, Log(lambda line: None), self._stop.is_set)
        self._thread = threading.Thread(target=serve, args=arguments)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def post(self, path: str = "translate", **body: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/{path}", json={"api_key": KEY, **body}, timeout=30)

    def form(self, path: str = "translate", **fields: Any) -> httpx.Response:
        return httpx.post(f"{self.url}/{path}", data={"api_key": KEY, **fields}, timeout=30)


@pytest.fixture(scope="module")
def server(run_dirs) -> Iterator[Server]:
    limits = Limits(max_texts=8, max_text_chars=2000)
    server = Server(Engine(run_dirs, limits=limits, device="cpu"), PAIRS, keys=[KEY])
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def mt(run_dirs) -> Any:
    return weft.load(run_dirs["mt"], device="cpu")


# ---- the client of LibreTranslate


def test_the_client(server, mt, run_dirs):
    client = LibreTranslateAPI(server.url, api_key=KEY)
    assert client.translate("abc", "de", "en") == mt.predict("abc").text
    other = weft.load(run_dirs["lstm"], device="cpu").predict("abc").text
    assert client.translate("abc", "en", "pt-BR") == other  # the run is chosen by the languages
    assert client.languages() == [
        {"code": "de", "name": "German", "targets": ["de", "en"]},
        {"code": "en", "name": "English", "targets": ["en", "pt-BR"]},
        {"code": "pt-BR", "name": "Portuguese", "targets": ["pt-BR"]},
    ]
    found = client.detect("abc fed abc")
    assert {each["language"] for each in found} == {"de", "en", "pt-BR"}
    with pytest.raises(urllib.error.HTTPError, match="400"):
        client.translate("abc", "fr", "en")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        LibreTranslateAPI(server.url, api_key="another").translate("abc", "de", "en")


# ---- translating


def test_lists_give_lists(server, mt):
    reply = server.post(q=["abc", "fd"], source="de", target="en").json()
    assert reply == {"translatedText": [mt.predict("abc").text, mt.predict("fd").text]}


def test_alternatives_are_the_n_best_list(server, mt):
    ranked = [each.text for each in mt.predict("abc", n_best=4, beam_size=5).ranked()]
    reply = server.post(q="abc", source="de", target="en", alternatives=3).json()
    assert [reply["translatedText"], *reply["alternatives"]] == list(dict.fromkeys(ranked))
    assert server.post(q=["abc"], source="de", target="en", alternatives=3).json()["alternatives"] == [reply["alternatives"]]
    assert server.form(q="abc", source="de", target="en", alternatives="3").json() == reply


def test_lines_are_translated_by_themselves(server, mt):
    expected = f"{mt.predict('abc').text}\n\n  \n{mt.predict('f').text}\n"
    assert server.post(q="abc\n\n  \nf\n", source="de", target="en").json()["translatedText"] == expected
    assert server.form(q="abc\r\n\r\n  \r\nf\r\n", source="de", target="en").json()["translatedText"] == expected
    assert server.post(q=[" "], source="de", target="en").json() == {"translatedText": [" "]}


def test_a_language_to_itself_changes_nothing(server):
    assert server.post(q="Xyz", source="en", target="en").json() == {"translatedText": "Xyz"}


def test_forms(server, mt):
    expected = mt.predict("abc").text
    assert server.form(q="abc", source="de", target="en", format="text").json()["translatedText"] == expected
    several = httpx.post(
        f"{server.url}/translate",
        content=f"q=abc&q=abc&source=de&target=en&api_key={KEY}",
        headers={"content-type": libretranslate.FORM},
    )
    assert several.json()["translatedText"] == [expected, expected]
    assert libretranslate.parse_form(b"q=1&q=2&q=3") == {"q": ["1", "2", "3"]}
    in_query = httpx.post(f"{server.url}/translate", params={"q": "abc", "source": "de", "target": "en", "api_key": KEY})
    assert in_query.json()["translatedText"] == expected
    header = {"authorization": f"Bearer {KEY}"}
    with_header = httpx.post(f"{server.url}/translate", json={"q": "abc", "source": "de", "target": "en"}, headers=header)
    assert with_header.json()["translatedText"] == expected


# ---- languages


def test_detection_is_learned_from_the_training_data(server):
    (best, *_) = server.post("detect", q="abcde").json()
    assert (best["language"], best["confidence"] > 60) == ("de", True)  # the other languages have a space after each letter
    reply = server.post(q="abcde", source="auto", target="en").json()
    assert reply["detectedLanguage"] == best
    both = server.post(q=["abcde", "fed"], source="auto", target="en").json()
    assert [each["language"] for each in both["detectedLanguage"]] == ["de", "de"]
    assert server.form("detect", q="中文").json()[0]["confidence"] == 0.0


def test_detector():
    german = ["der Hund läuft über die Straße und sieht nicht auf", "ein Mädchen mit gelbem Hut schreibt einen Brief"] * 3
    english = ["the dog runs across the street and does not look up", "a girl with a yellow hat writes the letter"] * 3
    detector = Detector({"de": german, "en": english})
    for text, language in [
        ("das Mädchen und der Hund", "de"),
        ("the girl and the dog", "en"),
        ("Straße", "de"),
        ("the letter", "en"),
    ]:
        found = detector.detect(text)
        assert found[0].language == language
        assert sum(each.confidence for each in found) == pytest.approx(100, abs=0.02)
    assert detector.detect("der Hund läuft")[0].confidence > detector.detect("n")[0].confidence > 50
    assert [each.confidence for each in detector.detect(" ")] == [0.0, 0.0]
    with pytest.raises(UsageError, match="languages: the training data has too little text of de, en"):
        Detector({"de": ["a"], "en": ["b"]})


def test_detection_without_training_data_is_refused(runs, run_dirs):
    data = runs._pairs.pairs
    data.rename(data.with_suffix(".moved"))
    server = Server(Engine({"mt": run_dirs["mt"]}, device="cpu"), {})
    try:
        reply = httpx.post(f"{server.url}/detect", json={"q": "abc"})
        expected = "source: the language cannot be detected: the training data cannot be read; name the language"
        assert (reply.status_code, reply.json()) == (400, {"error": expected})
        codes = [each["code"] for each in httpx.get(f"{server.url}/languages").json()]
        assert codes == ["source", "target"]  # one run, whose languages have no names
    finally:
        server.close()
        data.with_suffix(".moved").rename(data)


def test_names():
    assert [language_name(code) for code in ("de", "pt-BR", "zh-Hant", "tlh")] == ["German", "Portuguese", "Chinese", "tlh"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["de,en"], "languages: 'de,en' does not name a run; use NAME=SOURCE,TARGET"),
        (["c=de,en"], "languages: unknown run 'c'"),
        (["a=de"], "languages: 'de' is not a pair of languages; use two codes, such as de,en"),
        (["a=de,de"], "languages: 'de,de' is not a pair of languages"),
        (["a=auto,de"], "languages: 'auto,de' is not a pair of languages"),
        (["a=de,en", "a=de,fr"], "languages: run 'a' has two pairs; name each run once"),
        (["a=de,en", "b=de,en"], "languages: two runs translate de,en; serve one of them"),
    ],
)
def test_pairs_that_are_wrong(words, message):
    with pytest.raises(UsageError) as caught:
        parse_languages(words, ["a", "b"])
    assert str(caught.value).startswith(message)


def test_pairs():
    assert parse_languages(["a=de,en", "b=zh-Hant,en"], ["a", "b"]) == {"a": ("de", "en"), "b": ("zh-Hant", "en")}
    assert parse_languages(["de,en"], ["a"]) == {"a": ("de", "en")}


def test_runs_that_do_not_translate(server, run_dirs, capsys):
    with pytest.raises(UsageError, match="languages: run 'labels' is a classifier, which does not translate"):
        Languages(server.engine, {"labels": Pair("de", "en")})
    assert Languages(server.engine, {}).codes == []  # two runs translate, and nobody says what
    assert main(["serve", str(run_dirs["labels"]), "--languages", "x"]) == 2
    assert "--languages: 'x' is not a pair of languages" in capsys.readouterr().err
    words = Serve(runs=["a=b"], languages=["a=de,en"])._words()  # of a worker
    assert words[words.index("--languages") + 1] == "a=de,en"


# ---- errors


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"source": "de", "target": "en"}, "q: required option is missing"),
        ({"q": "", "source": "de", "target": "en"}, "q: must not be empty"),
        ({"q": [], "source": "de", "target": "en"}, "q: must not be empty"),
        ({"q": "a", "target": "en"}, "source: required option is missing"),
        ({"q": "a", "source": "xx", "target": "en"}, "source: xx is not supported; choose from de, en, pt-BR"),
        ({"q": "a", "source": "de", "target": "pt-BR"}, "target: pt-BR is not available as a target language from de"),
        ({"q": "a", "source": "de", "target": "en", "format": "html"}, "format: html format is not supported; use text"),
        ({"q": "a", "source": "de", "target": "en", "alternatives": -1}, "alternatives: must be at least 0, got -1"),
        ({"q": "a", "source": "de", "target": "en", "alternatives": "x"}, "alternatives: expected an integer, got 'x'"),
        ({"q": "a", "source": "de", "target": "en", "alternatives": 16}, "n_best: 17 is more than the limit of 16"),
        ({"q": ["a"] * 9, "source": "de", "target": "en"}, "q: 9 are more than 8"),
        ({"q": "a\n" * 9, "source": "de", "target": "en"}, "lines of q: 9 are more than 8"),
        ({"q": "a" * 2001, "source": "de", "target": "en"}, "q, number 1: 2,001 characters are more than 2,000"),
        ({"q": "a\n" + "b" * 99, "source": "de", "target": "en"}, "q, line 2: "),
    ],
)
def test_bad_requests(server, body, message):
    reply = server.post(**body, unknown=1)
    assert reply.status_code == 400
    assert list(reply.json()) == ["error"]
    assert reply.json()["error"].startswith(message)


def test_other_statuses(server, run_dirs):
    body = {"q": "a", "source": "de", "target": "en"}
    missing = httpx.post(f"{server.url}/translate", json=body)
    assert (missing.status_code, missing.json()) == (403, {"error": "Invalid API key: missing"})
    assert server.post(**body, api_key="another").json() == {"error": "Invalid API key: unknown"}
    assert server.post("detect", q="").json() == {"error": "q: must not be empty"}
    form = {"content-type": libretranslate.FORM}
    invalid = httpx.post(f"{server.url}/translate", content=b"q=%ff", headers=form)
    assert (invalid.status_code, invalid.json()["error"][:25]) == (400, "body: not a valid form: '")
    parts = httpx.post(f"{server.url}/translate", files={"q": b"a"})
    expected = "content-type: expected application/json or application/x-www-form-urlencoded, got multipart/form-data"
    assert (parts.status_code, parts.json()) == (400, {"error": expected})


def test_a_full_server_says_slow_down(run_dirs):
    from weft.serve.errors import Overloaded
    from weft.serve.routes import Failure

    failure = Failure(Overloaded("server", "1 requests wait already", "try again later"), 429, "")
    assert libretranslate.error_body(failure) == {"error": "Slowdown: server: 1 requests wait already; try again later"}


def test_what_needs_no_key(server):
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    settings = httpx.get(f"{server.url}/frontend/settings").json()
    assert settings["language"] == {"source": {"code": "de", "name": "German"}, "target": {"code": "en", "name": "English"}}
    assert (settings["charLimit"], settings["keyRequired"]) == (2000, True)
    with_body = httpx.request(
        "GET", f"{server.url}/languages", content="api_key=x", headers={"content-type": libretranslate.FORM}
    )
    assert with_body.status_code == 200


def test_texts_are_logged_only_if_asked(server):
    server.form(q="secret", source="de", target="en")
    assert "secret" not in str(server.log)


def test_the_description_has_the_routes(server):
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    post = paths["/translate"]["post"]
    assert set(post["requestBody"]["content"]) == {"application/json", libretranslate.FORM}
    assert set(post["responses"]) == {"200", "400", "403", "408", "429", "503"}
    assert paths["/languages"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]["type"] == "array"
