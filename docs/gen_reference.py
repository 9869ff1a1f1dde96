"""Write the generated part of the reference: `python docs/gen_reference.py`, or `--check` to compare with what is committed.

cli.md comes from the commands, run-file.md from the configuration classes, and the tables between `<!-- generated: NAME -->`
and `<!-- end generated -->` in metrics.md and data-checks.md from the metrics and findings. Descriptions of options are their
attribute docstrings. Nothing here imports torch: it takes about two seconds.

Changelog and contributing of the site are the files in the root, with links as the site needs them; git ignores those copies.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import weft
from weft import errors
from weft.cli.main import COMMANDS, app
from weft.config import Choice, Config, described_fields
from weft.models.config import StackConfig
from weft.runs.resolve import RunFile
from weft.tasks.registry import TASKS, find_task
from weft.training.config import TrainConfig

DOCS = Path(__file__).parent
ROOT, REFERENCE = DOCS.parent, DOCS / "reference"
NOTE = "It is generated from the code by `python docs/gen_reference.py`."
REGION = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end generated -->)", re.DOTALL)


def escape(text: str) -> str:
    """Text as the cell of a table, on one line."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;").replace("*", "\\*")


def code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    names = list(head)
    return [f"| {' | '.join(cells)} |" for cells in (names, ["---"] * len(names), *rows)]


# ---- the command line

COMMON = ("device", "json", "quiet", "threads", "debug", "help")
PANELS = ("", "Decoding", "Ensemble", "Input and output")  # a command's own options first
EXIT_CODES: Mapping[str, tuple[str, type[errors.WeftError] | None]] = {
    "0": ("success", None),
    "1": ("any other failure; `weft check --gradients`: a gradient is wrong", errors.WeftError),
    "2": ("usage: the command line or the run file", errors.UsageError),
    "3": ("data that cannot be used; some input lines were skipped", errors.DataError),
    "4": ("a run directory or model that is corrupted, incompatible or of another version", errors.ModelError),
    "5": ("resources: memory, disk, or a directory in use", errors.ResourceError),
    "6": ("divergence: the loss, a gradient or a weight became NaN or infinite", errors.DivergedError),
    "7": ("one of several processes died or does not answer; the last checkpoint is intact", errors.GroupError),
    "129, 130, 143": ("stopped by SIGHUP, by Ctrl-C, by SIGTERM", None),
    "141": ("the reader of the output closed it (`weft score ... | head`)", None),
}
ENVIRONMENT = {
    "OMP_NUM_THREADS": "Number of CPU threads, if `--threads` is not set.",
    "OMP_WAIT_POLICY": "Set to `PASSIVE` unless you set it: threads that spin while they wait slow down a busy machine.",
    "CUDA_VISIBLE_DEVICES": "Which GPU torch uses.",
    "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT": "Set by torchrun: this process is one of several.",
    "NO_COLOR": "No color on a terminal.",
    "TERM": "`dumb`: plain lines instead of a progress bar and color.",
}


def flag(param: Any) -> str:
    names = sorted(param.opts, key=len, reverse=True)
    return code(" ".join(filter(None, (", ".join(names), "" if param.is_flag else param.metavar or "VALUE"))))


def usage(path: str, command: Any) -> str:
    words = [path]
    for param in command.params:
        if param.param_type_name == "argument":
            name = (param.metavar or param.name.upper()).strip("[]")
            name = f"{name}..." if param.nargs == -1 and not name.endswith("...") else name
            words.append(name if param.required else f"[{name}]")
    return " ".join([*words, "[OPTIONS]"])


