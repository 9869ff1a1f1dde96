"""Move modules and packages, and rewrite what names them: imports, dotted names in strings, paths in files and documents."""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

from renaming.table import read_tsv

TABLES = Path(__file__).parents[1] / "renames"
TEXTS = (".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".cfg")
NOT_HERE = {"CHANGELOG.md"}  # tells what was


def _moves(root: Path) -> tuple[dict[str, str], list[str]]:
    """Every file that moves, below src/weft, and rows whose file is gone."""
    rows = [(row[0], row[1]) for row in read_tsv(TABLES / "modules.tsv")]
    base = root / "src" / "weft"
    files = [
        path.relative_to(base).as_posix() for path in base.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    exact = {old: new for old, new in rows if not old.endswith("/")}
    folders = [(old, new) for old, new in rows if old.endswith("/")]
    moves = dict[str, str]()
    for name in files:
        new = exact.get(name, "")
        for old_folder, new_folder in folders:
            if not new and name.startswith(old_folder):
                new = new_folder + name.removeprefix(old_folder)
        if new and new != name:
            moves[name] = new
    return moves, [f"{old} -> {new}" for old, new in exact.items() if old not in files]


def _dotted(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _git_move(root: Path, moves: dict[str, str]) -> list[str]:
    base = root / "src" / "weft"
    clashes = list[str]()
    # by way of a name that nothing has: one file may take the place of another
    for old in moves:
        subprocess.run(["git", "mv", f"src/weft/{old}", f"src/weft/{old}.moving"], cwd=root, check=True)
    for old, new in moves.items():
        if (base / new).exists():
            clashes.append(f"{old} -> {new}: is there already")
            new = old
        (base / new).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "mv", f"src/weft/{old}.moving", f"src/weft/{new}"], cwd=root, check=True)
        init = (base / new).parent / "__init__.py"
        if not init.exists() and new.count("/") and f"{Path(new).parent}/__init__.py" not in moves.values():
            init.write_text("", encoding="utf-8")
            subprocess.run(["git", "add", str(init)], cwd=root, check=True)
    for folder in sorted({(base / old).parent for old in moves}, reverse=True):
        if folder.exists() and not any(path for path in folder.iterdir() if path.name != "__pycache__"):
            folder.rmdir() if not any(folder.iterdir()) else None
    return clashes


class _Names:
    """Old dotted and slashed names in texts."""

    def __init__(self, moves: dict[str, str]) -> None:
        self.dotted = {f"weft.{_dotted(old)}": f"weft.{_dotted(new)}" for old, new in moves.items() if old.endswith(".py")}
        self.paths = {old: new for old, new in moves.items() if "/" in old}
        packages = {old.partition("/")[0]: new.partition("/")[0] for old, new in moves.items() if "/" in old and "/" in new}
        for old, new in packages.items():
            if f"{old}/__init__.py" in moves:
                self.dotted.setdefault(f"weft.{old}", f"weft.{new}")
        self._dotted_re = re.compile(
            rf"(?<![\w.])(?:{'|'.join(map(re.escape, sorted(self.dotted, key=len, reverse=True)))})(?![\w])"
        )
        self._path_re = re.compile(
            rf"(?<![\w./-])((?:src/)?(?:weft/)?)({'|'.join(map(re.escape, sorted(self.paths, key=len, reverse=True)))})(?![\w])"
        )
        top = {old: new for old, new in moves.items() if "/" not in old}
        self.top = top
        self._top_re = re.compile(
            rf"(?<![\w.-])((?:src/)?weft/)({'|'.join(map(re.escape, sorted(top, key=len, reverse=True))) or '(?!)'})(?![\w])"
        )
        # `from weft.nn import state`: the module is a name of its package
        self.from_package = dict[tuple[str, str], tuple[str, str]]()
        for old, new in self.dotted.items():
            self.from_package[*_split(old)] = _split(new)

    def text(self, text: str) -> str:
        text = re.sub(r"^(\s*)from (weft[\w.]*) import ([^\n(]+)$", self._from, text, flags=re.M)
        text = self._dotted_re.sub(lambda found: self.dotted[found[0]], text)
        text = self._path_re.sub(lambda found: found[1] + self.paths[found[2]], text)
        return self._top_re.sub(lambda found: found[1] + self.top[found[2]], text)

    def _from(self, found: re.Match[str]) -> str:
        package, names = found[2], [part.strip() for part in found[3].split("#")[0].split(",")]
        stay, lines = list[str](), list[str]()
        for name in names:
            bare, _, alias = name.partition(" as ")
            if (package, bare) in self.from_package:
                new_package, new_name = self.from_package[package, bare]
                alias = alias or bare  # what it is called in the module stays
                lines.append(f"from {new_package} import {new_name}" + ("" if alias == new_name else f" as {alias}"))
            else:
                stay.append(name)
        if not lines:
            return found[0]
        if stay:
            lines.insert(0, f"from {package} import {', '.join(stay)}")
        return "\n".join(found[1] + line for line in lines)


def _split(dotted: str) -> tuple[str, str]:
    package, _, name = dotted.rpartition(".")
    return package, name


def tracked(root: Path) -> list[Path]:
    names = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split("\n")
    return [root / name for name in names if name and (root / name).is_file()]


def rename(args: argparse.Namespace) -> None:
    root: Path = args.root
    moves, gone = _moves(root)
    clashes = _git_move(root, moves)
    names = _Names(moves)
    changed = 0
    for path in tracked(root):
        if (
            (path.suffix not in TEXTS and path.name != "Makefile")
            or path.name in NOT_HERE
            or "tools" in path.relative_to(root).parts[:1]
        ):
            continue
        text = path.read_text(encoding="utf-8")
        if (new := names.text(text)) != text:
            path.write_text(new, encoding="utf-8")
            changed += 1
    print(f"{len(moves)} modules moved, {changed} files rewritten")
    args.log.mkdir(parents=True, exist_ok=True)
    (args.log / "modules.txt").write_text(
        "".join(f"{line}\n" for line in [*(f"gone: {one}" for one in gone), *(f"clash: {one}" for one in clashes)]),
        encoding="utf-8",
    )
