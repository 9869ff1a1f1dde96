"""Rename definitions and all that refers to them, as the language server resolves it."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from renaming.index import Definition, Index, Place, from_utf16, names_in, to_utf16
from renaming.lsp import Server
from renaming.scopes import Scopes

Question = tuple[Path, int, int]


BUILTIN = {
    name
    for kind in (
        str,
        bytes,
        list,
        dict,
        tuple,
        set,
        int,
        float,
        io.BufferedReader,
        io.StringIO,
        Path,
        re.Match,
        re.Pattern,
        Counter,
    )
    for name in dir(kind)
} | {"size", "shape", "mean", "max", "min", "sum", "to", "device", "dtype", "item", "view", "where"}


class Edit(NamedTuple):
    place: Place
    old: str
    new: str


class Outcome(NamedTuple):
    edits: list[Edit]
    unresolved: list[str]  # places of an old name that the server could not resolve
    split: list[str]  # places that mean several definitions, of which some change, or change otherwise
    guessed: list[str]  # attributes of values without a type, renamed because every class that has one has it renamed so


def _candidates(index: Index, olds: set[str]) -> list[tuple[Place, str]]:
    found = list[tuple[Place, str]]()
    for path, module in index.modules.items():
        for name, line, column in names_in("\n".join(module.lines)):
            if name in olds:
                found.append((Place(path, line, column), name))
    return found


def _warm_up(server: Server, index: Index, root: Path) -> None:
    """Wait until the server has read the tree: it answers at once, but with nothing, before."""
    path = next(name for name in index.modules if name.startswith("src/") and index.modules[name].classes)
    line = next(iter(index.modules[path].classes.values())).lineno - 1
    column = index.modules[path].lines[line].index("class ") + 6
    for _ in range(600):
        _, found = next(iter(server.definitions([(root / path, line, column)], lambda done, total: None)))
        if found:
            return
    raise SystemExit("the language server does not know the tree")


def _progress(done: int, total: int) -> None:
    if done % 100 == 0 or done == total:
        print(f"\r{done:,} of {total:,} names", end="\n" if done == total else "", file=sys.stderr, flush=True)


def find_edits(server: Server | None, index: Index, root: Path, cache: Path | None) -> Outcome:
    """Every name that has to change; nothing is written."""
    changed = [one for one in index.definitions.values() if one.new and one.new != one.key.name]
    candidates = dict(_candidates(index, {one.key.name for one in changed}))
    out = Outcome([], [], [], [])
    calls = _callable_members(index, changed)
    questions = list[Question]()
    back = dict[Question, Place]()
    plain = dict[Place, Definition | None]()
    for module in index.modules.values():
        plain |= Scopes(index, module).found
    for place in candidates:
        if place in index.at or place in plain:
            definition = index.at.get(place) or plain.get(place)
            if definition is not None and definition.new and definition.key.name == candidates[place]:
                out.edits.append(Edit(place, definition.key.name, definition.new))
            continue
        line = index.modules[place.path].lines[place.line]
        if _is_other(calls.get(candidates[place]), line, place.column, candidates[place]):
            continue
        asked = (root / place.path, place.line, to_utf16(line, place.column))
        questions.append(asked)
        back[asked] = place
    for asked, places in _answers(server, index, root, questions, cache):
        _decide(index, back[asked], candidates[back[asked]], _known(index, root, places), bool(places), out)
    return out


def _callable_members(index: Index, changed: list[Definition]) -> dict[str, bool]:
    """Names of members that are all methods, or all values: used otherwise they are something else, as `.size(` of tensors."""
    found = defaultdict[str, set[bool]](set)
    for one in changed:
        if one.key.kind == "member":
            nodes = index.functions.get((one.key.path, f"{one.key.owner}.{one.key.name}"), [])
            plain = [
                node
                for node in nodes
                if not {ast.unparse(part) for part in node.decorator_list} & {"property", "cached_property"}
            ]
            found[one.key.name].add(bool(plain))
    return {name: next(iter(kinds)) for name, kinds in found.items() if len(kinds) == 1}


def _is_other(called: bool | None, line: str, column: int, name: str) -> bool:
    if called is None or line[:column][-1:] != ".":
        return False
    return called != line[column + len(name) :].startswith("(")


def _answers(
    server: Server | None, index: Index, root: Path, questions: list[Question], cache: Path | None
) -> Iterator[tuple[Question, list[Question]]]:
    """Where each name is defined; what was asked before of the same tree is not asked again."""
    tree = hashlib.sha256()
    for path in sorted(index.modules):
        tree.update("\n".join([path, *index.modules[path].lines]).encode())
    key = tree.hexdigest()
    known = dict[Question, list[Question]]()
    if cache is not None and cache.exists():
        found = json.loads(cache.read_text())
        if found["tree"] == key:
            known = {_place(root, one): [_place(root, place) for place in places] for one, places in found["known"]}
    new = [] if server is None else [one for one in questions if one not in known]
    if new and server is not None:
        _warm_up(server, index, root)
    for count, (asked, places) in enumerate([] if server is None else server.definitions(new, _progress), 1):
        known[asked] = places
        if cache is not None and (count % 2_000 == 0 or count == len(new)):
            rows = [[_relative(root, one), [_relative(root, place) for place in places]] for one, places in known.items()]
            cache.write_text(json.dumps({"tree": key, "known": rows}))
    for asked in questions:
        yield asked, known.get(asked, [])


def _relative(root: Path, one: Question) -> list[Any]:
    return [str(one[0].relative_to(root) if one[0].is_relative_to(root) else one[0]), one[1], one[2]]


def _place(root: Path, one: list[Any]) -> Question:
    return root / one[0], one[1], one[2]


def _known(index: Index, root: Path, places: Iterable[tuple[Path, int, int]]) -> list[Definition]:
    found = list[Definition]()
    for path, line, column in places:
        if not path.is_relative_to(root) or (name := path.relative_to(root).as_posix()) not in index.modules:
            continue
        text = index.modules[name].lines[line]
        if (one := index.at.get(Place(name, line, from_utf16(text, column)))) is not None:
            found.append(one)
    return found


def _decide(index: Index, place: Place, name: str, found: list[Definition], resolved: bool, out: Outcome) -> None:
    where = f"{place.path}:{place.line + 1}:{place.column + 1}"
    own = [one for one in found if one.key.name == name]
    if not resolved:
        if (new := _guess(index, place, name)) is not None:
            if new != name:
                out.guessed.append(f"{where}\t{name} -> {new}\t{index.modules[place.path].lines[place.line].strip()}")
                out.edits.append(Edit(place, name, new))
            return
        out.unresolved.append(f"{where}\t{name}\t{index.modules[place.path].lines[place.line].strip()}")
        return
    news = {one.new or name for one in own}
    if len(news) > 1:
        meant = "; ".join(sorted({f"{one.key.path}:{one.key.owner}.{one.key.name} -> {one.new or '='}" for one in own}))
        out.split.append(f"{where}\t{name}\t{meant}")
        best, times = Counter(one.new for one in own if one.new).most_common(1)[0]
        if times * 2 >= len(own):
            out.edits.append(Edit(place, name, best))
    elif news and news != {name}:
        out.edits.append(Edit(place, name, news.pop()))


def _guess(index: Index, place: Place, name: str) -> str | None:
    """What an attribute of a value without a type becomes, if all members of this name become the same."""
    line = index.modules[place.path].lines[place.line]
    if line[: place.column][-1:] != ".":
        return None
    for pattern, ending, new in index.endings:
        if line[: place.column + len(name)].endswith(ending) and fnmatchcase(place.path, pattern):
            return new
    if name in BUILTIN:
        return None
    if not index.members:
        for key, definition in index.definitions.items():
            if key.kind == "member" and key.path.startswith("src/"):
                index.members[key.name].add(definition.new or key.name)
    news = index.members[name]
    return next(iter(news)) if len(news) == 1 else None


def apply(root: Path, edits: list[Edit]) -> int:
    """Write the edits; how many files changed."""
    by_file = defaultdict[str, set[Edit]](set)
    for edit in edits:
        by_file[edit.place.path].add(edit)
    for name, own in by_file.items():
        path = root / name
        lines = path.read_text(encoding="utf-8").split("\n")
        for edit in sorted(own, key=lambda one: (one.place.line, one.place.column), reverse=True):
            line, at = lines[edit.place.line], edit.place.column
            if line[at : at + len(edit.old)] != edit.old:
                raise SystemExit(f"{name}:{edit.place.line + 1}: expected {edit.old!r} at column {at + 1}")
            lines[edit.place.line] = line[:at] + edit.new + line[at + len(edit.old) :]
        path.write_text("\n".join(lines), encoding="utf-8")
    return len(by_file)
