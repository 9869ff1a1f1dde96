"""Names that Python's scopes resolve, without types: variables, functions of the module, and what it imports."""

from __future__ import annotations

import ast

from renaming.index import Definition, Function, Index, Key, Module, Place


class Scopes(ast.NodeVisitor):
    """`found` has every plain name of a module by its place; None is one that the tree does not define."""

    def __init__(self, index: Index, module: Module) -> None:
        self.index, self.module = index, module
        self.found: dict[Place, Definition | None] = {}
        self.owners: list[str] = []  # of functions, the innermost last
        self.classes: list[str] = []
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
        if self.classes and not self.owners:
            if (one := self.index.definitions.get(Key(self.module.path, "member", self.classes[-1], node.id))) is not None:
                self.found[place] = one
                return
        resolved, one = self._top(self.module, node.id)
        if resolved:
            self.found[place] = one

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
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
        every = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, *(one for one in (spec.vararg, spec.kwarg) if one is not None)]
        outside = [*node.decorator_list, *spec.defaults, *(one for one in spec.kw_defaults if one is not None)]
        outside += [arg.annotation for arg in every if arg.annotation is not None]
        for part in outside if node.returns is None else [*outside, node.returns]:
            self.visit(part)
        self.owners.append(".".join([*(self.owners[-1:] or self.classes[-1:]), node.name]))
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
