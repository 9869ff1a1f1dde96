"""The manual: its Python runs, the README's tour works, and its tables have every option with its default and no other."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import PydanticUndefined

from weft.cli.main import COMMANDS, main
from weft.config import Config
from weft.data.config import TextDataConfig
from weft.decode.options import GenerationConfig
from weft.decode.predict_options import PredictionConfig
from weft.metrics.metric import metric_names
from weft.metrics.seq2seq import TRANSLATION
from weft.models.baseline_config import LogisticRegressionConfig, NaiveBayesConfig
from weft.models.config import ATTENTION_ENCODINGS, CONNECTIONS, INPUT_ENCODINGS, LanguageModelConfig, StackConfig
from weft.models.encoder_config import HEADS, CharEncoderConfig, ClassifierConfig, MaskedLMConfig, QAConfig, TaggerConfig
from weft.models.ngram import NgramConfig
from weft.models.seq2seq_config import BRIDGES, DecoderConfig, EncoderConfig, Seq2SeqConfig
from weft.models.smoothing import SMOOTHINGS
from weft.nn.choices import SCORES
from weft.nn.mixers import MIXERS
from weft.nn.pooling import POOLINGS
from weft.runs.resolve import RunFile
from weft.tasks.classification.data import LabeledDataConfig
from weft.tasks.qa.data import QADataConfig
from weft.tasks.registry import find_task
from weft.tasks.seq2seq.data import PairDataConfig
from weft.tasks.tagging.data import TaggedDataConfig
from weft.text.features import FeatureConfig
from weft.text.term_counts import ANALYZERS
from weft.text.tokenizer_pair import TokenizerPairConfig
from weft.text.tokenizers import TYPES, TokenizerConfig
from weft.training.config import TrainConfig
from weft.training.schedules import SCHEDULES

ROOT = Path(__file__).parents[1]
README, DOCS = ROOT / "README.md", ROOT / "docs"
PAGES = [README, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md", *sorted(DOCS.glob("*.md"))]
CUT = {"tales.txt": 100, "sounds.tsv": 200}
FEW = ["--quiet", "--set", "train.max_steps=3", "--set", "train.num_validations=1", "--set", "train.batch_tokens=512"]


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a page in one language; those of none are commands or their output."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


@pytest.mark.parametrize("page", ["docs/design.md", "CONTRIBUTING.md"])
def test_files_that_the_design_names_are_there(page):
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text()))
    places = [*(ROOT / "src" / "weft" / "tasks").glob("*/"), ROOT / "src" / "weft", ROOT]
    gone = [name for name in named if not any((place / name.replace("tasks/NAME/", "")).is_file() for place in places)]
    assert not gone, f"{page} names files that are not there: {', '.join(sorted(gone))}"


def test_the_tree_of_the_design_has_every_part():
    tree = section(DOCS / "design.md", "## One way through")
    folders = {path.name for path in (ROOT / "src" / "weft").iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert folders == set(re.findall(r"^  (\w+)/ ", tree, re.MULTILINE))


def section(path: Path, heading: str) -> str:
    """What stands under a heading, up to the next of its rank or a higher one."""
    rank = heading.index(" ")
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{rank}}} |\Z)", path.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{path.name} has no {heading!r}"
    return found[1]


def table(path: Path, heading: str, head: str) -> str:
    """The table under a heading whose first line begins with `head`."""
    text = section(path, heading)
    return text[text.index(head) :].split("\n\n")[0]


def rows(text: str) -> dict[str, list[str]]:
    """The rows of a page's tables whose first cell is a name in code: the name, and the other cells."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.split("\n") if line.startswith("| `")]
    found = {row[0].strip("`"): row[1:] for row in cells}
    assert len(found) == len(cells), "a name stands there twice"
    return found


# ---- the tour, and Python


def few(words: list[str]) -> list[str]:
    """What makes a training short and its network small."""
    counts = 'kind = "ngram"' in Path(words[2]).read_text()
    counts = counts or any(f"model.arch={kind}" in words for kind in ("ngram", "naive-bayes", "regression"))
    return [*FEW, *([] if counts else ["--set", "model.hidden_size=32"])]


def short(words: list[str]) -> list[str]:
    """The command with what makes it short."""
    if words[1] == "train":
        return [*words[1:], *few(words)]
    if "attribution" in words:  # what a model of few steps writes has no end
        return [*words[1:], "--max-new-tokens", "8"]
    if words[1] != "compare":
        return words[1:]
    small = {"--models": "ngram,window", "--seeds": "1"}
    kept = [small.get(before, word) for before, word in pairwise(words)]
    return [*kept, "--max-tokens", "1k", "--quiet"]


