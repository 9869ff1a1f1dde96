"""The reference pages equal the generator's output, and every choice, metric and finding is explained."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

import pytest

import weft
from weft.config import Choice, Config
from weft.tasks.registry import TASKS, find_task
from weft.training.config import TrainConfig

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_reference", DOCS / "gen_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_committed_pages_equal_the_generator_output(generator):
    pages = generator.pages()
    assert len(pages) == 4
    old = [path.name for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    assert not old, f"run python docs/gen_reference.py: {', '.join(old)}"


def test_pages_copied_from_the_root_link_only_to_pages_of_the_site(generator):
    for path, text in generator.copies().items():
        targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
        assert [target for target in targets if not (DOCS / target).is_file()] == [], path.name


def test_the_generator_needs_no_torch():
    line = "import sys; sys.argv = ['', '--check']; exec(compile(open(path).read(), path, 'exec'))"
    code = f"path = {str(DOCS / 'gen_reference.py')!r}; __file__ = path; __name__ = 'reference'; {line}; pages()"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_metric_and_finding_is_explained(generator):
    assert generator.undocumented() == []


def configs() -> Iterator[type[Config]]:
    """Every table of a run file."""
    waiting: list[Any] = [TrainConfig]
    for task in map(find_task, TASKS):
        waiting += [
            task.data.data_config,
            task.data.tokenizer_config,
            *(preset.config_class for preset in task.presets.values()),
        ]
    seen = set[Any]()
    while waiting:
        config = waiting.pop()
        if isinstance(config, type) and issubclass(config, Config) and config not in seen:
            seen.add(config)
            yield config
            for field in config.model_fields.values():
                waiting += [field.annotation, *get_args(field.annotation)]


def choices(annotation: Any, metadata: Any = ()) -> set[str]:
    named = {name for mark in metadata if isinstance(mark, Choice) for name in mark.names}
    parts = get_args(annotation)
    if get_origin(annotation) is Literal:
        return {part for part in parts if isinstance(part, str)}
    return named.union(*(choices(part) for part in parts), *(set(m.names) for m in parts if isinstance(m, Choice)))


def all_choices(option: str) -> set[str]:
    fields = [config.model_fields[option] for config in configs() if option in config.model_fields]
    assert fields, option
    return set[str]().union(*(choices(field.annotation, field.metadata) for field in fields))


def rows(page: str, head: str) -> set[str]:
    """The names in the first column of the tables of a page whose header row begins with `head`."""
    text = (DOCS / page).read_text(encoding="utf-8")
    tables = re.findall(rf"^{re.escape(head)}.*\n\|[-: |]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert tables, f"{page} has no table {head}"
    return {name for table in tables for cell in re.findall(r"^\| ([^|]*)", table, re.MULTILINE) for name in names(cell)}


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]*)`", cell)


def section_rows(page: str, heading: str) -> set[str]:
    """The names in the first column of the first table under a heading."""
    text = (DOCS / page).read_text(encoding="utf-8")
    _, found, rest = text.partition(f"\n## {heading}\n")
    assert found, f"{page} has no {heading}"
    table = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    assert table
    return {name for line in table[0].split("\n")[2:] for name in names(line.partition("|")[2].partition("|")[0])}


@pytest.mark.parametrize(
    ("option", "heading"),
    [
        ("layer_type", "`layer_type`"),
        ("position_encoding", "`position_encoding`"),
        ("skip_connection", "`skip_connection` and `norm_position`"),
        ("attention", "`attention` of encoder-decoders"),
        ("bridge", "`bridge`"),
        ("pooling", "`pooling`"),
        ("head", "`head` of taggers"),
        ("smoothing", "`smoothing` of n-gram models"),
        ("lr_schedule", "`lr_schedule`"),
    ],
)
def test_every_choice_has_its_formula(option, heading):
    assert section_rows("reference/formulas.md", heading) == all_choices(option)


def test_analyzers_and_placements_have_their_formulas():
    assert rows("reference/formulas.md", "| `features.analyzer` |") == all_choices("analyzer")
    assert rows("reference/formulas.md", "| `attention_placement` |") == all_choices("attention_placement")


def test_every_tokenizer_is_explained():
    assert rows("how-to/choose-a-tokenizer.md", "| `type` |") == all_choices("type")


@pytest.mark.parametrize("task", TASKS)
def test_every_architecture_is_recommended_for_something(task):
    page = (DOCS / "how-to" / "choose-an-architecture.md").read_text(encoding="utf-8")
    named = {name for line in page.split("\n") if line.startswith("|") for name in names(line)}
    assert find_task(task).presets.keys() <= named


def test_every_command_has_a_section():
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    from weft.cli.main import COMMANDS

    assert {name for name in COMMANDS if f"\n## weft {name}\n" not in page} == set()


def test_every_public_name_is_in_the_python_reference():
    page = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    assert {name for name in weft.__all__ if name != "__version__" and f"\n::: weft.{name}\n" not in page} == set()