def command_lines(path: str, command: Any, context: Any, level: int) -> Iterator[str]:
    context = typer.Context(command, info_name=path.rpartition(" ")[2], parent=context)
    yield from (f"{'#' * level} {path}", "")
    children: Mapping[str, Any] = getattr(command, "commands", {})
    if not children:
        yield from ("```text", usage(path, command), "```", "")
    yield from (inspect.cleandoc(command.help or "").replace("<", "&lt;"), "")
    arguments = [param for param in command.params if param.param_type_name == "argument" and param.help]
    if arguments and not children:
        yield from table(("argument", "description"), ((code(p.metavar or p.name), escape(p.help)) for p in arguments))
        yield ""
    options = [param for param in command.get_params(context) if param.param_type_name == "option" and not param.hidden]
    own = [param for param in options if param.name not in COMMON]
    panels: dict[str, list[Any]] = {}
    for param in own:
        panels.setdefault(getattr(param, "rich_help_panel", None) or "", []).append(param)
    titles = sorted(panels, key=lambda title: PANELS.index(title) if title in PANELS else 0)
    ordered = [param for title in titles for param in panels[title]]
    if ordered:
        yield from table(("option", "description"), ((flag(param), escape(param.help or "")) for param in ordered))
        yield ""
    shared = [code(max(param.opts, key=len)) for name in COMMON for param in options if param.name == name]
    if shared and not children:
        yield from (f"Also {', '.join(shared)}.", "")
    for name, child in children.items():
        yield from command_lines(f"{path} {name}", child, context, level + 1)


def common_lines(group: Any) -> Iterator[str]:
    seen: dict[str, Any] = {}
    for command in group.commands.values():
        for param in command.get_params(typer.Context(command, info_name="weft", **group.context_settings)):
            if param.name in COMMON:
                seen.setdefault(param.name, param)
    yield from table(("option", "description"), ((flag(seen[n]), escape(seen[n].help or "")) for n in COMMON if n in seen))


CLI_HEAD = f"""# Command line

This page lists every command and flag. {NOTE}

Results go to standard output, everything else to standard error. An error is one line,
`weft: error: where: what is wrong; what to do`, and an exit code. On a terminal, control characters in labels and texts are
shown as escapes; in files and pipes, output is exact.
"""
VERSION = (
    "`weft --version` prints the version, `weft --install-completion` installs completion for bash, zsh, fish and PowerShell, "
    "and `weft --show-completion` prints the completion script."
)


def cli_page() -> str:
    group: Any = typer.main.get_command(app)
    context = typer.Context(group, info_name="weft", **group.context_settings)
    for number, (_, error) in EXIT_CODES.items():
        assert error is None or str(error.exit_code) == number, f"exit code {number}"
    commands = ([f"[`weft {n}`](#weft-{n})", escape(group.commands[n].get_short_help_str(200))] for n in COMMANDS)
    lines = [CLI_HEAD, *table(("command", "description"), commands), "", VERSION, ""]
    lines += ["## Common options", "", *common_lines(group), ""]
    for name in COMMANDS:
        lines += command_lines(f"weft {name}", group.commands[name], context, 2)
    exit_codes = ([number, text.replace("|", "\\|")] for number, (text, _) in EXIT_CODES.items())
    lines += ["## Exit codes", "", *table(("code", "meaning"), exit_codes), ""]
    variables = ([code(name), text] for name, text in ENVIRONMENT.items())
    lines += ["## Environment variables", "", *table(("variable", "meaning"), variables)]
    return "\n".join(lines) + "\n"


# ---- the run file

PLAIN = {int: "integer", float: "number", bool: "boolean", str: "string", dict: "table", Any: "any"}


def inner_configs(annotation: Any) -> list[type[Config]]:
    """The tables that an option may hold."""
    kinds = [annotation, *get_args(annotation)]
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Config)]


def kinds_of(annotation: Any, metadata: Iterable[Any] = ()) -> list[str]:
    """What an option may be, in words; its choices in code."""
    for mark in metadata:
        if isinstance(mark, Choice):
            return [code(name) for name in mark.names]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return kinds_of(parts[0], parts[1:])
    if origin in (Union, UnionType):
        return [kind for part in parts if part is not NoneType for kind in kinds_of(part)]
    if origin is Literal:
        return [code(json.dumps(value).strip('"')) for value in parts]
    if origin in (list, tuple):
        inner = [part for part in parts if part is not Ellipsis]
        return [f"list of {'/'.join(dict.fromkeys(kind for part in inner for kind in kinds_of(part)))}"]
    if inner_configs(annotation):
        return ["table"]
    return [PLAIN.get(origin or annotation, getattr(annotation, "__name__", str(annotation)))]


