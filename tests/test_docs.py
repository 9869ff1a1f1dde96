"""The documentation: commands and Python code run, run files are valid, links resolve, pages are in the navigation."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from weft.cli.main import app, main
from weft.errors import ConfigError
from weft.runs.resolve import resolve
from weft.tasks.registry import TASKS, find_task

ROOT = Path(__file__).parents[1]
README, DOCS = ROOT / "README.md", ROOT / "docs"
COPIED = {DOCS / "changelog.md", DOCS / "contributing.md"}  # made by `make docs` from the files in the root
SITE = sorted({*DOCS.rglob("*.md")} - COPIED)
PAGES = [README, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md", *SITE]
RUNNABLE = [README, *sorted((DOCS / "tutorials").glob("*.md")), *sorted((DOCS / "how-to").glob("*.md"))]
STUDIES = sorted((DOCS / "concepts").glob("*.md"))
SLOW = {  # many trainings, or many commands
    "docs/how-to/captioning.md",
    "docs/how-to/compare-on-several-machines.md",
    "docs/how-to/denoising.md",
    "docs/how-to/distill-and-average.md",
    "docs/how-to/explain-a-prediction.md",
    "docs/how-to/find-the-best-model.md",
    "docs/how-to/fine-tune.md",
    "docs/how-to/inspect-representations.md",
    "docs/how-to/predict-in-bulk.md",
    "docs/how-to/prune-heads.md",
    "docs/how-to/recommended-settings.md",
    "docs/how-to/report-results.md",
    "docs/how-to/speech-recognition.md",
    "docs/how-to/test-grammar.md",
    "docs/how-to/tune.md",
    "docs/how-to/word-vectors.md",
    "docs/how-to/bilingual-lexicons.md",
    "docs/tutorials/compare.md",
}
LINES = {"tales.txt": 100, "sounds.tsv": 200, "dates.tsv": 400}  # of long examples, for speed
FEW = ["--quiet", "--set", "train.max_steps=3", "--set", "train.num_validations=1", "--set", "train.batch_tokens=512"]
# architectures without steps and hidden_size
FITTED = ("ngram", "naive-bayes", "logistic-regression", "skip-gram", "cbow", "fasttext", "ppmi", "glove")


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    result = re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [block for name, block in result if name == language]


def page_id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def runnable(pages: list[Path], *languages: str) -> list[Any]:
    """Those that have blocks in one of the languages; the long ones marked."""
    chosen = [path for path in pages if any(blocks(path, language) for language in languages)]
    return [pytest.param(p, id=page_id(p), marks=[pytest.mark.slow] if page_id(p) in SLOW else []) for p in chosen]


# ---- commands


def commands(path: Path) -> list[str]:
    """The commands of a page, in order, without what installs or trains for minutes."""
    lines = [line.strip() for block in blocks(path, "bash") for line in block.replace("\\\n", " ").split("\n")]
    return [line for line in lines if line and not re.match(r"#|pip |make |git |weft demo", line)]


def few(words: list[str]) -> list[str]:
    """What makes a training short and its network small."""
    source = Path(words[1]).read_text(encoding="utf-8")
    fitted = any(f'arch = "{arch}"' in source for arch in FITTED) and not any(w.startswith("model.arch=") for w in words)
    fitted = fitted or any(f"model.arch={arch}" in words for arch in FITTED)
    return [*FEW, *([] if fitted else ["--set", "model.hidden_size=32"])]


def short(words: list[str]) -> list[str]:
    """A command with what makes it short."""
    command = words[0]
    if command == "train" and "--minutes" in words:
        place = words.index("--minutes") + 1
        return [*words[:place], "0.3", *words[place + 1 :], "--quiet"]
    if command == "train":
        return [*words, *few(words)]
    if command == "explain" and "attribution" in words:  # what a model of few steps writes has no end
        return [*words, "--max-new-tokens", "8"]
    if command == "compare" and words[1].endswith(".toml"):
        kept = list(words)
        for name, value in (("--seeds", "1"), ("--tune-trials", "2"), ("--max-tokens", "1k")):
            if name in kept:
                kept[kept.index(name) + 1] = value
        return [*kept, *([] if "--max-tokens" in kept else ["--max-tokens", "1k"]), "--quiet"]
    return words


def run_line(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A line of a page as a shell would run it: weft, alone or at the end of a pipe, in this process; the rest by sh."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|><")
    lexer.whitespace_split, lexer.commenters = True, ""
    words, output = list(lexer), None
    if "weft" not in words:
        subprocess.run(["sh", "-c", line], check=True)
        return
    if "|" in words:
        before, _, _ = line.rpartition("|")
        typed = subprocess.run(["sh", "-c", before], check=True, capture_output=True).stdout
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed)))
        words = words[len(words) - words[::-1].index("|") :]
    if ">" in words:
        words, output = words[: words.index(">")], Path(words[-1])
    assert words[0] == "weft", line
    code = main(short(words[1:]))
    out, err = capsys.readouterr()
    assert code == 0, f"{line}\n{err}"
    serious = (
        "error" if words[1] in ("import", "export") else "error|warning"
    )  # other formats lack some of a model: they say what
    assert not re.search(rf"^weft: ({serious}): ", err, re.MULTILINE), f"{line}\n{err}"
    assert out or words[1] in ("train", "compare", "distill", "prepare") or "--output" in words, line
    if output is not None:
        output.write_text(out, encoding="utf-8")


@pytest.fixture
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the examples in it, to run commands from; long texts are truncated, for speed."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for name, lines in LINES.items():
        path = tmp_path / "examples" / "data" / name
        path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:lines]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_page(page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands of a page, then its Python, in one namespace."""
    for line in commands(page):
        run_line(line, monkeypatch, capsys)
    names: dict[str, Any] = {"__name__": page.stem}
    for number, block in enumerate(blocks(page, "python"), 1):
        block = re.sub(r'"max_steps": \d+', '"max_steps": 24', block)  # for speed
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)


