"""Rename what stands in strings and documents: options and values of run files, flags, metrics, names of files.

A word is renamed where its meaning is certain: under its table in a text of TOML, as `table.option`, as a key of a dict that
has options of one table only, as a flag of a command that is named before it, as a name that means nothing else. All other
places of such words, as far as a string is nothing but one, are listed.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import defaultdict
from fnmatch import fnmatchcase
from pathlib import Path

from renaming.modules import tracked
from renaming.table import read_tsv

TABLES = Path(__file__).parents[1] / "renames"
SKIPPED = ("CHANGELOG.md", "tools/*", "requirements/*", "constraints.txt", "benchmarks/results/*")
PLAIN_TASKS = {"lm", "masked-lm", "translate", "classify"}  # as strings they mean nothing else

# options that as a string mean nothing else
UNIQUE = {
    *("mixer", "two_way", "feed_forward", "head_size", "every_step", "cross_heads", "attention_size", "min_count", "sublinear"),
    *("longest_answer", "accumulate", "matrix_lr", "beta2", "layer_decay", "thaw", "sample_length", "ngrams", "slopes"),
}


class Words:
    """The tables."""

    def __init__(self) -> None:
        self.options = defaultdict[str, dict[str, str]](dict)
        for table, old, new, *_ in read_tsv_loose(TABLES / "options.tsv"):
            self.options[table][old] = old if new == "=" else new
        for name in ("data:lm", "data:span"):
            self.options[name] = self.options["data"] | self.options[name]
        self.options["data"] = self.options["data:lm"] | self.options["data"]  # stride is one of running text
        self.values = defaultdict[str, dict[str, str]](dict)
        for option, old, new, *_ in read_tsv(TABLES / "values.tsv"):
            self.values[option.rpartition(".")[2]][old] = new
        self.flags = defaultdict[str, dict[str, str]](dict)
        for command, old, new, *_ in read_tsv(TABLES / "flags.tsv"):
            self.flags[command][old] = new
        self.commands = [(row[0], row[1]) for row in read_tsv(TABLES / "commands.tsv")]
        self.metrics = {row[0]: row[1] for row in read_tsv(TABLES / "metrics.tsv")}
        self.files = {row[0]: row[1] for row in read_tsv(TABLES / "files.tsv")}
        self.exact = [(row[0], row[1], row[2]) for row in read_tsv(TABLES / "strings.tsv")]
        every = defaultdict[str, set[str]](set)
        for flags in self.flags.values():
            for old, new in flags.items():
                every[old].add(new)
        sure = {old: next(iter(news)) for old, news in every.items() if len(news) == 1 and old not in ("--data", "--suite")}
        self.any_flag = sure | self.flags["*"]
        self.tasks = self.values["task"]
        self.passing = set[str]()  # functions of tests that take options by name and pass them on
        tables = [names for name, names in self.options.items() if name]
        self.unique = {old: new for names in tables for old, new in names.items() if old in UNIQUE and old != new}

    def table(self, name: str, task: str = "") -> dict[str, str]:
        if name == "data":
            return self.options["data:span" if task in ("span", "qa") else "data"]
        if name.startswith("tokenizer"):
            return self.options["tokenizer"]
        if name == "model.features":
            return self.options[name]
        return self.options["model"] if name.startswith("model") else self.options.get(name, {})

    def value(self, option: str, value: str) -> str:
        """A value of an option by its new name, quoted or not."""
        bare = value.strip("\"'")
        new = self.values.get(option, {}).get(bare) or (self.metrics.get(bare) if option == "monitor" else None)
        return value.replace(bare, new) if new and bare else value


def read_tsv_loose(path: Path) -> list[list[str]]:
    """With empty first cells: those of the top level."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n")]
    return [row for row in rows if len(row) >= 3 and not row[0].startswith("#")]


