"""The page of `weft serve` in a real browser, with a real server: every task by mouse and by keyboard, on a phone and on a desktop."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from browser import chromium
from page_checks import accessibility_problems, focus_is_visible
from page_runs import OTHERS, TEXTS, PageRuns

import weft.serve
from weft.serve import Engine, Limits
from weft.serve.access_log import Log
from weft.serve.http import MODULES, PAGE, create_app, create_services
from weft.serve.server import bind, serve

FILES = Path(weft.serve.__file__).parent / "page"
HOSTILE = "</textarea><img src=x onerror=alert(1)><script>alert(2)</script>"
WIDTHS = (1280, 390)


@pytest.fixture(scope="module")
def browser():
    with chromium() as actual:
        yield actual


@pytest.fixture(scope="module")
def runs(tmp_path_factory, browser) -> PageRuns:  # the browser first: without one there is nothing to train for
    return PageRuns(tmp_path_factory.mktemp("runs"))


@contextlib.contextmanager
def serving(engine: Engine, keys: Sequence[str] = ()) -> Iterator[str]:
    """The address of a server in a thread."""
    services, listener, stop = create_services(engine, keys=keys), bind("127.0.0.1", 0), threading.Event()
    arguments = (create_app(services), services, listener, Log(lambda line: None), stop.is_set)
    thread = threading.Thread(target=serve, args=arguments)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        stop.set()
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def server(runs) -> Iterator[str]:
    with (
        Engine({name: runs.get(name) for name in TEXTS}, limits=Limits(drain_seconds=1), device="cpu") as engine,
        serving(engine) as address,
    ):
        yield address


@pytest.fixture(scope="module")
def other_server(runs) -> Iterator[str]:
    with (
        Engine({name: runs.get(name) for name in OTHERS}, limits=Limits(drain_seconds=1), device="cpu") as engine,
        serving(engine) as address,
    ):
        yield address


class OpenPage:
    """An open page, with its requests and errors."""

    def __init__(self, browser: Any, address: str, fragment: str = "", **options: Any) -> None:
        self.address = address
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: self.errors.append(f"dialog: {dialog.message}") or dialog.dismiss())
        self.page.goto(f"{address}#{fragment}")

    def field(self, label: str) -> Any:
        return self.page.get_by_label(label, exact=True)

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name, exact=True)

    def submit(self) -> None:
        self.page.locator("form.card button.primary").click()
        self.wait()

    def wait(self) -> None:
        """Until the results and their explanations are there."""
        self.page.locator(".results[aria-busy=false]").wait_for(state="attached")
        self.page.locator(".explained[aria-busy]").first.wait_for(state="detached")

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def count(self, selector: str) -> int:
        return self.page.locator(selector).count()

    def check_layout(self) -> None:
        """The page fits, and is accessible, on a phone and on a desktop."""
        for width in WIDTHS:
            self.page.set_viewport_size({"width": width, "height": 800})
            assert self.page.evaluate("document.documentElement.scrollWidth") <= width
        assert self.page.get_by_text("The picture is not shown").count() == 0
        assert accessibility_problems(self.page) == []


@pytest.fixture
def open_page(browser, request):
    opened: list[OpenPage] = []

    def show(fragment: str = "", address: str | None = None, **options: Any) -> OpenPage:
        opened.append(OpenPage(browser, address or request.getfixturevalue("server"), fragment, **options))
        return opened[-1]

    yield show
    for item in opened:
        item.context.close()
        assert item.errors == []
        assert [url for url in item.requests if not url.startswith((item.address, "data:", "blob:"))] == []


def test_the_files_are_small_and_all_served():
    names = {path.name for path in FILES.iterdir()}
    assert names == set(PAGE.values())
    assert {f"{name}.js" for name in MODULES} == {name for name in names if name.endswith(".js")}
    assert sum(path.stat().st_size for path in FILES.iterdir()) < 300_000
    for path in FILES.iterdir():
        text = path.read_text(encoding="utf-8")
        assert len(text.split("\n")) <= 401, path.name
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(|https?://(?!www\.w3\.org)", text), path.name


# ---- every task


def use_labels(page: OpenPage) -> None:
    assert page.count(".bars li") == 3
    assert "If the model is calibrated, about" in page.text(".result .note")
    assert page.count(".weights .weight.signed") > 3
    assert "because of" in page.text(".weights .status")


def use_tags(page: OpenPage) -> None:
    assert page.text(".tagged").replace("\n", " ").startswith("the mr")
    page.page.locator(".output-token").nth(1).hover()
    assert page.page.locator(".output-token").nth(1).get_attribute("aria-pressed") == "true"
    for score in page.page.locator(".span .score").all_text_contents():
        assert re.fullmatch(r" <?\d+(\.\d+)?%", score)


def use_pairs(page: OpenPage) -> None:
    assert page.count(".n-best > li") == 3
    assert "probability" in page.text(".n-best .note")
    assert page.count(".weights .weight") >= 4  # source tokens
    first = page.text(".weights .status")
    page.page.locator(".output-token").last.hover()
    assert page.text(".weights .status") != first and "attends to" in first
    page.page.get_by_text("search tree", exact=True).click()
    page.page.get_by_role("img", name="Picture of search tree").wait_for()


def use_answers(page: OpenPage) -> None:
    assert page.text(".result .note").startswith("Probability ")
    assert page.text(".passage") == "kim has a red hat in rome ."


def use_masks(page: OpenPage) -> None:
    candidates = page.page.locator(".bars").first.locator("button")
    assert (page.count("h3.minor"), candidates.count()) == (2, 5)
    candidates.nth(3).click()
    assert page.text(".passage mark") == candidates.nth(3).inner_text()
    assert candidates.nth(3).get_attribute("aria-pressed") == "true"


def use_words(page: OpenPage) -> None:
    assert page.count(".bars li") == 10
    assert page.text(".result .note").startswith("Nearest to “cat”")


def use_reward(page: OpenPage) -> None:
    assert re.fullmatch(r"−?\d+\.\d{3}", page.text(".headline"))


def use_speech(page: OpenPage) -> None:
    assert page.count(".n-best > li") >= 1
    assert page.count(".preview audio") == 1


def use_captions(page: OpenPage) -> None:
    assert page.count(".n-best > li") == 3
    page.page.get_by_role("img", name="Picture of attention").wait_for()


TASKS: dict[str, tuple[dict[str, str], Callable[[OpenPage], None]]] = {
    "labels": ({"Text": "the old cat"}, use_labels),
    "tags": ({"Words": "the mr bcdgo here"}, use_tags),
    "mt": ({"Source": "abc"}, use_pairs),
    "answers": ({"Question": "who has it ?", "Passage": "kim has a red hat in rome ."}, use_answers),
    "masked": ({"Text": "the [MASK] sees a [MASK]"}, use_masks),
    "words": ({"Text": "cat"}, use_words),
    "reward": ({"Response": "a good soup"}, use_reward),
    "speech": ({}, use_speech),
    "captions": ({}, use_captions),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in OTHERS)) for name in TASKS])
def test_predictions_by_mouse(open_page, runs, request, name):
    fields, use = TASKS[name]
    page = open_page(address=request.getfixturevalue("other_server" if name in OTHERS else "server"))
    page.page.get_by_role("navigation").get_by_role("link", name=re.compile(f"^{name}")).click()
    page.page.get_by_role("heading", level=1, name=name).wait_for()
    for label, value in fields.items():
        page.field(label).fill(value)
    if not fields:
        page.page.locator("input[type=file]").set_input_files(runs.recording if name == "speech" else runs.image)
    page.submit()
    use(page)
    page.check_layout()


def test_scores_similarities_and_explanations(open_page):
    page = open_page("run=lm&mode=score&text=the+cat+sees")
    page.submit()
    assert page.text(".tokens").replace("\u200b", "").replace("■", "") == "the cat sees"
    assert "Perplexity" in page.text(".facts")
    page.page.get_by_role("tab", name="Explain").click()
    page.field("Text").fill("the cat")
    page.submit()
    page.page.get_by_text("surprisal", exact=True).click()
    page.page.get_by_role("img", name="Picture of surprisal, picture 1").wait_for()
    page.page.get_by_role("navigation").get_by_role("link", name=re.compile("^labels")).click()
    page.page.get_by_role("tab", name="Similarity").click()
    page.field("Texts, one per line").fill("the cat\nthe dog\na river")
    page.submit()
    assert page.count(".bars li") == 2
    page.page.locator(".bars button").first.click()
    assert "the cat" in page.page.locator(".bars button").all_text_contents()
    page.check_layout()


# ---- by keyboard


def press(page: OpenPage, *keys: str) -> None:
    for key in keys:
        page.page.keyboard.press(key)


def tab_to(page: OpenPage, selector: str, limit: int = 60) -> None:
    """Press Tab until an element has the focus, which must be visible at each stop."""
    page.page.locator("form.card").wait_for()
    for _ in range(limit):
        press(page, "Tab")
        assert focus_is_visible(page.page), page.page.evaluate("document.activeElement.outerHTML")
        if page.page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab does not reach {selector}")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "mt")) for name in TASKS])
def test_predictions_by_keyboard(open_page, runs, request, name):
    fields, use = TASKS[name]
    address = request.getfixturevalue("other_server" if name in OTHERS else "server")
    page = open_page(f"run={name}", address=address, viewport={"width": 390, "height": 800})
    for value in fields.values():
        tab_to(page, "textarea")
        page.page.keyboard.type(value)
    if not fields:
        tab_to(page, "input[type=file]")  # the dialog of the system follows
        page.page.locator("input[type=file]").set_input_files(runs.recording if name == "speech" else runs.image)
    press(page, "Control+Enter")
    page.wait()
    assert page.text(".status").startswith("Done after")
    tab_to(page, ".request summary")
    press(page, "Enter")
    assert page.page.locator(".request code").first.is_visible()
    tab_to(page, ".request input")
    press(page, "ArrowRight")
    assert page.text(".request code").splitlines()[0] in ("import httpx", "import base64")
    if page.count(".weights .output-token") > 1:
        tab_to(page, ".output-token")
        press(page, "End")
        assert page.page.locator(".output-token").last.get_attribute("aria-pressed") == "true"
        press(page, "Home")
    use(page)


@pytest.mark.parametrize("width", [pytest.param(1280, marks=pytest.mark.slow), 390])
def test_completion_by_keyboard(open_page, width):
    page = open_page("run=lm&max_new_tokens=12", viewport={"width": width, "height": 800}, color_scheme="dark")
    tab_to(page, "textarea")
    page.page.keyboard.type("the cat ")
    press(page, "Control+Enter")
    page.wait()
    tokens = page.page.locator(".tokens .token")
    before, total = page.text(".tokens"), tokens.count()
    assert 1 < total <= 12
    tab_to(page, ".tokens .token")
    press(page, "ArrowRight")
    assert re.search(r", <?\d+(\.\d+)?%$", page.page.evaluate("document.activeElement.getAttribute('aria-label')"))
    assert page.page.locator(".alternatives").is_visible()
    press(page, "Escape")
    assert not page.page.locator(".alternatives").is_visible()
    press(page, "Enter", "End")  # into the box, to the least probable alternative
    chosen = page.page.evaluate("document.activeElement.querySelector('code').textContent")
    page.check_layout()
    press(page, "Enter")
    page.wait()
    prompt = page.field("Prompt").input_value()
    assert prompt.startswith("the cat ") and prompt.endswith(chosen.replace("␣", " ").replace("⏎", "\n"))
    assert page.text(".tokens") != before
    assert page.page.locator(".status").first.inner_text().startswith("Done after")


def test_streams_can_be_stopped(open_page):
    page = open_page("run=lm&max_new_tokens=2000&prompt=the")
    page.page.locator("form.card button.primary").click()
    page.page.locator(".tokens .token").nth(3).wait_for()
    page.button("Stop").click()
    page.wait()
    assert page.text(".status").startswith("Stopped after")
    assert page.count(".tokens .token") < 2000


def test_links_fill_the_form_and_repeat(open_page):
    page = open_page("run=lm&max_new_tokens=8&prompt=the+cat&seed=5&temperature=0.7")
    assert page.field("Seed").input_value() == "5"
    assert page.count(".result") == 0  # a link from elsewhere computes nothing
    page.submit()
    first, address = page.text(".tokens"), page.page.url
    page.page.get_by_role("link", name="Same again").click()
    page.wait()
    assert page.text(".tokens") == first
    page.button("Another").click()
    page.wait()
    assert page.field("Seed").input_value() == "6"
    assert page.text(".tokens") != first
    page.page.go_back()
    assert (page.page.url, page.field("Seed").input_value()) == (address, "5")


def test_conversations(open_page):
    page = open_page("run=chat&max_new_tokens=5")
    for message in ("Repeat apple.", "Repeat river."):
        page.field("Message").fill(message)
        page.submit()
    assert page.count(".messages .user") == page.count(".messages .assistant") == 2
    assert page.field("Message").input_value() == ""
    page.page.locator(".request summary").click()
    assert page.text(".request code").count('"role"') == 3
    page.check_layout()
    page.button("New conversation").click()
    assert page.count(".messages") == 0


# ---- two runs, requests, errors, keys


def test_two_runs_side_by_side(open_page):
    page = open_page("run=lm&max_new_tokens=10&prompt=the+cat")
    page.field("Compare with").select_option("ngram")
    page.submit()
    assert [name for name in page.page.locator(".result > h2").all_text_contents()] == ["lm", "ngram"]
    assert "The outputs differ in" in page.text(".status")
    assert page.count(".differs") > 1
    page.check_layout()


def run_python(code: str) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, {})
    return output.getvalue()


@pytest.mark.parametrize("name", ["mt", pytest.param("captions", marks=pytest.mark.slow)])
def test_the_request_can_be_sent_from_the_shell_and_from_python(open_page, runs, request, name, monkeypatch):
    monkeypatch.chdir(runs.directory)
    address = request.getfixturevalue("other_server" if name in OTHERS else "server")
    page = open_page(f"run={name}&source=abc'%22+d%5C&n_best=2", address=address)
    if name == "captions":
        page.page.locator("input[type=file]").set_input_files(runs.image)
    page.submit()
    shown = page.page.locator(".request").first
    shown.locator("summary").click()
    texts = page.page.locator(".n-best .output").all_text_contents()
    if shutil.which("curl"):
        command = shown.locator("code").inner_text()
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=20)
        assert all(text in done.stdout for text in texts)
    shown.get_by_text("Python", exact=True).click()
    output = run_python(shown.locator("code").inner_text())
    assert all(text in output for text in texts)


def test_errors_say_where_what_and_how_to_fix(open_page):
    page = open_page("run=lm&max_new_tokens=5000&prompt=the")
    page.page.locator("form.card button.primary").click()
    page.wait()
    assert re.sub(r"\s+", " ", page.text(".error")).startswith(
        "This did not work Where max_new_tokens Problem 5,000 is more than the limit of 2,048"
    )
    assert page.page.get_by_role("alert").is_visible()
    page.check_layout()
    page.errors.clear()  # the browser logs the status 422
    page.page.get_by_role("navigation").get_by_role("link", name=re.compile("^labels")).click()
    page.page.get_by_role("heading", level=1, name="labels").wait_for()
    page.page.locator("form.card button.primary").click()
    assert "is empty" in page.text(".error")


def test_a_key_is_asked_for_and_kept_in_the_tab(browser, runs):
    served = {"labels": runs.get("labels")}
    with Engine(served, limits=Limits(drain_seconds=1), device="cpu") as engine, serving(engine, ["correct-key"]) as address:
        page = OpenPage(browser, address)
        page.field("API key").fill("wrong-key")
        press(page, "Enter")
        page.page.get_by_text("The server does not know this key").wait_for()
        page.field("API key").fill("correct-key")
        press(page, "Enter")
        page.field("Text").fill("the cat")
        page.submit()
        page.page.locator(".request summary").first.click()
        assert "$WEFT_KEY" in page.text(".request code") and "correct-key" not in page.text(".request code")
        stored = page.page.evaluate("[Object.values(sessionStorage), Object.values(localStorage), document.cookie]")
        assert stored == [["correct-key"], [], ""]
        assert all("401" in error for error in page.errors)
        page.context.close()


# ---- safety and themes


def test_text_is_never_markup(open_page):
    page = open_page("run=labels")
    page.field("Text").fill(HOSTILE)
    page.submit()
    page.page.get_by_role("tab", name="Explain").click()
    page.field("Text").fill(HOSTILE)
    page.submit()
    assert page.count("main img") == page.count("main script") == 0
    assert "</textarea>" in "".join(page.page.locator(".weights .tokens").first.all_text_contents())


def test_pictures_with_more_than_shapes_are_refused(open_page):
    page = open_page("run=labels")
    script = """async (svg) => (await import("/figure.js")).picture(svg, "x").textContent"""
    space = 'xmlns="http://www.w3.org/2000/svg"'
    for content, problem in [
        ("<script>alert(1)</script>", "element script"),
        ('<rect onload="alert(1)"/>', "attribute onload"),
        ('<image href="https://example.org/x.png"/>', "address"),
        ("<foreignObject/>", "element foreignObject"),
        ('<a href="javascript:alert(1)"/>', "element a"),
    ]:
        assert page.page.evaluate(script, f"<svg {space}>{content}</svg>") == f"The picture is not shown: {problem}."
    assert all("Content Security Policy" in error for error in page.errors)  # which would have stopped the script as well
    page.errors.clear()
    assert page.page.evaluate(script, f"<svg {space}><text>fine</text></svg>") == ""
    assert "is not shown" in page.page.evaluate(script, "<p/>")


def test_theme_follows_the_system_or_the_user(open_page):
    page = open_page("run=mt&source=abc", color_scheme="dark")
    page.submit()
    back = "getComputedStyle(document.body).backgroundColor"
    paper = "getComputedStyle(document.querySelector('.picture').shadowRoot.querySelector('.paper')).fill"
    page.page.locator(".picture svg").first.wait_for()
    assert page.page.evaluate(f"[{back}, {paper}]") == ["rgb(20, 23, 28)", "rgb(21, 24, 29)"]
    page.button("Light theme").click()
    assert page.page.evaluate(f"[{back}, {paper}]") == ["rgb(255, 255, 255)", "rgb(255, 255, 255)"]
    page.check_layout()
    page.page.reload()
    page.button("Dark theme").click()
    assert page.page.evaluate(back) == "rgb(20, 23, 28)"
    page.check_layout()
