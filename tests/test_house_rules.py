"""The rules of CONTRIBUTING.md that can be checked automatically, for every file in src/."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import weft
from weft.tasks.registry import TASKS

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "weft").rglob("*.py"))
NAMES = [path.relative_to(ROOT / "src").as_posix() for path in SOURCES]

# Exceptions, each with its reason: {"weft/place.py:function": "why"}.
STARS_ALLOWED: dict[str, str] = {
    "weft/runs/run.py:predict": "options by name, as people type them; the task's table refuses unknown ones",
    "weft/runs/run.py:evaluate": "as predict",
    "weft/runs/run.py:generate": "as predict; GenerationConfig refuses unknown ones",
    "weft/runs/run.py:stream": "as generate",
    "weft/report/compare.py:compare": "as predict; ComparisonOptions refuses unknown ones",
    "weft/report/fit.py:fit": "as compare; FitOptions refuses unknown ones",
    "weft/runs/run.py:explain": "as generate; ExplainConfig refuses unknown ones",
    "weft/serve/engine.py:predict": "as in runs/run.py",
    "weft/serve/engine.py:try_predict": "as predict",
    "weft/serve/engine.py:generate": "as predict; GenerationConfig refuses unknown ones",
    "weft/serve/engine.py:chat": "as generate",
    "weft/serve/engine.py:stream": "as generate",
    "weft/serve/engine.py:explain": "as generate; ExplainConfig refuses unknown ones",
    "weft/config.py:__pydantic_init_subclass__": "the signature of pydantic's hook",
}
ASSERTS_ALLOWED: dict[str, str] = {}

# What each part may import of weft, besides itself, when it is imported or run; what only a type checker reads is free. A name
# stands for the module or directory weft.<name>; of a directory and a module in it, the module's own row counts.
BASE = {"errors", "config", "html", "files", "lock", "log"}
TEXT = BASE | {"text"}
MODELS = TEXT | {"resources", "media", "data", "nn", "decode.incremental", "models"}
TRAINING = MODELS | {"decode", "metrics", "tensors", "backup", "parallel", "vectors", "training"}
RECORD = {"tasks.spec", "tasks.data_spec", "tasks.compare_spec", "tasks.registry"}  # the definition of tasks
LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "html": set(),
    "allocations": set(),
    "resources": {"allocations"},
    "config": {"errors"},
    "files": {"errors"},
    "lock": {"errors", "files"},
    "log": {"errors", "files"},
    "tensors": {"errors", "files"},
    "backup": {"errors", "files"},
    "parallel": {"errors"},
    "text": BASE,
    "media": BASE,
    "data": TEXT | {"media"},
    "nn": {"errors"},
    "plots": {"errors", "text"},  # numbers in, SVG out; how texts and numbers are written in one
    "models": MODELS,
    "decode": TEXT | {"resources", "nn.state", "parallel"},
    "metrics": TEXT | {"data"},
    "vectors": TEXT | {"tensors"},
    "lexicon": TEXT | {"metrics", "vectors"},
    "training": TRAINING,
    "tasks.registry": BASE,
    "tasks.compare_spec": set(),
    "tasks.spec": {"errors", "config", "html", "metrics.score_table", "text.table_layout", "tasks.compare_spec"},
    "tasks.data_spec": {"errors", "config"},
    "runs.run": {
        "errors",
        "config",
        "data.memory",
        "decode.options",
        "parallel.group",
        "explain.views",
        "training.device",
        "runs.memory_data",
        "runs.engine",
    }
    | RECORD,
    "runs": TRAINING | RECORD | {"tasks.prepare", "tasks.prepared_data"},
    "tasks.prepare": TRAINING | RECORD | {"tasks.prepared_data"},
    "tasks.prepared_data": TRAINING | RECORD,
    "tasks.prepare_shards": TRAINING | RECORD | {"tasks.prepared_data"},
    "explain": TRAINING | RECORD | {"runs", "plots", "tasks.prepare"},
    "tasks": TRAINING | {"runs", "explain"},
    "comparison": TRAINING | RECORD | {"runs", "tasks.prepare"},
    "interop": TRAINING | RECORD | {"runs"},
    "report": TRAINING | RECORD | {"runs", "plots", "explain", "comparison", "tasks.detect", "tasks.detection"},
    "serve": TRAINING | RECORD | {"runs", "interop", "explain"},
}
TOP = {"cli", "__main__", "__init__"}  # these may import everything


@cache
def parse(text: str) -> ast.Module:
    return ast.parse(text)


def tree(path: Path) -> ast.Module:
    return parse(path.read_text(encoding="utf-8"))


@cache
def nodes(module: ast.Module) -> list[ast.AST]:
    """All nodes of a file: most rules look at each of them."""
    return list(ast.walk(module))


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(module: ast.Module) -> Iterator[Function]:
    return (node for node in nodes(module) if isinstance(node, Function))


def parameters(function: Function) -> int:
    """Number of parameters that a caller sees, without self and cls."""
    spec = function.args
    names = [arg.arg for arg in [*spec.posonlyargs, *spec.args]]
    return len(names) + len(spec.kwonlyargs) - (names[:1] in (["self"], ["cls"]))


def nesting(node: ast.AST) -> int:
    """Maximum nesting depth of a function; elif is as deep as its if, inner functions start at 0."""
    deepest = 0
    for name, field in ast.iter_fields(node):
        if not isinstance(field, list):
            continue
        for child in field:
            if not isinstance(child, ast.AST) or isinstance(child, Function | ast.ClassDef | ast.Lambda):
                continue
            blocks = isinstance(child, ast.If | ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try)
            blocks = blocks or isinstance(child, ast.Match)
            follows = name == "orelse" and isinstance(node, ast.If) and len(field) == 1 and isinstance(child, ast.If)
            deepest = max(deepest, nesting(child) + (blocks and not follows))
    return deepest


def long_files(path: Path, module: ast.Module) -> Iterator[str]:
    lines = path.read_text(encoding="utf-8").count("\n")
    if lines > 400:
        yield f"{lines} lines; at most 400"


def long_functions(path: Path, module: ast.Module) -> Iterator[str]:
    for function in functions(module):
        lines = (function.end_lineno or 0) - function.lineno + 1
        if lines > 60:
            yield f"{function.lineno}: {function.name} has {lines} lines; at most 60"


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether Triton compiles the function, whose parameters are pointers and numbers, one by one."""
    return any(ast.unparse(decorator) == "triton.jit" for decorator in function.decorator_list)


