"""The notebook in the docs runs from the first cell to the last and produces its saved outputs."""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "tutorials" / "python.ipynb"
pytestmark = pytest.mark.usefixtures("restore_openmp_env")


def code_cells() -> list[dict[str, Any]]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict[str, Any]) -> object:
    """Run a cell; returns the value of its last expression, as a notebook displays it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, NOTEBOOK.name, "exec"), names)
    return eval(compile(ast.Expression(last.value), NOTEBOOK.name, "eval"), names) if isinstance(last, ast.Expr) else None


@pytest.mark.slow
def test_cells_run_and_produce_the_saved_outputs(tmp_path, monkeypatch):
    (tmp_path / "examples").mkdir()
    shutil.copytree(ROOT / "examples" / "data", tmp_path / "examples" / "data")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in code_cells():
        source, brief = "".join(cell["source"]), {"max_steps": 8}
        for option, value in brief.items():
            source = re.sub(rf'"{option}": \d+', f'"{option}": {value}', source)
        value = run_cell(source, names)
        (result,) = [output for output in cell["outputs"] if output["output_type"] == "execute_result"]
        html = getattr(value, "_repr_html_", None)
        assert (html is not None) == ("text/html" in result["data"]), source
        if html is not None:
            html_output, expected = html(), "".join(result["data"]["text/html"])
            for tag in ("<table", "<svg", "<th>", "<figure"):
                assert html_output.count(tag) == expected.count(tag), (tag, source)


def test_the_saved_outputs_have_no_errors_and_no_progress_bars():
    outputs = [output for cell in code_cells() for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {"execute_result"}
    assert "/" + "root" not in json.dumps(outputs) and "/" + "tmp" not in json.dumps(outputs)
