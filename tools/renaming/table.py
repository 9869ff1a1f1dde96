"""The rows of tools/renames/code.tsv, and the definitions that each of them names.

A row is: modules, symbol, new name, note. `modules` is a path below src/weft without its end, or a pattern (`nn/*`, `*`,
`tests/*`). `symbol` is one of

    name                    a class, function or constant of the module
    Class.name              a method, field or attribute; subclasses that define it again follow
    function(name)          a parameter; Class.method(name); Class(name) is one of __init__; overriding methods follow
    function:name           a local variable
    function~name           either
    @text.name              the attribute of a value whose type nobody knows, where the source ends so

and its parts may be patterns: `*(keep)` is the parameter of any function and method, `*.given` the method of any class.
The new name `=` keeps the old one. Rows without a pattern go before rows with one, those of one module before those of many;
otherwise the first row wins. What a row without a pattern names and its module has no longer is looked for in all modules.
"""

from __future__ import annotations

import ast
import csv
import re
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from renaming.index import Definition, Index, Key

SYMBOL = re.compile(
    r"^(?P<owner>[\w.*?\[\]<>]*?)(?:\((?P<param>\w+)\)|:(?P<local>\w+)|~(?P<either>\w+)|(?:(?<=[\w*])\.(?P<member>\w+)))?$"
)


class Row(NamedTuple):
    modules: str
    symbol: str
    new: str
    note: str
    number: int

    @property
    def looseness(self) -> tuple[int, bool, int]:
        return (2 if self.modules == "*" else "*" in self.modules), "*" in self.symbol, self.number

    def __str__(self) -> str:
        return f"{self.modules} {self.symbol} -> {self.new}"


def read_tsv(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [row for row in rows if row and row[0] and not row[0].startswith("#")]


def read_rows(path: Path) -> list[Row]:
    found = []
    for number, row in enumerate(read_tsv(path), 1):
        modules, symbol, new, *note = row
        found.append(Row(modules, symbol, new, " ".join(note), number))
    return sorted(found, key=lambda row: row.looseness)


def _module_pattern(modules: str) -> str:
    if modules == "*":
        return "src/*"
    return f"{modules}.py" if modules.startswith(("tests/", "benchmarks/", "examples/")) else f"src/weft/{modules}.py"


def _wanted(symbol: str) -> tuple[tuple[str, ...], str, str]:
    """The kinds, the pattern of the owner, and the name."""
    if (found := SYMBOL.match(symbol)) is None:
        raise SystemExit(f"{symbol}: not a symbol")
    owner = found["owner"]
    if found["either"]:
        return ("param", "local"), owner, found["either"]
    if found["param"]:
        last = owner.rpartition(".")[2].lstrip("_")
        return ("param",), f"{owner}.__init__" if last[:1].isupper() else owner, found["param"]
    if found["local"]:
        return ("local",), owner, found["local"]
    if found["member"]:
        return ("member",), owner, found["member"]
    return ("top",), "", owner


def _family(index: Index, key: Key) -> list[Key]:
    """A member or parameter, and those of subclasses that stand for the same."""
    if key.kind == "top" or key.kind == "local":
        return [key]
    of_class, dot, method = (key.owner, "", "") if key.kind == "member" else key.owner.rpartition(".")
    if not of_class or method == "__init__":
        return [key]
    below = index.subclasses.get((key.path, of_class), set())
    keys = [Key(path, key.kind, f"{name}{dot}{method}", key.name) for path, name in below]
    return [key, *(one for one in keys if one in index.definitions)]


class Assigned(NamedTuple):
    missing: list[str]  # rows that name nothing
    moved: list[str]  # rows whose symbol is in another module by now
    clashes: list[str]  # new names that their scope has already: left as they are


def assign(index: Index, rows: list[Row]) -> Assigned:
    """Give definitions their new names."""
    by_name: dict[tuple[str, str], list[Key]] = {}
    for key in index.definitions:
        by_name.setdefault((key.kind, key.name), []).append(key)
    found = Assigned([], [], [])
    for row in rows:
        if row.symbol.startswith("@"):
            index.endings.append((_module_pattern(row.modules), row.symbol[1:], row.new))
            continue
        kinds, owner, name = _wanted(row.symbol)
        known = [
            key for kind in kinds for key in by_name.get((kind, name), []) if kind == "top" or fnmatchcase(key.owner, owner)
        ]
        pattern = _module_pattern(row.modules)
        matches = [key for key in known if fnmatchcase(key.path, pattern)]
        if not matches and "*" not in row.modules + row.symbol:
            matches = [key for key in known if key.path.startswith("src/") and not index.definitions[key].row]
            if len({key.path for key in matches}) > 1:
                matches = []
            found.moved.extend(f"{row}: in {key.path}" for key in matches)
        if not matches:
            found.missing.append(str(row))
        for match in matches:
            for key in _family(index, match):
                definition = index.definitions[key]
                if not definition.row:
                    definition.row = str(row)
                    definition.new = "" if row.new in ("=", name) else row.new
    for clash, definition in list(_clashes(index)):
        definition.new = ""
        found.clashes.append(clash)
    return found


def _bound(index: Index, key: Key) -> set[str]:
    """The names that a function uses, nested ones included."""
    names = set[str]()
    for node in index.functions.get((key.path, key.owner), []):
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                names.add(part.id)
            elif isinstance(part, ast.arg):
                names.add(part.arg)
    return names


def _clashes(index: Index) -> Iterator[tuple[str, Definition]]:
    """Definitions whose new name would mean two things in its scope."""
    taken = defaultdict[tuple[str, str, str], list[Definition]](list)
    for one in index.definitions.values():
        taken[one.key.path, one.key.owner, one.new or one.key.name].append(one)
    for one in index.definitions.values():
        if not one.new:
            continue
        path, kind, owner, name = one.key
        same = [other for other in taken[path, owner, one.new] if other is not one and other.new]
        why = f"{same[0].key.name} becomes the same" if same else ""
        if kind in ("param", "local"):
            if not why and one.new in _bound(index, one.key):
                before = index.definitions.get(Key(path, "param", owner, one.new)) or index.definitions.get(
                    Key(path, "local", owner, one.new)
                )
                why = "" if before is not None and before.new else "is used there"
        elif kind == "member":
            near = [(path, owner), *index.subclasses.get((path, owner), set())]
            near += [above for above, below in index.subclasses.items() if (path, owner) in below]
            others = [index.definitions.get(Key(file, "member", cls, one.new)) for file, cls in near]
            why = why or ("the class has one" if any(other is not None and not other.new for other in others) else "")
        else:
            module = index.modules[path]
            there = index.definitions.get(Key(path, "top", "", one.new))
            why = why or ("the module has one" if there is not None and not there.new else "")
            why = why or ("the module imports one" if one.new in module.imports else "")
        if why:
            yield f"{path}:{one.places[0].line + 1}\t{owner}\t{name} -> {one.new}\t{why}", one