def run_line(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A line of a page as a shell would run it: weft, alone or behind echo or printf, in this process; the rest by sh."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|>")
    lexer.whitespace_split = True
    words, output = list(lexer), None
    if "weft" not in words:
        subprocess.run(["sh", "-c", line], check=True)
        return
    if words[0] in ("echo", "printf"):
        assert words[2] == "|"
        typed = f"{words[1]}\n" if words[0] == "echo" else words[1].replace("\\n", "\n").replace("\\t", "\t")
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
        words = words[3:]
    if ">" in words:
        words, output = words[: words.index(">")], Path(words[-1])
    assert words[0] == "weft"
    assert main(short(words)) == 0
    out, err = capsys.readouterr()
    drawn = words[words.index("--output-dir") + 1] if words[1] == "explain" and "--output-dir" in words else None
    assert err == "" if drawn is None else err.startswith(f"{drawn}: ")
    assert out or words[1] == "train"
    if output is not None:
        output.write_text(out)


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with the examples in it, to run commands from; long texts are cut, for speed."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for name, lines in CUT.items():
        path = tmp_path / "examples" / "data" / name
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tour(page: Path) -> list[str]:
    """The commands of a page, in their order."""
    found = [line for block in blocks(page, "") for line in block.split("\n")]
    return [line for line in found if re.match(r"weft [a-z]|(cp|tail|echo|printf) ", line)]


@pytest.mark.parametrize("page", ["seq2seq", "classification", "tagging", "answers"])
def test_the_page_of_a_task_works(place, monkeypatch, capsys, page):
    found = tour(DOCS / f"{page}.md")
    assert len(found) >= 8
    for line in found:
        run_line(line, monkeypatch, capsys)
    names: dict[str, Any] = {"__name__": page}
    for number, block in enumerate(blocks(DOCS / f"{page}.md", "python"), 1):
        exec(compile(block, f"{page}.md, block {number}", "exec"), names)


def test_the_page_of_gaps_works(place, monkeypatch, capsys):
    found = tour(DOCS / "masked.md")
    assert len(found) == 3
    for line in found:
        run_line(line, monkeypatch, capsys)


@pytest.fixture
def toured(place, monkeypatch, capsys) -> Path:
    """A folder in which the README's tour was run, with fewer steps."""
    found = tour(README)
    assert len(found) >= 15
    for line in found:
        run_line(line, monkeypatch, capsys)
    return place


def test_the_tour_works_and_so_does_every_piece_of_python(toured, capsys):
    for page in (README, DOCS / "python.md"):
        names: dict[str, Any] = {"__name__": page.stem}
        found = blocks(page, "python")
        assert found
        for number, block in enumerate(found, 1):
            exec(compile(block, f"{page.name}, block {number}", "exec"), names)
    said = capsys.readouterr().out
    # numbers that are the same on every machine but for the last digit
    for line in re.findall(r"^(?:rnn|gru|lstm) +gain .*$", (DOCS / "python.md").read_text(), re.MULTILINE):
        assert line in said
    assert "2 model.widht: no such option; did you mean 'width'" in said


def test_the_readme_offers_every_command():
    offered = re.search(r"^\| use \| `weft ([a-z ]*)`", README.read_text(), re.MULTILINE)
    assert offered
    assert sorted(offered[1].split()) == sorted(COMMANDS)


# ---- options


def as_stack(options: type[Config]) -> set[str]:
    """The options that are a stack's, with the same default."""
    both = options.model_fields.keys() & StackConfig.model_fields
    return {name for name in both if default(options, name) == default(StackConfig, name)}


def default(options: type[Config], name: str) -> str:
    """An option's default as a page shows it: TOML in code; nothing where it has none, or it does not always apply."""
    value = options.model_fields[name].get_default(call_default_factory=True)
    return "" if value is None or value is PydanticUndefined or isinstance(value, Config) else f"`{json.dumps(value)}`"


