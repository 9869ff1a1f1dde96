"""Views depend on a task only through its explainers."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from weft.errors import UsageError
from weft.explain.beam_search import beam_search_tree
from weft.explain.distribution import distribution
from weft.explain.options import ExplainConfig
from weft.explain.surprisal import surprisal
from weft.explain.views import VIEWS, available_views
from weft.tasks.registry import TASKS, find_task

ROOT = Path(__file__).parents[1] / "src" / "weft"
FILES = [
    *(path for path in sorted((ROOT / "explain").glob("*.py")) if path.stem not in ("eval_loss", "gradcheck")),
    *(ROOT / "cli" / "commands" / f"{name}.py" for name in ("explain", "prune", "analyze_geometry", "analyze_similarity")),
    ROOT / "cli" / "explanation_output.py",
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_view_names_a_task(path):
    """No name of a task, nothing of its directory, and no run of any kind."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {name for name in TASKS} & {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not names and not [name for name in imported if re.match(r"weft\.tasks\.(?!spec$)", name)]
    runs = [node for node in ast.walk(tree) if isinstance(node, ast.arg) and node.arg in ("run", "runs", "other")]
    assert not [node.arg for node in runs if node.annotation and re.search(r"\bAny\b", ast.unparse(node.annotation))]


@pytest.mark.parametrize("name", [name for name in TASKS if name != "captioning"])  # inputs are pixels, and views have tokens
def test_every_task_can_be_explained(name):
    task = find_task(name)
    if task.word_vectors is not None:  # a table of vectors, with neighbors instead of predictions
        assert task.explain is None
        return
    if task.file_views is not None:  # of inputs that are files
        assert task.explain is None and task.file_views()
        return
    assert task.explain is not None
    explain = task.explain()
    # what a run writes is shown step by step wherever it is written
    assert (explain.target_tokens is None) == (task.decode is None)
    # of tokens that are predicted, each has its price and each layer its guess
    assert (explain.surprisal is None) == (explain.readout is None) == (task.loss_unit != "token")


def tagger(task):
    config, directory = SimpleNamespace(task="tagging", arch="lstm"), SimpleNamespace(path=Path("runs/a"))
    return SimpleNamespace(task="tagging", spec=task, config=config, directory=directory, members=[])


def test_a_view_that_a_task_lacks_is_refused_in_every_command():
    reasons = {
        beam_search_tree: "view: beam-search is not available: task 'tagging' has no decoding",
        distribution: "view: distribution is not available: task 'tagging' does not generate tokens",
        surprisal: "view: surprisal is not available: task 'tagging' does not predict tokens",
    }
    for view, output in reasons.items():
        with pytest.raises(UsageError) as caught:
            view(tagger(find_task("tagging")), "a", ExplainConfig())
        assert str(caught.value) == output


def test_a_task_without_explainers_is_refused():
    run = tagger(replace(find_task("tagging"), explain=None))
    for view in ("surprisal", "counts"):
        with pytest.raises(UsageError) as caught:
            VIEWS[view].unavailable(run)
        assert str(caught.value) == "runs/a: explanations are not available for task 'tagging'"
    run.members = [SimpleNamespace(network=None)]
    with pytest.raises(UsageError):
        available_views(run)
