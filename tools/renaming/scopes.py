"""Names that Python's scopes resolve, without types: variables, functions of the module, and what it imports."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from renaming.index import Definition, Function, Index, Key, Module, Place


class _At(NamedTuple):
    """Where an annotation stands."""

    index: Index
    module: Module


class Scopes(ast.NodeVisitor):
    """`found` has every plain name of a module by its place; None is one that the tree does not define."""

    def __init__(self, index: Index, module: Module) -> None:
        self.index, self.module = index, module
        self.found: dict[Place, Definition | None] = {}
        self.owners: list[str] = []  # of functions, the innermost last
        self.classes: list[str] = []
        self.types: dict[tuple[str, str], ast.expr] = {}  # annotations of parameters and variables by function and name
        self.inferred: dict[tuple[str, str], tuple[str, str]] = {}  # classes of variables that are set once
        self.visit(module.tree)

    def _place(self, line: int, byte_column: int) -> Place:
        text = self.module.lines[line - 1]
        column = byte_column if text.isascii() else len(text.encode()[:byte_column].decode(errors="ignore"))
        return Place(self.module.path, line - 1, column)

    def _top(self, module: Module, name: str, depth: int = 0) -> tuple[bool, Definition | None]:
        """Whether a module's name can be resolved, and what it means, if that is of the tree."""
        if (own := self.index.definitions.get(Key(module.path, "top", "", name))) is not None:
            return True, own
        if name in module.imports and depth < 5:
            dotted, other = module.imports[name]
            if not dotted.startswith("weft") and self.index.file_of(dotted) is None:
                return True, None
            if (path := self.index.file_of(dotted)) is not None:
                return self._top(self.index.modules[path], other, depth + 1)
        return False, None

    def visit_Name(self, node: ast.Name) -> None:
        place = self._place(node.lineno, node.col_offset)
        for owner in reversed(self.owners):
            for kind in ("param", "local"):
                if (one := self.index.definitions.get(Key(self.module.path, kind, owner, node.id))) is not None:
                    self.found[place] = one
                    return
        own = Key(self.module.path, "member", self.classes[-1], node.id) if self.classes and not self.owners else None
        if own is not None and own in self.index.definitions:
            self.found[place] = self.index.definitions[own]
            return
        resolved, one = self._top(self.module, node.id)
        if resolved:
            self.found[place] = one

    # ---- attributes and keywords whose owner is plain to see

    def _class_of(self, annotation: ast.expr | None) -> tuple[str, str] | None:
        """The class of the tree that an annotation names, or names beside None."""
        if isinstance(annotation, ast.BinOp) and isinstance(annotation.right, ast.Constant) and annotation.right.value is None:
            annotation = annotation.left
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str) and annotation.value.isidentifier():
            return self.index.resolve_class(self.module, annotation.value)
        if isinstance(annotation, ast.Subscript):
            annotation = annotation.value
        return self.index.resolve_class(self.module, annotation.id) if isinstance(annotation, ast.Name) else None

    def _member(self, owner: tuple[str, str], name: str) -> Definition | None:
        for path, one in self.index.lineage(*owner):
            if (found := self.index.definitions.get(Key(path, "member", one, name))) is not None:
                return found
        return None

    def _owner_class(self, value: ast.expr) -> tuple[str, str] | None:
        """The class of the tree that an expression has, as far as annotations and constructors say it."""
        if isinstance(value, ast.Name):
            if value.id in ("self", "cls") and self.classes:
                return self.module.path, self.classes[-1]
            for owner in reversed(self.owners):
                if (owner, value.id) in self.types:
                    return self._class_of(self.types[owner, value.id])
                if (owner, value.id) in self.inferred:
                    return self.inferred[owner, value.id]
                if any(Key(self.module.path, kind, owner, value.id) in self.index.definitions for kind in ("param", "local")):
                    return None
            return self.index.resolve_class(self.module, value.id)
        if isinstance(value, ast.Attribute) and (owner := self._owner_class(value.value)) is not None:
            one = self._member(owner, value.attr)
            if one is not None and one.annotation is not None:
                return self._elsewhere(one.key.path, one.annotation)
            return self._returned(one, owner, is_call=False) if one is not None else None
        if isinstance(value, ast.Call):
            if isinstance(value.func, ast.Name):
                if value.func.id == "super" and self.classes:
                    return self.module.path, self.classes[-1]
                if (found := self.index.resolve_class(self.module, value.func.id)) is not None:
                    return found
                _, one = self._top(self.module, value.func.id)
                return self._returned(one, None, is_call=True) if one is not None else None
            if isinstance(value.func, ast.Attribute) and (owner := self._owner_class(value.func.value)) is not None:
                one = self._member(owner, value.func.attr)
                return self._returned(one, owner, is_call=True) if one is not None else None
        return None

    def _elsewhere(self, path: str, annotation: ast.expr) -> tuple[str, str] | None:
        return Scopes._class_of(_At(self.index, self.index.modules[path]), annotation)  # type: ignore[arg-type]

    def _returned(self, one: Definition, owner: tuple[str, str] | None, *, is_call: bool) -> tuple[str, str] | None:
        """The class that a function or property gives."""
        name = f"{one.key.owner}.{one.key.name}" if one.key.owner else one.key.name
        nodes = self.index.functions.get((one.key.path, name), [])
        if len(nodes) != 1 or nodes[0].returns is None:
            return None
        decorators = {ast.unparse(part) for part in nodes[0].decorator_list}
        if bool(decorators & {"property", "cached_property"}) == is_call or "contextmanager" in decorators:
            return None
        if isinstance(nodes[0].returns, ast.Name) and nodes[0].returns.id == "Self":
            return owner
        return self._elsewhere(one.key.path, nodes[0].returns)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        target = node.targets[0]
        if self.owners and len(node.targets) == 1 and isinstance(target, ast.Name):
            key, found = (self.owners[-1], target.id), self._owner_class(node.value)
            known = Key(self.module.path, "local", *key)
            once = known in self.index.definitions and len(self.index.definitions[known].places) == 1
            if found is not None and once and not isinstance(node.value, ast.Name):
                self.inferred[key] = found

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.visit(node.value)
        imported = self.module.imports.get(node.value.id) if isinstance(node.value, ast.Name) else None
        path = None if imported is None else self.index.file_of(".".join(imported))
        if path is not None and node.end_lineno is not None:
            resolved, one = self._top(self.index.modules[path], node.attr)
            if resolved:
                self.found[self._place(node.end_lineno, (node.end_col_offset or 0) - len(node.attr.encode()))] = one
            return
        if node.end_lineno is None or (owner := self._owner_class(node.value)) is None:
            return
        if (one := self._member(owner, node.attr)) is not None:
            self.found[self._place(node.end_lineno, (node.end_col_offset or 0) - len(node.attr.encode()))] = one

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and (owner := self._owner_class(node.func.value)) is not None:
            if (method := self._member(owner, node.func.attr)) is not None:
                name = f"{method.key.owner}.{method.key.name}"
                for word in node.keywords:
                    one = self.index.definitions.get(Key(method.key.path, "param", name, word.arg or ""))
                    if one is not None:
                        self.found[self._place(word.lineno, word.col_offset)] = one
            return
        if not isinstance(node.func, ast.Name) or any(
            Key(self.module.path, kind, owner, node.func.id) in self.index.definitions
            for owner in self.owners
            for kind in ("param", "local")
        ):
            return
        _, one = self._top(self.module, node.func.id)
        if one is None:
            return
        for word in node.keywords:
            if word.arg is not None and (found := self._keyword(one, word.arg)) is not None:
                self.found[self._place(word.lineno, word.col_offset)] = found

    def _keyword(self, called: Definition, name: str) -> Definition | None:
        path = called.key.path
        if called.key.name not in self.index.modules[path].classes:
            return self.index.definitions.get(Key(path, "param", called.key.name, name))
        for file, one in self.index.lineage(path, called.key.name):
            if (file, f"{one}.__init__") in self.index.functions:
                return self.index.definitions.get(Key(file, "param", f"{one}.__init__", name))
            if (field := self.index.definitions.get(Key(file, "member", one, name))) is not None:
                return field
        return None

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if self.owners and isinstance(node.target, ast.Name):
            self.types[self.owners[-1], node.target.id] = node.annotation
        self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        line = self.module.lines[node.lineno - 1]
        for part in re.finditer(r"\w+", line[: line.find(" import ")]):
            self.found[Place(self.module.path, node.lineno - 1, part.start())] = None  # modules have a table of their own
        for alias in node.names:
            if (path := self.index.file_of(node.module or "")) is not None:
                resolved, one = self._top(self.index.modules[path], alias.name)
                if resolved:
                    self.found[self._place(alias.lineno, alias.col_offset)] = one

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in [*node.decorator_list, *node.bases, *node.keywords]:
            self.visit(part)
        before, self.owners = self.owners, []
        self.classes.append(".".join([*self.classes[-1:], node.name]))
        for part in node.body:
            self.visit(part)
        self.classes.pop()
        self.owners = before

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: Function) -> None:
        spec = node.args
        every = [
            *spec.posonlyargs,
            *spec.args,
            *spec.kwonlyargs,
            *(one for one in (spec.vararg, spec.kwarg) if one is not None),
        ]
        outside = [*node.decorator_list, *spec.defaults, *(one for one in spec.kw_defaults if one is not None)]
        outside += [arg.annotation for arg in every if arg.annotation is not None]
        for part in outside if node.returns is None else [*outside, node.returns]:
            self.visit(part)
        self.owners.append(".".join([*(self.owners[-1:] or self.classes[-1:]), node.name]))
        self.types |= {(self.owners[-1], arg.arg): arg.annotation for arg in every if arg.annotation is not None}
        for statement in node.body:
            self.visit(statement)
        self.owners.pop()

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for part in [*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None)]:
            self.visit(part)
        if self.owners:
            self.owners.append(f"{self.owners[-1]}.<lambda>")
        self.visit(node.body)
        if self.owners:
            self.owners.pop()