OPTIONS: dict[str, tuple[str, str, type[Config], set[str]]] = {  # page, heading, table, what stands elsewhere
    "run": ("README.md", "# weft, the manual", RunFile, {"data", "tokenizer", "model", "train"}),
    "data": ("data.md", "## [data]", TextDataConfig, set()),
    "pairs": ("data.md", "## [data] of pairs", PairDataConfig, set()),
    "labelled": ("data.md", "## [data] of labelled texts", LabeledDataConfig, set()),
    "tagged": ("data.md", "## [data] of tagged sentences", TaggedDataConfig, set()),
    "tokenizer": ("tokenizers.md", "## [tokenizer]", TokenizerConfig, set()),
    "sides": ("tokenizers.md", "## [tokenizer] of pairs", TokenizerPairConfig, set()),
    "networks": ("models.md", "## [model] of networks", LanguageModelConfig, set()),
    "ngram_range": ("models.md", "## [model] of n-grams", NgramConfig, set()),
    "pairs of stacks": ("models.md", "## [model] of encoder-decoders", Seq2SeqConfig, set()),
    "encoder": ("models.md", "### [model.encoder] and [model.decoder]", EncoderConfig, as_stack(EncoderConfig)),
    "classifiers": ("models.md", "## [model] of classifiers", ClassifierConfig, as_stack(ClassifierConfig)),
    "bayes": ("models.md", "## [model] of naive-bayes", NaiveBayesConfig, set()),
    "regression": ("models.md", "## [model] of regression", LogisticRegressionConfig, set()),
    "features": ("models.md", "### [model.features]", FeatureConfig, set()),
    "taggers": ("models.md", "## [model] of taggers", TaggerConfig, as_stack(TaggerConfig)),
    "spelling": ("models.md", "### [model.char_encoder]", CharEncoderConfig, as_stack(CharEncoderConfig) - {"layer_type"}),
    "gaps": ("masked.md", "## [model]", MaskedLMConfig, as_stack(MaskedLMConfig)),
    "asked": ("answers.md", "## [data]", QADataConfig, set()),
    "readers": ("answers.md", "## [model]", QAConfig, as_stack(QAConfig)),
    "train": ("training.md", "## [train]", TrainConfig, set()),
    "generate": ("generate.md", "## Options", GenerationConfig, set()),
    "predict": ("translate.md", "## Search", PredictionConfig, set()),
}


@pytest.mark.parametrize("which", OPTIONS)
def test_every_option_is_documented_with_its_default_and_no_other(which):
    page, heading, options, elsewhere = OPTIONS[which]
    found = rows(table(DOCS / page, heading, "| option |"))
    assert set(found) == set(options.model_fields) - elsewhere
    assert {name: cells[0] for name, cells in found.items()} == {name: default(options, name) for name in found}


def test_a_decoder_has_the_options_of_a_stack_and_their_defaults():
    own = {"embedding_dim", "num_cross_heads"}
    assert as_stack(DecoderConfig) == set(DecoderConfig.model_fields) - own == set(StackConfig.model_fields)


def settings(text: str) -> set[str]:
    """The options with values, in code, that a text names; it may be broken into lines anywhere."""
    return set(re.findall(r"`([a-z_0-9.]+ = [^`]*)`", " ".join(text.split())))


def said(values: Mapping[str, Any], at: str = "") -> set[str]:
    """Options with values as a page names them; those of a side behind its name."""
    found = set[str]()
    for name, value in values.items():
        found |= said(value, f"{name}.") if isinstance(value, Mapping) else {f"{at}{name} = {json.dumps(value)}"}
    return found


def test_the_recipes_of_kinds_are_what_presets_say():
    found = rows(table(DOCS / "models.md", "# Models", "| kind | `[model]` | `[train]` |"))
    for kind, preset in find_task("lm").presets.items():
        if preset.config_class is LanguageModelConfig:
            given = {
                name: value for name, value in preset.train_defaults.items() if TrainConfig.model_fields[name].default != value
            }
            assert [settings(cell) for cell in found[kind]] == [said(preset.values), said(given)], kind


def test_the_recipes_of_encoder_decoders_are_what_presets_say():
    text, presets = section(DOCS / "models.md", "## Encoder-decoders"), find_task("translate").presets
    found = rows(text)
    assert {kind: settings(cell) for kind, (cell,) in found.items()} == {kind: said(presets[kind].values) for kind in presets}
    everyone = settings(text[text.index("All of them train with") : text.index(", unless the run file")])
    assert [everyone] * len(presets) == [said(preset.train_defaults) for preset in presets.values()]


@pytest.mark.parametrize(
    ("task", "heading", "trained"),
    [("classification", "## Classifiers", "The networks train with"), ("tag", "## Taggers", "and train with")],
)
def test_the_recipes_of_classifiers_and_taggers_are_what_presets_say(task, heading, trained):
    text, presets = section(DOCS / "models.md", heading), find_task(task).presets
    found = rows(text)
    assert {kind: settings(cell) for kind, (cell,) in found.items()} == {kind: said(presets[kind].values) for kind in presets}
    everyone = settings(text[text.index(trained) : text.index(", unless the run file")])
    networks = [preset for kind, preset in presets.items() if preset.train_defaults and kind != "bert"]
    assert [everyone] * len(networks) == [said(preset.train_defaults) for preset in networks]
    whole = section(DOCS / "models.md", "## Classifiers")
    tuned = settings(whole[whole.index("and trains with `epochs") : whole.index(", as in its paper")])
    assert tuned == said(presets["bert"].train_defaults)


