"""Write the hashes of everything that constraints.txt pins: `make lock`, after a change of constraints.txt or pyproject.toml.

The lists, installed in this order: demo.txt (weft and its demo), build.txt (tools that compile packages that come as source),
source.txt (KenLM, which takes a minute to compile) beside dev.txt (checks and tests); and docs.txt (the documentation site),
which only `make docs` installs. torch is in none of them: its builds for CPU and for CUDA have one version, but
different hashes.
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
LISTS = {
    "demo": ("weft[demo]", "editables", "hatchling"),
    "build": ("cmake", "setuptools", "setuptools-scm", "wheel"),
    "source": ("kenlm",),
    "dev": ("weft[demo,dev]",),
    "docs": ("mkdocstrings[python]", "ruff", "zensical"),
}


def pins() -> dict[str, str]:
    """Every line of constraints.txt by its package."""
    lines = [line for line in CONSTRAINTS.read_text(encoding="utf-8").split("\n") if "==" in line]
    return {canonicalize_name(line.partition("==")[0]): line for line in lines}


def closure(roots: tuple[str, ...]) -> set[str]:
    """What `roots` need, themselves included, as installed here."""
    found: set[tuple[str, str]] = set()
    waiting = [(Requirement(root), "") for root in roots]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        for asked in ("", *sorted(requirement.extras)):
            if (name, asked) in found:
                continue
            found.add((name, asked))
            try:
                waiting += [(Requirement(line), asked) for line in requires(name) or ()]
            except PackageNotFoundError:
                raise SystemExit(f"lock: {name} is needed and not installed; run make install first") from None
    return {name for name, _ in found} - {"weft", "torch"}


def main() -> None:
    pinned = pins()
    for name, roots in LISTS.items():
        packages = closure(roots) - (closure(LISTS["source"]) if name == "dev" else set())
        if missing := sorted(packages - pinned.keys()):
            raise SystemExit(f"lock: not in constraints.txt: {', '.join(missing)}")
        asked = "\n".join(pinned[package] for package in sorted(packages))
        done = subprocess.run([sys.executable, "-m", *COMPILE], input=asked, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"lock: {done.stderr.strip()}")
        (HERE / f"{name}.txt").write_text("# Made by `make lock` from constraints.txt.\n" + done.stdout, encoding="utf-8")
        print(f"{name}.txt: {len(packages)} packages")


if __name__ == "__main__":
    main()