def range_of(metadata: Iterable[Any]) -> str:
    limits = []
    for mark in metadata:
        for name, sign in (("ge", "&ge;"), ("gt", "&gt;"), ("le", "&le;"), ("lt", "&lt;")):
            if (value := getattr(mark, name, None)) is not None:
                limits.append(f"{sign} {value:,}" if isinstance(value, int) else f"{sign} {value}")
    return ", ".join(limits)


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined or isinstance(value, Config):
        return ""
    return code(json.dumps(value))


def option_row(name: str, field: FieldInfo) -> list[str]:
    kinds = ", ".join(dict.fromkeys(kinds_of(field.annotation, field.metadata)))
    limits = range_of(field.metadata)
    return [code(name), f"{kinds}, {limits}" if limits else kinds, default_of(field), escape(field.description or "")]


def options_table(config: type[Config], leave_out: Iterable[str] = ()) -> list[str]:
    hidden = set(leave_out)
    rows = [option_row(name, field) for name, field in described_fields(config).items() if name not in hidden]
    return table(("option", "type", "default", "description"), rows) if rows else []


def inherited(config: type[Config]) -> list[str]:
    """Options that are those of a stack in every respect."""
    stack = described_fields(StackConfig)
    return [
        n for n, field in described_fields(config).items() if n in stack and option_row(n, field) == option_row(n, stack[n])
    ]