def many_parameters(path: Path, module: ast.Module) -> Iterator[str]:
    for function in functions(module):
        if parameters(function) > 7 and not is_kernel(function):
            yield f"{function.lineno}: {function.name} has {parameters(function)} parameters; at most 7"


def deep_nesting(path: Path, module: ast.Module) -> Iterator[str]:
    for function in functions(module):
        if nesting(function) > 3:
            yield f"{function.lineno}: {function.name} is {nesting(function)} blocks deep; at most 3"


def stars(path: Path, module: ast.Module) -> Iterator[str]:
    for function in functions(module):
        location = f"{path.relative_to(ROOT / 'src').as_posix()}:{function.name}"
        if (function.args.vararg or function.args.kwarg) and location not in STARS_ALLOWED:
            yield f"{function.lineno}: {function.name} takes *args or **kwargs"


def asserts(path: Path, module: ast.Module) -> Iterator[str]:
    for node in nodes(module):
        if not isinstance(node, ast.Assert):
            continue
        if f"{path.relative_to(ROOT / 'src').as_posix()}:{node.lineno}" not in ASSERTS_ALLOWED:
            yield f"{node.lineno}: assert; raise an error from weft.errors, or none"


def dotted(node: ast.AST) -> str:
    """'torch.load' for such an expression; '' for anything else."""
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def in_cli(path: Path) -> bool:
    return path.is_relative_to(ROOT / "src" / "weft" / "cli") or path.name == "__main__.py"


