"""What the language server did not resolve, by mypy: its errors name the class, or the function, and the old name."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections import defaultdict
from pathlib import Path

from renaming.index import Index, Key

ROUNDS = 8
ERROR = re.compile(r"^(?P<path>[^:]+):(?P<line>\d+):(?P<column>\d+): error: (?P<text>.*)$")
ATTRIBUTE = re.compile(
    r"(?:Item )?\"(?:type\[)?(?P<owner>\w+)(?:\[.*?\])?\]?\"(?: of \".*?\")? has no attribute \"(?P<name>\w+)\""
)
MODULE = re.compile(
    r"Module \"?(?P<owner>[\w.]+)\"? has no attribute \"(?P<name>\w+)\"|Module has no attribute \"(?P<bare>\w+)\""
)
KEYWORD = re.compile(r"Unexpected keyword argument \"(?P<name>\w+)\" +(?:for \"(?P<call>\w+)\"(?: of \"(?P<owner>\w+)\")?|\[)")
UNDEFINED = re.compile(r"Name \"(?P<name>\w+)\" is not defined")
Names = dict[str, dict[str, str]]  # by owner: old names and new ones; only those that are sure


def save_names(index: Index, log: Path) -> None:
    """What mypy's errors may speak of, by the new names of classes and functions."""
    found = defaultdict[str, dict[str, set[str]]](lambda: defaultdict(set))
    for module in index.modules.values():
        if not module.path.startswith("src/"):
            continue
        for name in module.classes:
            own = index.definitions.get(Key(module.path, "top", "", name))
            title = own.new if own is not None and own.new else name
            for path, one in index.lineage(module.path, name):
                for key in index.by_owner.get((path, one), []):
                    found[title][key.name].add(index.definitions[key].new or key.name)
                for key in index.by_owner.get((path, f"{one}.__init__"), []):
                    found[f"{title}()"][key.name].add(index.definitions[key].new or key.name)
    for key, one in index.definitions.items():
        if key.kind == "param":
            owner, _, function = key.owner.rpartition(".")
            top = index.definitions.get(Key(key.path, "top", "", function)) or index.definitions.get(
                Key(key.path, "member", owner, function)
            )
            title = top.new if top is not None and top.new else function
            found[f"{title}()"][key.name].add(one.new or key.name)
            found[f"{key.path}()"][key.name].add(one.new or key.name)
        if key.kind == "top":
            found["*"][key.name].add(one.new or key.name)
    sure = {owner: {old: next(iter(news)) for old, news in names.items() if len(news) == 1} for owner, names in found.items()}
    changed = {owner: {old: new for old, new in names.items() if old != new} for owner, names in sure.items()}
    log.mkdir(parents=True, exist_ok=True)
    (log / "names.json").write_text(json.dumps({owner: names for owner, names in changed.items() if names}), encoding="utf-8")


def _edit(path: str, text: str, names: Names) -> tuple[str, str, str] | None:
    """The pattern of the place, the old name and the new one."""
    if (found := KEYWORD.search(text)) is not None:
        owners = [f"{found['call']}()", found["call"] or "", found["owner"] or "", f"{path}()"]
        pattern, name = r"(?<![\w.])%s(?= ?=[^=])", found["name"]
    elif (found := ATTRIBUTE.search(text)) is not None:
        owners, pattern, name = [found["owner"]], r"(?<=\.)%s\b", found["name"]
    elif (found := MODULE.search(text)) is not None:
        owners, pattern, name = ["*"], r"\b%s\b", found["name"] or found["bare"]
    elif (found := UNDEFINED.search(text)) is not None:
        owners, pattern, name = ["*"], r"\b%s\b", found["name"]
    else:
        return None
    new = next((names[owner][name] for owner in owners if name in names.get(owner, {})), None)
    return None if new is None else (pattern % name, name, new)


def _round(args: argparse.Namespace, names: Names, targets: list[str]) -> tuple[int, list[str]]:
    command = [str(args.python.parent / "mypy"), "--show-column-numbers", "--no-error-summary", "--no-pretty", *targets]
    out = subprocess.run(command, cwd=args.root, capture_output=True, text=True, check=False).stdout.split("\n")
    errors = [found for line in out if (found := ERROR.match(line)) is not None]
    done = 0
    lines = dict[str, list[str]]()
    seen = set[tuple[str, int, str]]()
    for error in errors:
        edit = _edit(error["path"], error["text"], names)
        at = int(error["line"]) - 1
        if edit is None or (error["path"], at, edit[1]) in seen:
            continue
        own = lines.setdefault(error["path"], (args.root / error["path"]).read_text(encoding="utf-8").split("\n"))
        for line in range(at, min(at + 12, len(own))):  # a call may have its keywords below
            start = int(error["column"]) - 1 if line == at else 0
            if (place := re.compile(edit[0]).search(own[line], max(0, start - 1))) is not None:
                own[line] = own[line][: place.start()] + edit[2] + own[line][place.end() :]
                seen.add((error["path"], at, edit[1]))
                done += 1
                break
    for path, own in lines.items():
        (args.root / path).write_text("\n".join(own), encoding="utf-8")
    return done, [error[0] for error in errors]


def rename(args: argparse.Namespace) -> None:
    names: Names = json.loads((args.log / "names.json").read_text(encoding="utf-8"))
    rest = list[str]()
    for targets in (["src"], ["src", "tests"]) if args.tests else (["src"],):
        for number in range(ROUNDS):
            done, rest = _round(args, names, targets)
            print(f"mypy {' '.join(targets)}, round {number + 1}: {len(rest)} errors, {done} repaired", flush=True)
            if not done:
                break
    (args.log / "mypy.txt").write_text("".join(f"{line}\n" for line in rest), encoding="utf-8")