def flat(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, value in values.items():
        nested = isinstance(value, Mapping)
        found += flat(value, f"{prefix}{name}.") if nested else [code(f"{prefix}{name} = {json.dumps(value)}")]
    return found


def model_lines(task: str, archs: list[str], config: type[Config], alone: bool, seen: dict[type[Config], str]) -> Iterator[str]:
    title = f"`{task}`" if alone or len(archs) > 2 else f"`{task}` with {', '.join(map(code, archs))}"
    yield from (f"### `[model]`: {title}", "", f"For {', '.join(map(code, archs))}.", "")
    if config in seen:
        yield from (f"The options are those of [{seen[config]}](#{anchor(seen[config])}).", "")
        return
    seen[config] = f"`[model]`: {title}"
    yield from stack_lines(config)
    for option, field in described_fields(config).items():
        for inner in inner_configs(field.annotation):
            yield from (f"#### `[model.{option}]`: {title}", "")
            yield from stack_lines(inner)


def stack_lines(config: type[Config]) -> Iterator[str]:
    """The options of a table; those that it shares with every stack of layers by a link."""
    common = inherited(config)
    if common:
        left_out = [code(name) for name in StackConfig.model_fields if name not in config.model_fields]
        without = f", without {', '.join(left_out)}" if left_out else ""
        yield from (
            f"All [options of layers](#layers){without}{', and:' if len(common) < len(config.model_fields) else '.'}",
            "",
        )
    yield from (*options_table(config, common), "")


def preset_lines(task: str, presets: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"### Presets: `{task}`", "")
    yield from table(("`arch`", "`[model]`"), ((code(arch), ", ".join(flat(p.values))) for arch, p in presets.items()))
    groups: dict[str, list[str]] = {}
    for arch, preset in presets.items():
        groups.setdefault(", ".join(flat(preset.train_defaults)), []).append(arch)
    rows = [[", ".join(map(code, archs)), values] for values, archs in groups.items() if values]
    yield from ("", *table(("`arch`", "`[train]`"), rows), "") if rows else ("",)


def anchor(heading: str) -> str:
    """The anchor that the site makes of a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


RUN_FILE_HEAD = f"""# Run file

This page lists every option by task and architecture. {NOTE}

A run file is a TOML file with the tables `[data]`, `[tokenizer]`, `[model]` and `[train]`. Only `task` and `data.train` are
required. Any option can be set on the command line: `--set model.hidden_size=512`. Values are read as TOML, bare words as
strings. An unknown name is an error that suggests the nearest one.

An option that is left out gets a value that suits the data ([let weft choose](../how-to/recommended-settings.md)), or, if weft
knows of none, its default. With `recommend = false`, it has its default. An empty default means that the option is not set, or
that its description gives the default.
"""
TRAIN_HEAD = """## `[train]`

Presets change some defaults, see the tables of each task. `ngram`, `naive-bayes` and `logistic-regression` accept `[train]`
and do not use it.
"""
LAYERS_HEAD = """## Layers

Options of `[model]` of every network, and of `[model.encoder]`, `[model.decoder]` and `[model.char_encoder]`. The equations are
in [formulas](formulas.md).
"""


def run_file_page() -> str:
    top = [option_row(name, described_fields(RunFile)[name]) for name in ("task", "seed", "recommend")]
    lines = [RUN_FILE_HEAD, "## Top level", "", *table(("option", "type", "default", "description"), top), ""]
    lines += [TRAIN_HEAD, *options_table(TrainConfig), "", LAYERS_HEAD, *options_table(StackConfig), ""]
    data_seen: dict[type[Config], str] = {}
    model_seen: dict[type[Config], str] = {}
    for task in TASKS:
        spec = find_task(task)
        description = TASKS[task].description
        lines += [f"## Task `{task}`", "", f"{description[:1].upper()}{description[1:].rstrip('.')}.", ""]
        for name, config in (("data", spec.data.data_config), ("tokenizer", spec.data.tokenizer_config)):
            heading = f"`[{name}]`: `{task}`"
            lines += [f"### {heading}", ""]
            if config in data_seen:
                lines += [f"The options are those of [{data_seen[config]}](#{anchor(data_seen[config])}).", ""]
            else:
                data_seen[config] = heading
                lines += [*options_table(config), ""]
        groups: dict[type[Config], list[str]] = {}
        for arch, preset in spec.presets.items():
            groups.setdefault(preset.config_class, []).append(arch)
        for config, archs in groups.items():
            lines += model_lines(task, archs, config, len(groups) == 1, model_seen)
        lines += preset_lines(task, spec.presets)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip("\n") + "\n"


# ---- metrics and findings

METRICS: Mapping[str, tuple[str, str]] = {  # unit, definition
    "loss": ("nats/token", "cross-entropy: mean negative log-probability of a token"),
    "perplexity": ("", "exp(loss)"),
    "bits_per_token": ("bits/token", "loss / ln 2"),
    "bits_per_char": ("bits/char", "the same per character, newlines included"),
    "bits_per_byte": ("bits/byte", "the same per byte of UTF-8"),
    "bits_per_word": ("bits/word", "the same per word"),
    "word_perplexity": ("", "2^bits_per_word"),
    "pseudo_loss": ("nats/token", "loss of each token when it alone is masked"),
    "pseudo_perplexity": ("", "exp(pseudo_loss)"),
    "mlm_loss": ("nats/token", "loss of masked tokens, masks as in training"),
    "mlm_accuracy": ("%", "masked tokens that are predicted exactly"),
    "exact_match": ("%", "outputs, label sets or answers that equal a reference"),
    "token_error_rate": ("%", "edits per 100 reference tokens"),
    "character_error_rate": ("%", "edits per 100 reference characters"),
    "wer": ("%", "word error rate: edits per 100 reference words, as jiwer"),
    "cer": ("%", "edits per 100 reference characters; runs of whitespace count as one space"),
    "substitutions": ("%", "words that are replaced, per 100 reference words"),
    "deletions": ("%", "words that are missing, per 100 reference words"),
    "insertions": ("%", "words that are added, per 100 reference words"),
    "bleu": ("%", "BLEU, sacrebleu"),
    "bleu_lc": ("%", "BLEU of lowercased text"),
    "chrf": ("%", "chrF2, sacrebleu"),
    "spearman": ("", "Spearman's rank correlation of cosines with judgments of similarity, mean over suites; covered pairs"),
    "analogy_accuracy": ("%", "analogies whose fourth word is nearest to b - a + c; covered questions only"),
    "coverage": ("%", "pairs and analogies of which all words have a vector"),
    "rank_error": ("", "distance of the ranks of a pair by cosine and by judgment, as a fraction of the pairs"),
    "cider_d": ("", "CIDEr-D, 0 to 10: TF-IDF similarity to the references, with clipped counts and a penalty on length"),
    "cider": ("", "CIDEr, 0 to 1: the same without clipping and penalty"),
    "bleu_4": ("%", "BLEU of captions, with sequences of up to 4 words and several references"),
    "bleu_3": ("%", "the same, up to 3 words"),
    "bleu_2": ("%", "the same, up to 2 words"),
    "bleu_1": ("%", "the same, single words"),
    "word_f1": ("%", "F1 of the words of output and nearest reference"),
    "accuracy": ("%", "texts with the correct label; pairs whose chosen text has the higher reward"),
    "objective": ("", "reward minus the weighted KL divergence, which selects the weights of a policy"),
    "reward": ("", "mean reward of the responses of a policy"),
    "judge": ("", "mean judgment of the responses by a model that the policy was not trained against"),
    "repetition": ("%", "pairs of neighboring words that occurred in the response before"),
    "length": ("tokens", "mean length of the responses, with the EOS token"),
    "kl": ("nats", "mean of ln p - ln p_initial over the sampled responses: the KL divergence from the initial model"),
    "entropy": ("nats", "mean entropy of the distribution of the next token in responses"),
    "length_accuracy": ("%", "pairs whose chosen text is longer; equal lengths count half"),
    "f1_macro": ("%", "mean of the F1 of all labels"),
    "f1_micro": ("%", "F1 over all decisions"),
    "log_loss": ("nats/text", "negative log-probability of the gold label"),
    "brier_score": ("", "squared distance of the probabilities from the gold labels"),
    "ece": ("%", "expected calibration error, 15 bins"),
    "token_accuracy": (
        "%",
        "words with the correct tag; denoising: tokens of the target that are predicted, given those before",
    ),
    "sentence_accuracy": ("%", "sentences in which all tags are correct"),
    "oov_accuracy": ("%", "token accuracy of words that are not in the training data"),
    "span_f1": ("%", "harmonic mean of span precision and recall"),
    "span_precision": ("%", "predicted spans that are correct in type and both ends"),
    "span_recall": ("%", "gold spans that are predicted"),
    "f1": ("%", "F1 over the words of answer and nearest reference"),
    "f1_has_answer": ("%", "F1 of questions that have an answer"),
    "accuracy_no_answer": ("%", "questions without an answer for which none is predicted"),
}
FINDINGS: Mapping[str, tuple[str, str]] = {  # severity, meaning
    "unreadable": ("error", "a file cannot be read; the other splits are still checked"),
    "unreadable_file": ("error", 'recordings or images that cannot be read; with `data.on_error = "skip"` a warning'),
    "empty_texts": ("error", "recordings or images without any text to learn from"),
    "tokenizer_error": ("error", "the tokenizer cannot be trained or loaded"),
    "too_long": ("error", "an example has more tokens than `data.max_length`"),
    "unique_labels": ("error", "nearly every training example has its own label: a column of IDs or names"),
    "single_label": ("warning", "all training examples have the same label or tag: often the wrong column"),
    "unseen_label": ("warning", "validation or test labels that are not in the training data; they count as errors"),
    "conflicting_labels": ("by fraction", "a text occurs twice with different labels or tags"),
    "invalid_tags": ("by fraction", "span tags that violate their scheme, such as `I-PER` after `O`"),
    "skipped": ("by fraction", "examples without text, which are skipped (`data.skip_empty`)"),
    "rare_label": ("note", "labels or tags that occur once in the training data"),
    "empty": ("warning", "an empty source or target; in running text a blank line (a note)"),
    "misaligned": ("warning", "consecutive sources that match the targets of neighboring lines better, by length"),
    "length_ratio": ("by fraction", "pairs whose length ratio is more than five deviations from the usual"),
    "duplicate": ("by fraction", "lines or pairs that occur more than once in a split"),
    "multiple_targets": ("note", "sources with more than one target"),
    "overlap": ("by fraction", "validation or test examples that are also in another split"),
    "file_overlap": ("warning", "recordings or images, by content, that are also in another split"),
    "speaker_overlap": ("warning", "speakers that are also in another split"),
    "source_overlap": ("by fraction", "validation or test sources that are in another split with another target"),
    "unknown_tokens": ("by fraction", "tokens that are `<unk>`, with the most frequent characters or words"),
    "lossy_tokenization": ("by fraction", "targets that the tokenizer cannot reproduce, so that no output can match"),
    "outer_whitespace": ("by fraction", "texts that start or end with whitespace"),
    "not_nfc": ("by fraction", "texts that are not in Unicode normal form NFC"),
    "carriage_return": ("by fraction", "a `\\r` that does not end a line"),
    "newline_in_field": ("by fraction", "a newline inside a field"),
    "crlf": ("note", "line ends that are read as `\\n`"),
}


def metric_rows() -> dict[str, tuple[str, list[str]]]:
    """Every metric by its name: which direction is better, and the tasks that have it."""
    found: dict[str, tuple[str, list[str]]] = {}
    for task in TASKS:
        spec = find_task(task)
        for metric in (metric for suite in (*spec.eval_suites, *spec.validation_suites) for metric in suite):
            names = found.setdefault(metric.name, (metric.better, []))[1]
            names += [] if task in names else [task]
    return found


def metrics_table() -> str:
    rows = metric_rows()
    order = [*(name for name in METRICS if name in rows), *(name for name in rows if name not in METRICS)]
    cells = ([code(n), ", ".join(map(code, rows[n][1])), (d := METRICS.get(n, ("", "")))[0], rows[n][0], d[1]] for n in order)
    return "\n".join(table(("metric", "tasks", "unit", "better", "definition"), cells)) + "\n"


def finding_names() -> tuple[set[str], set[str]]:
    """Names that findings are made with, as far as they are written there, and all strings of the same modules."""
    made, strings = set[str](), set[str]()
    package = Path(weft.__file__).parent
    for path in [*sorted((package / "data").glob("check*.py")), package / "tasks" / "media_data.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings.add(node.value)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding" and len(node.args) > 1:
                name = node.args[1]
                made |= {name.value} if isinstance(name, ast.Constant) and isinstance(name.value, str) else set()
    return made, strings


def undocumented() -> list[str]:
    """Metrics and findings that have no definition here, and definitions of what the code does not have."""
    made, strings = finding_names()
    return sorted((metric_rows().keys() ^ METRICS.keys()) | (made - FINDINGS.keys()) | (FINDINGS.keys() - strings))


def findings_table() -> str:
    made, strings = finding_names()
    names = [*(name for name in FINDINGS if name in strings), *sorted(made - FINDINGS.keys())]
    rows = ([code(name), *FINDINGS.get(name, ("", ""))] for name in names)
    return "\n".join(table(("finding", "severity", "meaning"), rows)) + "\n"


def fill(path: Path, tables: Mapping[str, str]) -> str:
    """A page with its generated tables up to date."""
    return REGION.sub(lambda match: f"{match[1]}\n{tables[match[2]]}\n{match[3]}", path.read_text(encoding="utf-8"))


def copies() -> dict[Path, str]:
    """The pages of the site that are in the root: links to other pages of the site, and no others."""
    made = {}
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        text = re.sub(r"\]\(docs/([^)\s]+)\)", r"](\1)", text)
        made[DOCS / name.lower()] = re.sub(r"\[([^]]+)\]\((?:\.\./)*(?:examples|tests|benchmarks)/[^)\s]*\)", r"\1", text)
    return made


def pages() -> dict[Path, str]:
    tables = {"metrics": metrics_table(), "findings": findings_table()}
    made = {REFERENCE / "cli.md": cli_page(), REFERENCE / "run-file.md": run_file_page()}
    return made | {path: fill(path, tables) for path in (REFERENCE / "metrics.md", REFERENCE / "data-checks.md")}


def main() -> int:
    changed = [p for p, text in pages().items() if not p.is_file() or p.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        for path in changed:
            print(f"{path}: not up to date; run python docs/gen_reference.py", file=sys.stderr)
        return int(bool(changed))
    for path, text in (pages() | copies()).items():
        path.write_text(text, encoding="utf-8")
    print(f"reference: {len(changed)} pages changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