@pytest.mark.parametrize("page", runnable(RUNNABLE, "bash", "python"))
def test_commands_and_python_of_a_page_run(work_dir, monkeypatch, capsys, page):
    run_page(page, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("page", runnable(STUDIES, "bash", "python"))
def test_commands_and_python_of_a_study_run(work_dir, monkeypatch, capsys, page):
    run_page(page, monkeypatch, capsys)


def flags() -> dict[str, set[str]]:
    """The flags of every command, and of those inside of one."""
    group: Any = typer.main.get_command(app)
    results: dict[str, set[str]] = {}
    for name, command in group.commands.items():
        inner = {f"{name} {child}": item for child, item in getattr(command, "commands", {}).items()} or {name: command}
        for path, item in inner.items():
            results[path] = {flag for param in item.get_params(typer.Context(item, info_name=path)) for flag in param.opts}
    return results


def test_pages_name_flags_that_their_commands_have():
    known, wrong = flags(), []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for name, rest in re.findall(r"\bweft ((?:analyze )?[a-z]+(?:-[a-z]+)*)((?: [^`\n|]*)?)", text):
            named = re.findall(r"(?<= )--[a-z0-9-]+", rest) if name in known else []
            wrong += [f"{page_id(page)}: weft {name} {flag}" for flag in named if flag not in known[name]]
        everywhere = set[str]().union(*known.values())
        if page.parent.name == "how-to":
            wrong += [f"{page_id(page)}: {flag}" for flag in re.findall(r"`(--[a-z0-9-]+)", text) if flag not in everywhere]
    assert wrong == []


# ---- run files


def toml_blocks() -> Iterator[Any]:
    for path in PAGES:
        for number, block in enumerate(blocks(path, "toml"), 1):
            yield pytest.param(block, id=f"{page_id(path)}-{number}")


def valid_for(task: str, values: dict[str, Any], arch: str) -> bool:
    whole = {"task": task, **values}
    whole["data"] = {"train": "train.txt" if task in ("lm", "masked-lm") else "train.tsv", **values.get("data", {})}
    whole["model"] = {"arch": arch, **values.get("model", {})}
    try:
        resolve(whole, base=ROOT)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("text", list(toml_blocks()))
def test_run_files_are_valid(text):
    """A block with a task is a whole run file; another one is part of a run file of some task."""
    values = tomllib.loads(text)
    if "task" in values:
        resolve(values, base=ROOT)
    else:
        assert any(valid_for(task, values, arch) for task in TASKS for arch in find_task(task).presets)


# ---- pages and links


def slug(heading: str) -> str:
    """A heading as a link names it, on the site."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def anchors(path: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {*map(slug, re.findall(r"^#+ (.*)$", text, re.MULTILINE)), *re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)}


def test_every_link_resolves():
    lost = []
    for page in PAGES:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            name, _, anchor = target.partition("#")
            if "://" in target:
                continue
            there = (page.parent / name).resolve() if name else page
            if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
                lost.append(f"{page_id(page)}: {target}")
    assert lost == []


def test_every_page_is_in_the_site_and_every_entry_has_its_page():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"[\w/-]+\.md\b", text[text.index("\nnav:") :])
    assert sorted(listed) == sorted(path.relative_to(DOCS).as_posix() for path in {*SITE, *COPIED})


def test_the_site_loads_nothing_from_the_network():
    assert "font: false" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in SITE:
        prose = re.sub(r"`[^`]*`", "", page.read_text(encoding="utf-8"))
        assert not re.search(r"!\[[^]]*\]\(\w+://|<(script|img|iframe)\b", prose), page_id(page)


@pytest.mark.parametrize("page", ["docs/concepts/architecture.md", "CONTRIBUTING.md"])
def test_files_named_on_a_page_exist(page):
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text(encoding="utf-8")))
    tasks = ROOT / "src" / "weft" / "tasks"
    places = [*tasks.glob("*/"), tasks, tasks.parent, ROOT]
    gone = [name for name in named if not any((place / name.replace("tasks/NAME/", "")).is_file() for place in places)]
    assert not gone, f"{page} names files that are not there: {', '.join(sorted(gone))}"


def test_the_table_of_packages_has_every_package():
    text = (DOCS / "concepts" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)/`", "".join(re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE))))
    packages = {path.name for path in (ROOT / "src" / "weft").iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert packages <= named


@pytest.mark.parametrize("name", ["results.md", "experiments.md"])
def test_scripts_named_in_results_exist_and_have_the_flags(name):
    text = (DOCS / name).read_text(encoding="utf-8")
    lines = [*re.findall(r"`([^`\n]+)`", text), *(line for block in blocks(DOCS / name, "text") for line in block.split("\n"))]
    commands = [match for line in lines if (match := re.match(r"(?:python benchmarks/)?(\w+\.py)\b(.*)", line))]
    assert commands
    shared = (ROOT / "benchmarks" / "_common.py").read_text(encoding="utf-8")
    for script, rest in (match.groups() for match in commands):
        source = (ROOT / "benchmarks" / script).read_text(encoding="utf-8") + shared
        assert [flag for flag in re.findall(r"(?<=\s)--[a-z0-9-]+", rest) if f'"{flag}"' not in source] == [], script
    assert [test for test in re.findall(r"tests/\w+\.py", text) if not (ROOT / test).is_file()] == []