def printing(path: Path, module: ast.Module) -> Iterator[str]:
    for node in nodes(module):
        if isinstance(node, ast.Call) and dotted(node.func) in ("print", "input", "breakpoint") and not in_cli(path):
            yield f"{node.lineno}: {dotted(node.func)}; only cli/ talks to the user"


def environment(path: Path, module: ast.Module) -> Iterator[str]:
    for node in nodes(module):
        if isinstance(node, ast.Attribute) and dotted(node) in ("os.environ", "os.getenv", "os.putenv") and not in_cli(path):
            yield f"{node.lineno}: {dotted(node)}; only cli/ reads the environment"


GLOBAL_STATE = {
    "torch.set_num_threads",
    "torch.set_num_interop_threads",
    "torch.set_default_dtype",
    "torch.set_default_device",
    "torch.use_deterministic_algorithms",
    "torch.set_float32_matmul_precision",
    "random.seed",
    "numpy.random.seed",
    "np.random.seed",
}


def global_state(path: Path, module: ast.Module) -> Iterator[str]:
    seeds = {"torch.manual_seed"} if "training" not in path.parts else set()  # the loop seeds before each step
    for node in nodes(module):
        if isinstance(node, ast.Call) and dotted(node.func) in GLOBAL_STATE | seeds and not in_cli(path):
            yield f"{node.lineno}: {dotted(node.func)} changes the state of the whole process"


UNSAFE = {"eval", "exec", "compile", "torch.load", "torch.save", "__import__", "numpy.load", "np.load"}
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


def unsafe(path: Path, module: ast.Module) -> Iterator[str]:
    for node in nodes(module):
        if isinstance(node, ast.Call) and dotted(node.func) in UNSAFE:
            plain = any(word.arg == "allow_pickle" and _is_false(word.value) for word in node.keywords)
            if not (dotted(node.func).endswith("p.load") or dotted(node.func) == "numpy.load") or not plain:
                yield f"{node.lineno}: {dotted(node.func)} can run what a file says"
        for name in imported(node):
            if name.split(".")[0] in UNSAFE_MODULES:
                yield f"{getattr(node, 'lineno', 0)}: imports {name}, which can run what a file says"


