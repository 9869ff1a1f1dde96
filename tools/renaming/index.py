"""What a tree defines: every class, function, parameter, field, attribute, constant and local variable, by its places."""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """A place in a file; line and column count from 0, columns in characters."""

    path: str  # relative to the root of the tree
    line: int
    column: int


class Key(NamedTuple):
    """What a definition is, without its places: `kind` is top, member, param or local."""

    path: str
    kind: str
    owner: str  # the class of a member; the function, with its class, of a parameter or local variable
    name: str


@dataclass
class Definition:
    key: Key
    places: list[Place] = field(default_factory=list)
    new: str = ""
    row: str = ""  # the row of the table that named it
    annotation: ast.expr | None = None  # of a member


@dataclass
class Module:
    path: str
    lines: list[str]
    tree: ast.Module
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)  # name: (dotted module, name there)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)


def to_utf16(line: str, column: int) -> int:
    return len(line[:column].encode("utf-16-le")) // 2


def from_utf16(line: str, column: int) -> int:
    return column if line.isascii() else len(line.encode("utf-16-le")[: 2 * column].decode("utf-16-le", "ignore"))


def names_in(text: str) -> Iterator[tuple[str, int, int]]:
    """Every name of a source text with its line and column from 0; those inside f-strings too (Python 3.12 and later)."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            yield token.string, token.start[0] - 1, token.start[1]


class Index:
    """All definitions of some files of a tree."""

    def __init__(self, root: Path, paths: list[Path]) -> None:
        self.root = root
        self.modules: dict[str, Module] = {}
        self.definitions: dict[Key, Definition] = {}
        self.at: dict[Place, Definition] = {}
        self.members: dict[str, set[str]] = defaultdict(set)  # new names of members by the old one
        self.endings: list[tuple[str, str, str]] = []  # of expressions without a type: pattern of files, ending, new name
        self.functions: dict[tuple[str, str], list[Function]] = defaultdict(list)
        for path in paths:
            text = path.read_text(encoding="utf-8")
            name = path.relative_to(root).as_posix()
            self.modules[name] = Module(name, text.split("\n"), ast.parse(text, str(path)))
        for module in self.modules.values():
            _Collector(self, module).visit(module.tree)
        self.subclasses = self._subclasses()
        self.by_owner = defaultdict[tuple[str, str], list[Key]](list)
        for key in self.definitions:
            self.by_owner[key.path, key.owner].append(key)

    def add(self, module: Module, key: Key, line: int, byte_column: int) -> None:
        text = module.lines[line]
        column = byte_column if text.isascii() else len(text.encode()[:byte_column].decode(errors="ignore"))
        place = Place(module.path, line, column)
        if text[column : column + len(key.name)] != key.name:
            return  # inside an f-string that spans lines, or a name written otherwise
        definition = self.definitions.setdefault(key, Definition(key))
        definition.places.append(place)
        self.at[place] = definition

    def file_of(self, dotted: str) -> str | None:
        for start in ("src/", "tests/", "benchmarks/", "tools/", ""):
            for end in (".py", "/__init__.py"):
                if (name := f"{start}{dotted.replace('.', '/')}{end}") in self.modules:
                    return name
        return None

    def resolve_class(self, module: Module, name: str, depth: int = 0) -> tuple[str, str] | None:
        """The file and class that a name of a module means, if it is one of the tree."""
        if name in module.classes:
            return module.path, name
        if name in module.imports and depth < 5:
            dotted, other = module.imports[name]
            if (path := self.file_of(dotted)) is not None:
                return self.resolve_class(self.modules[path], other, depth + 1)
        return None

    def lineage(self, path: str, name: str, depth: int = 0) -> Iterator[tuple[str, str]]:
        """A class and those it inherits from, as far as they are of the tree."""
        module = self.modules[path]
        if name not in module.classes or depth > 10:
            return
        yield path, name
        for base in module.classes[name].bases:
            base = base.value if isinstance(base, ast.Subscript) else base
            last = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
            if (found := self.resolve_class(module, last)) is not None:
                yield from self.lineage(*found, depth + 1)

    def _subclasses(self) -> dict[tuple[str, str], set[tuple[str, str]]]:
        """Each class with all that inherit from it."""
        children = defaultdict[tuple[str, str], set[tuple[str, str]]](set)
        for module in self.modules.values():
            for name, node in module.classes.items():
                for base in node.bases:
                    base = base.value if isinstance(base, ast.Subscript) else base
                    last = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
                    if (found := self.resolve_class(module, last)) is not None:
                        children[found].add((module.path, name))
        self._add_structural(children)
        closed = dict[tuple[str, str], set[tuple[str, str]]]()
        for one in list(children):
            todo, known = [one], set[tuple[str, str]]()
            while todo:
                new = children.get(todo.pop(), set()) - known
                known |= new
                todo += new
            closed[one] = known
        return closed

    def _add_structural(self, children: dict[tuple[str, str], set[tuple[str, str]]]) -> None:
        """A class that has all of a protocol's methods, two at least, counts as one that inherits from it."""
        methods = {
            (module.path, name): {part.name for part in node.body if isinstance(part, Function) and part.name[0] != "_"}
            for module in self.modules.values()
            for name, node in module.classes.items()
        }
        for (path, name), wanted in methods.items():
            bases = [ast.unparse(base) for base in self.modules[path].classes[name].bases]
            if len(wanted) > 1 and any(base.startswith("Protocol") for base in bases):
                children[path, name] |= {one for one, own in methods.items() if wanted <= own and one != (path, name)}


