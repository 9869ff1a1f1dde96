"""Write the hashes of all packages in constraints.txt: `make lock`, after a change of constraints.txt or pyproject.toml.

The lists, installed in this order: demo.txt (weft and its demo), build.txt (tools to build source packages), source.txt (KenLM,
which takes a minute to compile) beside large.txt and dev.txt (checks and tests; large packages are unpacked by a second
process). Only `make docs` installs docs.txt (the documentation site).
torch is in none of them: its builds for CPU and CUDA have the same version, but different hashes.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent
CONSTRAINTS = HERE.parent / "constraints.txt"
COMPILE = ("uv", "pip", "compile", "-q", "--no-deps", "--generate-hashes", "--no-header", "--no-annotate", "-")
LARGE = frozenset(
    (
        "av",
        "ctranslate2",
        "matplotlib",
        "onnx",
        "onnxruntime",
        "pandas",
        "playwright",
        "polars-runtime-32",
        "pyarrow",
        "scikit-learn",
        "scipy",
        "transformers",
    )
)
LISTS = {
    "demo": ("weft[demo]", "editables", "hatchling"),
    "build": ("cmake", "setuptools", "setuptools-scm", "wheel"),
    "source": ("kenlm",),
    "large": tuple(sorted(LARGE)),
    "dev": ("weft[demo,dev]",),
    "docs": ("mkdocstrings[python]", "ruff", "zensical"),
}


def pins() -> dict[str, str]:
    """The lines of constraints.txt by package."""
    lines = [line for line in CONSTRAINTS.read_text(encoding="utf-8").split("\n") if "==" in line]
    return {canonicalize_name(line.partition("==")[0]): line for line in lines}


def closure(roots: tuple[str, ...]) -> set[str]:
    """The packages `roots` and all their installed dependencies."""
    visited: set[tuple[str, str]] = set()  # package, extra
    queue = [(Requirement(root), "") for root in roots]
    while queue:
        requirement, extra = queue.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        for requested_extra in ("", *sorted(requirement.extras)):
            if (name, requested_extra) in visited:
                continue
            visited.add((name, requested_extra))
            try:
                queue += [(Requirement(line), requested_extra) for line in requires(name) or ()]
            except PackageNotFoundError:
                raise SystemExit(f"lock: {name} is required, but not installed; run make install first") from None
    return {name for name, _ in visited} - {"weft", "torch"}


def main() -> None:
    pinned = pins()
    for name, roots in LISTS.items():
        packages = closure(roots) - (closure(LISTS["source"]) | LARGE if name == "dev" else set())
        if name == "large":
            packages &= LARGE
        if missing := sorted(packages - pinned.keys()):
            raise SystemExit(f"lock: not in constraints.txt: {', '.join(missing)}")
        lines = "\n".join(pinned[package] for package in sorted(packages))
        completed = subprocess.run([sys.executable, "-m", *COMPILE], input=lines, capture_output=True, text=True, check=False)
        if completed.returncode:
            raise SystemExit(f"lock: {completed.stderr.strip()}")
        (HERE / f"{name}.txt").write_text("# Made by `make lock` from constraints.txt.\n" + completed.stdout, encoding="utf-8")
        print(f"{name}.txt: {len(packages)} packages")


if __name__ == "__main__":
    main()