def test_the_recipes_of_masked_language_models_are_what_presets_say():
    found, presets = rows(section(DOCS / "masked.md", "## Which model")), find_task("masked-lm").presets
    assert {kind: settings(cells[1]) for kind, cells in found.items()} == {kind: said(presets[kind].values) for kind in presets}
    assert settings(found["bert"][2]) == said(presets["bert"].train_defaults)
    assert presets["lstm"].train_defaults is find_task("lm").presets["lstm"].train_defaults
    assert presets["transformer"].train_defaults is find_task("lm").presets["gpt"].train_defaults


def test_the_recipes_of_readers_are_what_presets_say():
    found, presets = rows(section(DOCS / "answers.md", "## Which model")), find_task("span").presets
    assert {kind: settings(cells[1]) for kind, cells in found.items()} == {kind: said(presets[kind].values) for kind in presets}
    for kind in ("transformer", "bert", "lstm"):
        assert settings(found[kind][2]) == said(presets[kind].train_defaults)
    assert presets["gru"].train_defaults is presets["rnn"].train_defaults is presets["lstm"].train_defaults


def test_every_choice_is_explained():
    models, tokenizers, training = DOCS / "models.md", DOCS / "tokenizers.md", DOCS / "training.md"
    assert set(rows(table(models, "# Models", "| kind | what"))) == set(find_task("lm").presets)
    assert set(rows(table(DOCS / "translate.md", "## Which model", "| kind |"))) == set(find_task("translate").presets)
    assert set(rows(table(models, "### Attention", "| attention |"))) == {"none", *SCORES}
    assert set(rows(table(models, "### Attention", "| place |"))) == {"before", "after"}
    assert set(rows(section(models, "### Bridges"))) == set(BRIDGES)
    for task in ("classification", "tagging"):
        assert set(rows(table(DOCS / f"{task}.md", "## Which model", "| kind |"))) == set(find_task(task).presets)
    assert set(rows(table(DOCS / "classify.md", "## Scores", "| score |"))) == set(metric_names(find_task("classify").suites))
    assert set(rows(table(DOCS / "tag.md", "## Scores", "| score |"))) == set(metric_names(find_task("tag").suites))
    assert set(rows(table(DOCS / "answers.md", "## Scores", "| score |"))) == set(metric_names(find_task("span").suites))
    assert set(rows(section(models, "### Pools"))) == set(POOLINGS)
    assert set(rows(table(models, "## [model] of taggers", "| head |"))) == set(HEADS)
    assert set(rows(table(models, "### [model.features]", "| analyzer |"))) == set(ANALYZERS)
    assert set(rows(table(DOCS / "evaluate.md", "## Pairs", "| score |"))) == set(metric_names([TRANSLATION]))
    assert set(rows(section(models, "### Mixers"))) == set(MIXERS)
    assert set(rows(section(models, "### Positions"))) == {*INPUT_ENCODINGS, *ATTENTION_ENCODINGS}
    assert set(rows(section(models, "### Connections"))) == set(CONNECTIONS)
    assert set(rows(table(models, "## [model] of n-grams", "| smoothing |"))) == set(SMOOTHINGS)
    assert set(rows(table(tokenizers, "## [tokenizer]", "| kind |"))) == set(TYPES)
    assert set(rows(table(training, "## [train]", "| schedule |"))) == set(SCHEDULES)


# ---- links


def anchor(heading: str) -> str:
    """A heading as a link names it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def test_every_link_leads_somewhere():
    found = []
    for page in PAGES:
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            name, _, place = target.partition("#")
            if "://" in target or name == "results.md" or name.endswith("/results.md"):
                continue  # results are written down as they are measured
            there = (page.parent / name).resolve() if name else page
            headings = (
                re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE) if there.suffix == ".md" and there.exists() else []
            )
            if not there.exists() or (place and place not in map(anchor, headings)):
                found.append(f"{page.name}: {target}")
    assert found == []


def test_every_page_is_in_the_index():
    listed = (DOCS / "README.md").read_text()
    assert [page.name for page in DOCS.glob("*.md") if page.name != "README.md" and f"]({page.name})" not in listed] == []