LINE = r"(?:^|(?<=\n)|(?<=\\n)|(?<=[\"']))"
TOML = re.compile(
    rf"{LINE}(?P<hash>[ \t]*#?[ \t]*)\[(?P<table>(?:data|tokenizer|model|train)(?:\.\w+)*)\](?=\s|\\n|$|[\"'])"
    rf"|{LINE}(?P<lead>[ \t]*(?:# ?)?)(?P<key>[A-Za-z]\w*)(?P<equals>[ \t]*=[ \t]*)"
    r"(?P<value>\\?\"[^\"\\\n]*\\?\"|[^\s#\\,\"']+)?"
)
DOTTED = re.compile(
    r"(?<![\w./-])(?P<table>(?:data|tokenizer|model|train)(?:\.(?:encoder|decoder|features|spelling|source|target))*)"
    r"\.(?P<key>[A-Za-z]\w*)(?P<rest>=(?P<value>[\w.-]+))?(?![\w(])(?!\.(?:py|md|toml|txt|csv|tsv|json|zst|gz|jsonl)\b)"
)
NOT_OPTIONS = re.compile(r"data\.(?:source|train|valid|test|text|label|tag)\b(?=\.(?:txt|csv|tsv))")


class Texts:
    """Rewrites a text: the inside of a string literal as it is written, a run file, a document."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self.metric_re = re.compile(
            rf"(?<![A-Za-z0-9.])((?:valid_|test_|train_)?)({'|'.join(sorted(words.metrics, key=len, reverse=True))})(?![\w(])"
        )
        self.file_re = re.compile("|".join(rf"(?<![\w]){re.escape(old)}" for old in sorted(words.files, key=len, reverse=True)))

    def toml(self, text: str, table: str = "", task: str = "") -> str:
        """`key = value` below a `[table]`; the table that the text begins in may be given."""
        state = [table, task]

        def change(found: re.Match[str]) -> str:
            if found["table"] is not None:
                state[0] = found["table"]
                return found[0].replace("[model.spelling]", "[model.char_encoder]")
            key, value = found["key"], found["value"] or ""
            if not state[0] and key == "task" and value:
                state[1] = value.strip("\\\"'")
                return f"{found['lead']}{key}{found['equals']}{_put(value, self.words.tasks)}"
            names = self.words.table(state[0], state[1]) if state[0] else {}
            if key not in names:
                return found[0]
            new = names[key]
            return f"{found['lead']}{new}{found['equals']}{self.words.value(new, value) if value else ''}"

        return TOML.sub(change, text)

    def dotted(self, text: str) -> str:
        def change(found: re.Match[str]) -> str:
            names = self.words.table(found["table"])
            if found["key"] not in names:
                return found[0]
            new = names[found["key"]]
            table = found["table"].replace("spelling", "char_encoder")
            rest = f"={self.words.value(new, found['value'])}" if found["rest"] else ""
            return f"{table}.{new}{rest}"

        return DOTTED.sub(change, text)

    def names(self, text: str) -> str:
        text = self.metric_re.sub(lambda found: found[1] + self.words.metrics[found[2]], text)
        return self.file_re.sub(lambda found: self.words.files[found[0]], text)

    def flags(self, text: str, command: str = "") -> str:
        known = self.words.flags.get(command, {}) if command else {}

        def change(found: re.Match[str]) -> str:
            return known.get(found[0]) or self.words.any_flag.get(found[0], found[0])

        return re.sub(r"(?<![\w-])--[a-z][a-z-]*(?![\w-])", change, text)

    def commands(self, text: str) -> str:
        """Lines with `weft COMMAND ...`."""
        names = "|".join(name for name in self.words.flags if name.isalpha())

        def change(found: re.Match[str]) -> str:
            rest = self.flags(found[3], found[2])
            if found[2] in ("init", "demo"):
                rest = re.sub(r"^( +)([\w-]+)", lambda part: part[1] + self.words.tasks.get(part[2], part[2]), rest)
            rest = re.sub(r"(--models[ =])(\S+)", lambda part: part[1] + _list(part[2], self.words.values["arch"]), rest)
            rest = re.sub(r"(--arch[ =])(\S+)", lambda part: part[1] + _list(part[2], self.words.values["arch"]), rest)
            return f"{found[1]}{found[2]}{rest}"

        return re.sub(rf"(\bweft )({names})\b(?!-)([^`\n]*)", change, text)

    def document(self, text: str) -> str:
        lines = "\n".join(self.commands(line) if "weft " in line else self.flags(line) for line in text.split("\n"))
        return self.names(self.dotted(lines))


def _put(value: str, known: dict[str, str]) -> str:
    bare = value.strip("\\\"'")
    return value.replace(bare, known[bare]) if bare in known else value


def _list(text: str, known: dict[str, str]) -> str:
    return ",".join(known.get(part, part) for part in text.split(","))


class Python:
    """String literals of one source file."""

    def __init__(self, path: str, text: str, words: Words) -> None:
        self.path, self.text, self.words, self.texts = path, text, words, Texts(words)
        self.exact: dict[tuple[int, int], str] = {}  # line and column of a constant: what it becomes
        self.keywords: dict[tuple[int, int], tuple[str, str]] = {}  # of calls
        self.listed: list[str] = []
        self.rows = [(old, new) for pattern, old, new in words.exact if fnmatchcase(path, pattern)]
        self.tree = ast.parse(text)
        self.command = next((command for pattern, command in words.commands if fnmatchcase(path, pattern)), "")

    def rewritten(self) -> str:
        for node in ast.walk(self.tree):  # what a row says of this file goes first, also that a word stays
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for old, new in self.rows:
                    if node.value == old:
                        self.exact[node.lineno, node.col_offset] = new
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                self._call(node)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Dict):
                self._dict(node, self._table_of(node))
            elif isinstance(node, ast.Compare):
                self._compare(node)
            elif isinstance(node, ast.Subscript):
                self._subscript(node)
            elif isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Call):
                self._sequence(node)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in self.words.unique:
                self._set(node, self.words.unique[node.value])
        return self._apply()

    # ---- constants by what surrounds them

    def _call(self, node: ast.Call) -> None:
        """Names of parameters in `parametrize` stay; options that a helper passes on follow."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "parametrize" and node.args:
            for part in ast.walk(node.args[0]):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    self.exact[part.lineno, part.col_offset] = part.value
        if self.path.startswith("tests/") and name in self.words.passing:
            for word in node.keywords:
                if word.arg in self.words.options["model"]:
                    self.keywords[word.lineno, word.col_offset] = (word.arg, self.words.options["model"][word.arg])
                    self._value(self.words.options["model"][word.arg], word.value)

    def _set(self, node: ast.AST | None, new: str) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != new:
            self.exact.setdefault((node.lineno, node.col_offset), new)

    def _value(self, option: str, node: ast.AST) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            new = self.words.value(option, node.value)
            if new != node.value:
                self._set(node, new)
        elif isinstance(node, ast.List | ast.Tuple):
            for part in node.elts:
                self._value(option, part)
        elif isinstance(node, ast.IfExp):
            self._value(option, node.body)
            self._value(option, node.orelse)

    def _table_of(self, node: ast.Dict) -> str:
        """The table that a dict is, by its keys."""
        keys = [key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
        if not keys:
            return ""
        if {"task", "model"} & {*keys} and {*keys} <= {"task", "seed", "data", "tokenizer", "model", "train"}:
            return "run"
        fits = [
            name for name in ("model", "train", "tokenizer", "data", "model.features") if {*keys} <= {*self.words.table(name)}
        ]
        sure = len(keys) > 1 or keys[0] in ("kind", "mixer", "two_way", "feed_forward", "head_size", "batch_tokens")
        return fits[0] if len(fits) == 1 and sure else ""

    def _dict(self, node: ast.Dict, table: str, task: str = "") -> None:
        if table == "run":
            pairs = {
                key.value: value for key, value in zip(node.keys, node.values, strict=True) if isinstance(key, ast.Constant)
            }
            said = pairs.get("task")
            task = said.value if isinstance(said, ast.Constant) and isinstance(said.value, str) else ""
            self._value("task", said) if said is not None else None
            for name in ("data", "tokenizer", "model", "train"):
                if isinstance(inner := pairs.get(name), ast.Dict):
                    self._dict(inner, name, task)
            return
        names = self.words.table(table, task) if table else {}
        for key, value in zip(node.keys, node.values, strict=True):
            if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
                continue
            if table and key.value in names:
                self._set(key, names[key.value])
                self._value(names[key.value], value)
                if isinstance(value, ast.Dict):
                    self._dict(value, "model.features" if key.value == "features" else table, task)
            elif key.value == "task":
                self._value("task", value)
            elif not table and key.value in ("model", "train", "tokenizer", "data") and isinstance(value, ast.Dict):
                self._dict(value, key.value, task)
        self._tasks([key for key in node.keys if key is not None])

    def _tasks(self, parts: list[ast.expr]) -> None:
        """Names of tasks beside a name that can mean nothing else."""
        texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        for part in parts:
            if (
                isinstance(part, ast.Constant)
                and part.value in self.words.tasks
                and (part.value in PLAIN_TASKS or {*texts} & PLAIN_TASKS)
            ):
                self._set(part, self.words.tasks[str(part.value)])

    def _compare(self, node: ast.Compare) -> None:
        left = node.left
        name = left.attr if isinstance(left, ast.Attribute) else left.id if isinstance(left, ast.Name) else ""
        if isinstance(left, ast.Subscript) and isinstance(left.slice, ast.Constant):
            name = str(left.slice.value)
        news = {new for names in self.words.options.values() for new in names.values()}
        olds = {old: new for table in ("model", "tokenizer", "data", "train") for old, new in self.words.table(table).items()}
        option = name if name in news else olds.get(name, name)
        if name == "kind":
            option = "arch"
        for part in node.comparators:
            self._value(option, part)
            if isinstance(part, ast.Set):
                for one in part.elts:
                    self._value(option, one)

    def _subscript(self, node: ast.Subscript) -> None:
        """values["model"]["width"]; model["width"]."""
        if not isinstance(node.slice, ast.Constant) or not isinstance(node.slice.value, str):
            return
        owner = node.value
        table = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
        if isinstance(owner, ast.Subscript) and isinstance(owner.slice, ast.Constant):
            table = str(owner.slice.value)
        if table in ("model", "train", "tokenizer", "features") and node.slice.value in (
            names := self.words.table(table if table != "features" else "model.features")
        ):
            self._set(node.slice, names[node.slice.value])

    def _sequence(self, node: ast.List | ast.Tuple | ast.Set | ast.Call) -> None:
        parts = node.args if isinstance(node, ast.Call) else node.elts
        texts = [part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "" for part in parts]
        command = next((text for text in texts if text in self.words.flags), "")
        first = next((text for text in texts if text), "")
        for part, text in zip(parts, texts, strict=True):
            if text.startswith("--") and command and text in self.words.flags[command]:
                self._set(part, self.words.flags[command][text])
        if not isinstance(node, ast.Call) or first in ("init", "demo"):
            self._tasks(list(parts))
        if not isinstance(node, ast.Call) and len(parts) > 1 and all(texts):
            fits = [
                name
                for name in ("model", "train", "tokenizer", "data", "model.features")
                if {*texts} <= {*self.words.table(name)}
            ]
            if len(fits) == 1 and any(self.words.table(fits[0])[text] != text for text in texts):
                for part, text in zip(parts, texts, strict=True):
                    self._set(part, self.words.table(fits[0])[text])
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for word in node.keywords:
                if word.arg in (
                    "kind",
                    "arch",
                    "task",
                    "mixer",
                    "layer_type",
                    "norm",
                    "pooling",
                    "masking",
                    "smoothing",
                    "activation",
                ):
                    self._value({"kind": "arch", "mixer": "layer_type"}.get(word.arg, word.arg), word.value)
            if name == "getattr" and len(parts) > 1:
                self._table_words(parts[1])

    def _table_words(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            news = {
                names[node.value]
                for table in ("model", "train", "data", "tokenizer")
                if node.value in (names := self.words.table(table))
            }
            if len(news) == 1:
                self._set(node, news.pop())

    # ---- the text of literals

    def _apply(self) -> str:
        lines = self.text.split("\n")
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line) + 1)

        def offset(line: int, column: int) -> int:
            return starts[line - 1] + column

        olds = {old for names in self.words.options.values() for old, new in names.items() if old != new}
        docs = _docstrings(self.tree)
        out, last = list[str](), 0
        table, in_toml = "", False
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
                table, in_toml = "", False
            if token.type == tokenize.NAME:
                at = (token.start[0], len(lines[token.start[0] - 1][: token.start[1]].encode()))
                if self.keywords.get(at, ("",))[0] == token.string:
                    out += [self.text[last : offset(*token.start)], self.keywords[at][1]]
                    last = offset(*token.end)
            if token.type not in (tokenize.STRING, tokenize.FSTRING_MIDDLE):
                continue
            begin, end = offset(*token.start), offset(*token.end)
            if token.type == tokenize.FSTRING_MIDDLE:  # braces are doubled in the source, and single in the token
                end = begin + len(token.string) + token.string.count("{") + token.string.count("}")
            source = self.text[begin:end]
            byte_column = len(lines[token.start[0] - 1][: token.start[1]].encode())
            new = self.exact.get((token.start[0], byte_column))
            if new is not None and token.type == tokenize.STRING:
                quote = source.lstrip("rRbBuU")[:1]
                changed = source[: source.index(quote)] + quote + new + quote
            elif (token.start[0], byte_column) in docs:
                changed = self.texts.document(source)
            else:
                in_toml = in_toml or (
                    TOML.search(source) is not None
                    and re.search(r"\[(?:data|model|train|tokenizer)[\w.]*\]|task = ", source) is not None
                )
                changed = self.texts.toml(source, table) if in_toml else source
                if in_toml and (heads := re.findall(r"\[((?:data|model|train|tokenizer)[\w.]*)\]", source)):
                    table = heads[-1]
                changed = self.texts.names(self.texts.dotted(self.texts.commands(changed)))
                changed = self.texts.flags(changed, self.command)
                bare = source.strip("rRbBuU\"'")
                if bare in olds and changed == source:
                    self.listed.append(f"{self.path}:{token.start[0]}\t{bare}\t{lines[token.start[0] - 1].strip()}")
            out += [self.text[last:begin], changed]
            last = end
        return "".join(out) + self.text[last:]