class _Collector(ast.NodeVisitor):
    def __init__(self, index: Index, module: Module) -> None:
        self.index, self.module = index, module
        self.classes: list[str] = []
        self.functions: list[str] = []  # with the class before the outermost

    def _add(self, kind: str, owner: str, name: str, line: int, column: int) -> None:
        self.index.add(self.module, Key(self.module.path, kind, owner, name), line - 1, column)

    def _bind(self, name: str, line: int, column: int) -> None:
        if self.functions:
            self._add("local", self.functions[-1], name, line, column)
        elif self.classes:
            self._add("member", self.classes[-1], name, line, column)
        else:
            self._add("top", "", name, line, column)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for one in node.names:
            self.module.imports[one.asname or one.name] = (node.module or "", one.name)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in [*node.decorator_list, *node.bases, *node.keywords]:
            self.visit(part)
        self._named(node, "class")
        if not self.functions:
            self.module.classes[".".join([*self.classes, node.name])] = node
        before, self.functions = self.functions, []
        self.classes.append(".".join([*self.classes[-1:], node.name]))
        for part in node.body:
            self.visit(part)
        self.classes.pop()
        self.functions = before

    def _named(self, node: Function | ast.ClassDef, word: str) -> None:
        line = self.module.lines[node.lineno - 1]
        start = line.index(f"{word} ", len(line) - len(line.lstrip())) + len(word) + 1
        self._bind(node.name, node.lineno, len(line[:start].encode()))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node, "def")

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node, "def")

    def _function(self, node: Function, word: str) -> None:
        spec = node.args
        for part in [*node.decorator_list, *spec.defaults, *(one for one in spec.kw_defaults if one is not None)]:
            self.visit(part)
        self._named(node, word)
        owner = ".".join([*(self.functions[-1:] or self.classes[-1:]), node.name])
        self.functions.append(owner)
        self.index.functions[self.module.path, owner].append(node)
        extra = [one for one in (spec.vararg, spec.kwarg) if one is not None]
        for arg in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *extra]:
            self._add("param", owner, arg.arg, arg.lineno, arg.col_offset)
        for statement in node.body:
            self.visit(statement)
        self.functions.pop()

    def visit_Lambda(self, node: ast.Lambda) -> None:
        spec = node.args
        if self.functions:
            for arg in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]:
                self._add("local", f"{self.functions[-1]}.<lambda>", arg.arg, arg.lineno, arg.col_offset)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            params = Key(self.module.path, "param", self.functions[-1] if self.functions else "", node.id)
            if params in self.index.definitions:  # a parameter that is set anew stays the parameter
                self._add("param", self.functions[-1], node.id, node.lineno, node.col_offset)
            else:
                self._bind(node.id, node.lineno, node.col_offset)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        if self.classes and not self.functions and isinstance(node.target, ast.Name):
            key = Key(self.module.path, "member", self.classes[-1], node.target.id)
            self.index.definitions[key].annotation = node.annotation

    def visit_Attribute(self, node: ast.Attribute) -> None:
        own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if isinstance(node.ctx, ast.Store) and own and self.classes and node.end_lineno == node.lineno:
            end = node.end_col_offset or 0
            self._add("member", self.classes[-1], node.attr, node.lineno, end - len(node.attr.encode()))
        self.generic_visit(node)