def _is_false(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def split_lines(path: Path, module: ast.Module) -> Iterator[str]:
    for node in nodes(module):
        if isinstance(node, ast.Attribute) and node.attr == "splitlines":
            yield f"{node.lineno}: splitlines also splits at U+2028, U+0085 and others; split at '\\n'"


def imported(node: ast.AST) -> list[str]:
    """Modules and names of an import statement, dotted."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def part_of(path: Path) -> str:
    """The row of a file in the layer table: that of its module if it has one, else of its directory."""
    steps = path.relative_to(ROOT / "src" / "weft").with_suffix("").parts
    return ".".join(steps[:2]) if ".".join(steps[:2]) in LAYERS else steps[0]


def typing_only(module: ast.Module) -> set[ast.AST]:
    """Statements that only a type checker reads."""
    blocks = [node for node in nodes(module) if isinstance(node, ast.If) and dotted(node.test) == "TYPE_CHECKING"]
    return {inner for block in blocks for statement in block.body for inner in ast.walk(statement)}


def layering(path: Path, module: ast.Module) -> Iterator[str]:
    part, free = part_of(path), typing_only(module)
    if part in TOP:
        return
    if part not in LAYERS:
        yield f"weft.{part} has no place in the table of layers"
        return
    for node in nodes(module):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield f"{node.lineno}: relative import; write weft.{part}"
        for name in imported(node):
            steps = name.split(".")
            package = part.split(".")[0] if part in ("tasks", "runs") else part
            if steps[0] != "weft" or steps[1:2] in ([], [package], ["__version__"]) or node in free:
                continue
            if not {steps[1], ".".join(steps[1:3])} & LAYERS[part]:
                yield f"{getattr(node, 'lineno', 0)}: weft.{part} may not import {name}"


@cache
def part_classes() -> set[str]:
    """Classes that models are made of, without configs and tuples of values."""
    plain = {"Config", "NamedTuple", "Protocol", "Enum", "StrEnum"}
    return {
        node.name
        for path in SOURCES
        if {"nn", "models"} & set(path.relative_to(ROOT / "src").parts)
        for node in nodes(tree(path))
        if isinstance(node, ast.ClassDef) and not any(_stem(base) in plain for base in node.bases)
    }


def _stem(base: ast.AST) -> str:
    return dotted(base.value if isinstance(base, ast.Subscript) else base).split(".")[-1]


def asking_for_kinds(path: Path, module: ast.Module) -> Iterator[str]:
    for node in nodes(module):
        if not isinstance(node, ast.Call) or dotted(node.func) not in ("isinstance", "issubclass", "hasattr"):
            continue
        classes = {dotted(part).split(".")[-1] for part in ast.walk(node.args[1])}
        if dotted(node.func) == "hasattr" or classes & part_classes():
            yield f"{node.lineno}: {ast.unparse(node)}; the protocol is missing something"


MIXERS = {"conv", "rnn", "lstm", "gru", "attention"}


def comparing_mixers(path: Path, module: ast.Module) -> Iterator[str]:
    """What depends on the mixer of a stack must be a trait in the registry."""
    for node in nodes(module):
        if not isinstance(node, ast.Compare | ast.Match):
            continue
        operands = [node.subject] if isinstance(node, ast.Match) else [node.left, *node.comparators]
        inside = [part for item in operands for part in ast.walk(item)]
        constants = {part.value for part in inside if isinstance(part, ast.Constant)}
        is_layer_type = "layer_type" in constants or any(dotted(part).split(".")[-1] == "layer_type" for part in inside)
        if is_layer_type and (isinstance(node, ast.Match) or constants & MIXERS):
            yield f"{node.lineno}: the name of a mixer is compared; ask its row in MIXERS, `config.traits`"


TASK_FOLDERS = {registered.package.removeprefix("weft.tasks.") for registered in TASKS.values()}
# allowed tables keyed by task names, with the reason
TASK_TABLES_ALLOWED: dict[str, str] = {
    "weft/cli/commands/demo.py": "content: the two stories that are told, no property of a task",
    "weft/errors.py": "content: what other programs call a task, beside all other names that people try",
}


def task_folder(path: Path) -> str | None:
    """The task whose directory contains a file."""
    parts = path.relative_to(ROOT / "src" / "weft").parts
    return parts[1] if parts[0] == "tasks" and len(parts) > 2 else None


def _mentions_task(node: ast.AST) -> bool:
    """Whether an expression refers to a task: `run.task`, `config.task`, `values["task"]`."""
    return "task" in _constants([node]) or any("task" in dotted(part).split(".") for part in ast.walk(node))


def _constants(nodes: Iterable[ast.AST | None]) -> set[str]:
    inside = [part for node in nodes if node is not None for part in ast.walk(node)]
    return {part.value for part in inside if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def comparing_tasks(path: Path, module: ast.Module) -> Iterator[str]:
    """What depends on the task of a run must be a field of its record."""
    if task_folder(path) is not None:
        return
    for node in nodes(module):
        compared = isinstance(node, ast.Compare) and _constants([node]) & TASKS.keys()
        if (compared and _mentions_task(node)) or (isinstance(node, ast.Match) and _mentions_task(node.subject)):
            yield f"{getattr(node, 'lineno', 0)}: the name of a task is compared; ask its record, `run.spec`"


def tables_of_tasks(path: Path, module: ast.Module) -> Iterator[str]:
    """A table keyed by task names must be a field of their records."""
    name = path.relative_to(ROOT / "src").as_posix()
    if task_folder(path) is not None or name == "weft/tasks/registry.py" or name in TASK_TABLES_ALLOWED:
        return
    for node in nodes(module):
        keys = _constants(node.keys) if isinstance(node, ast.Dict) else set()
        looked_up = isinstance(node, ast.Subscript) and dotted(node.value) != "TASKS" and dotted(node.slice).endswith(".task")
        if looked_up or len(keys & TASKS.keys()) > 1:
            yield f"{getattr(node, 'lineno', 0)}: a table keyed by the names of tasks; ask the record, `run.spec`"


def importing_other_tasks(path: Path, module: ast.Module) -> Iterator[str]:
    """Code shared by two tasks must be in tasks/ itself, or below it."""
    task = task_folder(path)
    for node in nodes(module) if task is not None else ():
        for name in imported(node):
            steps = name.split(".")
            if steps[:2] == ["weft", "tasks"] and steps[2] in TASK_FOLDERS - {task}:
                yield f"{getattr(node, 'lineno', 0)}: tasks/{task} imports {name}, of another task"


def untyped_runs(path: Path, module: ast.Module) -> Iterator[str]:
    """A run must be typed as `Run[I, P]` or `AnyRun`."""
    for node in nodes(module):
        name, kind = (node.arg, node.annotation) if isinstance(node, ast.arg) else ("", None)
        if isinstance(node, ast.AnnAssign):
            name, kind = dotted(node.target).split(".")[-1], node.annotation
        if name not in ("run", "runs") or kind is None:
            continue
        if ast.unparse(kind) in ("Any", "Any | None", "object") or re.fullmatch(r"\w+\[(str, )?Any\]", ast.unparse(kind)):
            yield f"{getattr(node, 'lineno', 0)}: {name} is {ast.unparse(kind)}; name its type, Run or AnyRun"


def guessing_attributes(path: Path, module: ast.Module) -> Iterator[str]:
    """getattr with a default must be replaced by a type check or an attribute."""
    for node in nodes(module):
        if isinstance(node, ast.Call) and dotted(node.func) == "getattr" and len(node.args) > 2:
            yield f"{node.lineno}: {ast.unparse(node)}; ask for its class, or give it the attribute"


Rule = Callable[[Path, ast.Module], Iterator[str]]
RULES: list[Rule] = [
    long_files,
    long_functions,
    many_parameters,
    deep_nesting,
    stars,
    asserts,
    printing,
    environment,
    global_state,
    unsafe,
    split_lines,
    asking_for_kinds,
    comparing_mixers,
    comparing_tasks,
    tables_of_tasks,
    importing_other_tasks,
    untyped_runs,
    guessing_attributes,
    layering,
]


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    return {path: tree(path) for path in SOURCES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_sources_obey_the_rule(rule, trees):
    actual = [f"{name}: {fault}" for name, path in zip(NAMES, SOURCES, strict=True) for fault in rule(path, trees[path])]
    assert not actual, "\n" + "\n".join(actual)


BROKEN: dict[str, str] = {
    "long_files": "\n" * 401,
    "long_functions": "def f():\n" + "    pass\n" * 60,
    "many_parameters": "def f(a, b, c, d, e, f, *, g, h): pass",
    "deep_nesting": (
        "def f():\n if a:\n  pass\n elif b:\n  for x in y:\n   try:\n    pass\n   except E:\n    with z:\n     pass\n"
    ),
    "stars": "class A:\n def f(self, *a): pass",
    "asserts": "assert x",
    "printing": "print(1)",
    "environment": "import os\nx = os.environ['A']",
    "global_state": "torch.manual_seed(0)",
    "unsafe": "from pickle import loads",
    "split_lines": "x = text.splitlines()",
    "asking_for_kinds": "hasattr(model, 'encode')",
    "comparing_mixers": "config.layer_type not in ('attention', 'conv')",
    "comparing_tasks": "run.config.task in ('lm', 'seq2seq')",
    "tables_of_tasks": "USED = {'lm': 'generate', 'tagging': 'predict'}",
    "importing_other_tasks": "from weft.tasks.lm.scoring import surprisal",
    "untyped_runs": "def f(run: Any, other: Any): pass",
    "guessing_attributes": "getattr(config, 'layer_type', None)",
    "layering": "from weft.cli import main",
}
KEPT: dict[str, str] = {
    "long_files": "\n" * 400,
    "long_functions": "def f():\n" + "    pass\n" * 59,
    "many_parameters": (
        "class A:\n def f(self, a, b, c, d, e, f, *, g): pass\n@triton.jit\ndef f(a, b, c, d, e, f, g, h): pass"
    ),
    "deep_nesting": "def f():\n if a:\n  pass\n elif b:\n  for x in y:\n   with z:\n    def g():\n     if c: pass\n",
    "stars": "def f(a, *, b): g(*a, **b)",
    "asserts": "raise ValueError",
    "printing": "console.print(1)",
    "environment": "import os\nos.getpid()",
    "global_state": "generator.manual_seed(0)",
    "unsafe": "np.load(path, allow_pickle=False)\nmodule.eval()\nloss_module.compile()",
    "split_lines": "x = text.split('\\n')",
    "asking_for_kinds": "isinstance(x, Tensor | tuple)",
    "comparing_mixers": "new.layer_type != old.get('layer_type') or config.attention == 'dot' or not config.traits.attends",
    "comparing_tasks": "run.spec.command == 'predict' or masking == 'qa' or run.spec is task",
    "tables_of_tasks": "x = {'tagging': 1, 'word': 2}, TASKS[self.task], {'task': 'lm', 'data': {}}",
    "importing_other_tasks": "from weft.tasks.qa.data import fit\nfrom weft.tasks.spec import Task",
    "untyped_runs": "def f(run: AnyRun, runs: Sequence[Run[Any, Any]], model: Any): pass",
    "guessing_attributes": "getattr(config, name)",
    "layering": "from weft.errors import ModelError\nfrom weft.nn.state import select\nimport torch",
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_detects_violations_and_nothing_else(tmp_path, monkeypatch, rule):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "src" / "weft" / ("tasks/qa" if rule is importing_other_tasks else "nn") / "broken.py"
    path.parent.mkdir(parents=True)
    path.write_text(BROKEN[rule.__name__])
    assert len(list(rule(path, tree(path)))) == 1
    path.write_text(KEPT[rule.__name__])
    assert list(rule(path, tree(path))) == []


@pytest.mark.parametrize("text", ["torch.load(x)", "eval(x)", "np.load(x)", "numpy.load(x, allow_pickle=True)"])
def test_code_execution_from_files_is_detected(text):
    assert len(list(unsafe(Path("x.py"), ast.parse(text)))) == 1


def test_isinstance_checks_of_models_are_detected(monkeypatch):
    monkeypatch.setitem(globals(), "part_classes", lambda: {"LSTM"})
    for text in ("isinstance(x, mixers.LSTM)", "isinstance(x, (int, LSTM))", "issubclass(x, LSTM | None)"):
        assert len(list(asking_for_kinds(Path("x.py"), ast.parse(text)))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "config.decoder.layer_type == 'gru'",
        "getattr(config, 'layer_type', '') != 'attention'",
        "match config.layer_type:\n case 'rnn': pass",
    ],
)
def test_comparison_of_mixer_names_is_detected(text):
    assert len(list(comparing_mixers(Path("x.py"), ast.parse(text)))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "values['task'] == 'lm'",
        "run.task != 'masked-lm'",
        "'tagging' == config.task",
        "match run.config.task:\n case 'lm': pass",
    ],
)
def test_comparison_of_task_names_is_detected(monkeypatch, text):
    assert len(list(comparing_tasks(ROOT / "src" / "weft" / "x.py", ast.parse(text)))) == 1


@pytest.mark.parametrize("text", ["USED[run.config.task]", "{**{'lm': 1, 'qa': 2}, 'x': 3}"])
def test_dict_keyed_by_tasks_is_detected(text):
    assert len(list(tables_of_tasks(ROOT / "src" / "weft" / "x.py", ast.parse(text)))) == 1


@pytest.mark.parametrize("text", ["def f(*, runs: Sequence[Any]): pass", "run: Any = load(path)", "def f(run: object): pass"])
def test_untyped_run_is_detected(text):
    assert len(list(untyped_runs(Path("x.py"), ast.parse(text)))) == 1


ERRORS = {
    "WeftError",
    "UsageError",
    "ConfigError",
    "DataError",
    "ModelError",
    "LogError",
    "ResourceError",
    "InUseError",
    "DivergedError",
    "GroupError",
    "TrainingInterrupted",
}


def fragments(node: ast.AST) -> list[str]:
    """The fixed pieces of every string below a node."""
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def test_every_error_message_is_asserted_somewhere():
    """A message counts as asserted if a test contains its longest constant part."""
    asserted = "\0".join(text for path in (ROOT / "tests").rglob("*.py") for text in fragments(tree(path)))
    results = []
    for name, path in zip(NAMES, SOURCES, strict=True):
        for node in nodes(tree(path)):
            if not isinstance(node, ast.Call) or dotted(node.func).split(".")[-1] not in ERRORS or len(node.args) < 2:
                continue
            piece = max(fragments(node.args[1]), key=len, default="").strip(" :;,.'()")
            flags = re.sub(r"`(\w+)`", lambda name: f"--{name[1].replace('_', '-')}", piece)  # as the command line shows it
            if len(piece) > 3 and piece not in asserted and flags not in asserted:
                results.append(f"{name}:{node.lineno}: no test has {piece!r}")
    assert not results, "\n" + "\n".join(results)


def test_package_layers_have_no_cycle():
    for part, allowed in LAYERS.items():
        for other in allowed - {part}:
            full = other if other in LAYERS else other.split(".")[0]
            assert part not in LAYERS[full] or "." in other, f"{part} and {other} import each other"


def test_exceptions_to_the_rules_still_exist():
    for location in STARS_ALLOWED | ASSERTS_ALLOWED | TASK_TABLES_ALLOWED:
        name, _, _ = location.partition(":")
        assert name in NAMES, f"{location} is excused and not there"


def tracked() -> list[Path]:
    """Files of the repository, from git or from its directories."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        folders = ("src", "tests", "docs", "examples", "benchmarks", "tools")
        return [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [path for path in (ROOT / name for name in listed.split("\0") if name) if path.is_file()]


# a user's home, a temporary folder or a work folder, spelt out; #! lines and the paths of a manual are not meant
MACHINE = re.compile(rb"""(?:^|[\s"'`(=:,])(/(?:work|root|home|tmp|Users|mnt|opt)/[A-Za-z0-9._-])""", re.MULTILINE)


def test_no_file_contains_a_local_path():
    results = []
    for path in tracked():
        raw = path.read_bytes()
        if path == Path(__file__) or b"\0" in raw:
            continue
        results += [f"{path.relative_to(ROOT)}: {match[1].decode()}..." for match in MACHINE.finditer(raw)]
    assert not results, "\n" + "\n".join(results)


def test_the_public_names():
    assert sorted(weft.__all__) == [
        *(
            "Comparison",
            "Fit",
            "Run",
            "TrainCallback",
            "TrainProgress",
            "__version__",
            "average",
            "check",
            "compare",
            "distill",
            "ensemble",
            "errors",
            "fit",
            "load",
            "merge",
            "train",
        ),
    ]
    assert dir(weft) == sorted(weft.__all__)
    assert re.fullmatch(r"\d+\.\d+\.\d+", weft.__version__)


def test_an_unknown_public_name_is_an_attribute_error():
    with pytest.raises(AttributeError) as caught:
        _ = weft.laod
    assert str(caught.value) == "module 'weft' has no attribute 'laod'"
