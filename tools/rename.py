#!/usr/bin/env python3
"""Rename a whole tree by the tables in tools/renames/: code by its types, then strings and documents, then modules.

    python3.12 tools/rename.py all --server DIR/bin/basedpyright-langserver --python .venv/bin/python

runs every step; `code`, `repair`, `strings` and `modules` run one. `--root` is the tree (this one, unless set). Nothing
else may change the tree meanwhile. What a step did and what it left to a person is in `--log`. `locals` lists names of
local variables that say nothing, by function; `check` tells what the tables name that the tree does not have. Python 3.12 or
later: names inside f-strings have no places before. tools/renames/README.md describes the tables.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from renaming import code, locals_list, modules, repair, strings
from renaming.index import Index
from renaming.lsp import Server
from renaming.table import assign, read_rows

TABLES = Path(__file__).parent / "renames"
FOLDERS = ("src", "tests", "examples", "benchmarks")  # in this order: what the last import takes the server long


def sources(root: Path) -> list[Path]:
    return [path for name in FOLDERS for path in sorted((root / name).rglob("*.py"))]


def write(log: Path, name: str, lines: list[str]) -> None:
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{name}.txt").write_text("".join(f"{line}\n" for line in sorted(lines)), encoding="utf-8")
    print(f"{name}: {len(lines):,}")


def rename_code(args: argparse.Namespace) -> None:
    index = Index(args.root, sources(args.root))
    assigned = assign(index, read_rows(TABLES / "code.tsv"))
    write(args.log, "code-missing", assigned.missing)
    write(args.log, "code-moved", assigned.moved)
    write(args.log, "code-clashes", assigned.clashes)
    if args.command == "check":
        return
    repair.save_names(index, args.log)
    if str(args.server) == "none":
        found = code.find_edits(None, index, args.root, args.cache)
    else:
        with Server([str(args.server)], args.root, args.python, FOLDERS) as server:
            found = code.find_edits(server, index, args.root, args.cache)
    write(args.log, "code-unresolved", found.unresolved)
    write(args.log, "code-split", found.split)
    write(args.log, "code-guessed", found.guessed)
    write(args.log, "code-done", [f"{one.place.path}:{one.place.line + 1}\t{one.old} -> {one.new}" for one in found.edits])
    print(f"{len(found.edits):,} names in {code.apply(args.root, found.edits)} files")


def format_tree(args: argparse.Namespace) -> None:
    ruff = args.python.parent / "ruff"
    for words in (["check", "--fix-only", "--select", "I", "-q"], ["format", "-q"]):
        subprocess.run([str(ruff), *words, "."], cwd=args.root, check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("all", "check", "code", "repair", "strings", "modules", "locals"))
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--server", type=Path, default=Path("basedpyright-langserver"))
    parser.add_argument("--python", type=Path, default=Path(".venv/bin/python"), help="that of the project's environment")
    parser.add_argument("--log", type=Path, default=Path("renames.log"))
    parser.add_argument("--cache", type=Path, help="answers of the language server, for another try on the same tree")
    parser.add_argument("--tests", action="store_true", help="repair tests by mypy too")
    args = parser.parse_args()
    args.root = args.root.resolve()
    args.python = args.python.absolute()
    if args.command == "locals":
        locals_list.show(args.root)
        return
    steps = {
        "code": rename_code,
        "repair": repair.rename,
        "strings": strings.rename,
        "modules": modules.rename,
    }  # tables of strings name old paths
    for name in steps if args.command == "all" else ["code" if args.command == "check" else args.command]:
        began = time.monotonic()
        steps[name](args)
        if args.command != "check":
            format_tree(args)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