def _docstrings(tree: ast.Module) -> set[tuple[int, int]]:
    found = set[tuple[int, int]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False) is not None:
            value = node.body[0].value  # type: ignore[attr-defined]
            found.add((value.lineno, value.col_offset))
    return found


def rename(args: argparse.Namespace) -> None:
    words = Words()
    texts = Texts(words)
    listed, changed = list[str](), list[str]()
    for path in (args.root / "tests").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.args.kwarg is not None:
                words.passing.add(node.name)
    for path in tracked(args.root):
        name = path.relative_to(args.root).as_posix()
        if any(fnmatchcase(name, pattern) for pattern in SKIPPED):
            continue
        if path.suffix not in (".py", ".md", ".toml") and path.name != "Makefile":
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".py":
            python = Python(name, text, words)
            new = python.rewritten()
            listed += python.listed
        elif path.suffix == ".toml":
            new = text if path.name == "pyproject.toml" else texts.names(texts.commands(texts.toml(text)))
        else:
            new = texts.document(_toml_blocks(text, texts))
        if new != text:
            path.write_text(new, encoding="utf-8")
            changed.append(name)
    args.log.mkdir(parents=True, exist_ok=True)
    (args.log / "strings-by-hand.txt").write_text("".join(f"{line}\n" for line in listed), encoding="utf-8")
    print(f"strings in {len(changed)} files; {len(listed):,} that are one word, listed for a person")


def _toml_blocks(text: str, texts: Texts) -> str:
    return re.sub(r"(?ms)^( *)```toml\n.*?^ *```", lambda found: texts.toml(found[0]), text)
