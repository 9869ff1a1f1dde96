"""Record the output and the files of every task and command as text, to show that a change of the code changes no result.

    python tools/goldens.py record before --source ../other-checkout/src     record the results of other code
    python tools/goldens.py record after                                     record the results of this code
    python tools/goldens.py compare before after                             print differences; exit code 1 if there are any
    python tools/goldens.py compare before after --numbers                   compare only the numbers: words may change

`--only PATTERN` selects cases by a part of SCENE/CASE or by a shell pattern and is repeatable: `--only tagging`,
`--only predict`, `--only 'lm-*/explain*'`. Runs that they need are trained as well. Times, rates, sizes on disk, memory and
paths of the machine are not recorded. Everything runs on one thread, because sums depend on the number of threads.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import hashlib
import io
import json
import math
import os
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import golden_data
from golden_cases import Case, Scene, scenes

Json = Any
OMITTED = "LEFT OUT"
# JSON keys and CSV columns whose values depend on the machine
OMITTED_KEYS = {
    "seconds", "train_seconds", "tokens_per_second", "peak_memory", "bytes", "model_bytes", "trained_with", "environment",
    "inference_rate", "free_memory", "weft", "date",
}  # fmt: skip
REPLACEMENTS = [  # texts that depend on the machine
    (re.compile(r"\b\d+:\d\d(:\d\d)?\b"), "TIME"),
    (re.compile(r"\b[\d.,]+k? (tokens|tok|examples|texts|lines|pairs|sentences|questions|characters)/s\b"), r"RATE \1/s"),
    (re.compile(r"\b[\d.,]+ (s|ms|min|seconds|minutes)\b"), r"TIME \1"),
    (re.compile(r"(?<![\w.])[\d.]+(s|m|h)( \d+[sm])?\b"), "TIME"),
    (re.compile(r"^Versions .*$", re.MULTILINE), f"Versions {OMITTED}"),
    (re.compile(r"\b[\d.,]+ (B|KB|MB|GB|kB|KiB|MiB|GiB)\b"), r"SIZE \1"),
]
LM_HASH = re.compile(r"(?<=/lm:)[0-9a-f]{8}(?=\*)")  # hash of a fusion language model; depends on the paths of its data
TIMED_COMMANDS = {"train", "info", "compare"}  # their output contains times and sizes
LAST_STABLE_COLUMN = re.compile(r"(^|.*\W)params(?=\W+train time\b)")  # of a comparison; later columns depend on the machine
TEXT_FILES = ("metrics.jsonl", "resolved.toml", "labels.json", "samples.jsonl", "comparison.json", "config.json", "run.toml")
TEXT_FILE_PATTERN = re.compile(r"(tokenizer|features|vocab|merges|special).*\.(json|txt)$")
OMITTED_METADATA = ("config", "weft.sha256")  # hashes of content with paths; resolved.toml shows the configuration
OMITTED_FILES = {"timings.jsonl", "environment.json"}
SCRATCH = ("runs/x", "x", "x.arpa", "x.pdf", "compared-x")
SIGNAL_CODES = (129, 130, 143)  # exit codes of interrupted commands
SLOW_SECONDS = 3.0  # CPU time above which a case is printed
MAX_CHARS = 400_000  # longer texts are recorded as hash and beginning
NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?:e[+-]?\d+)?")  # decimal numbers: integers are often part of words
TENSOR_HASH = re.compile(r"\b[0-9a-f]{64}\b")


class Result(NamedTuple):
    code: int | str
    out: str
    err: str


def _is_omitted(key: str, value: Json) -> bool:
    """Whether a value depends on the machine. A string "sum" is a checksum of a document with times; a number is not."""
    return value is not None and (key in OMITTED_KEYS or (key == "sum" and isinstance(value, str)))


def _omit_values(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: OMITTED if _is_omitted(key, inner) else _omit_values(inner) for key, inner in value.items()}
    return [_omit_values(inner) for inner in value] if isinstance(value, list) else value


def _stable_json(text: str) -> str | None:
    """JSON without values that depend on the machine, unchanged if there are none; None if the text is not JSON."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if not isinstance(value, dict | list):
        return None
    stable = _omit_values(value)
    return text if stable == value else json.dumps(stable, ensure_ascii=False, indent=2) + "\n"


def _cut_table(text: str) -> str:
    """The table of a comparison (terminal, Markdown or LaTeX) up to the number of parameters."""
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if not (head := LAST_STABLE_COLUMN.match(line)):
            continue
        separator = next((mark for mark in ("|", "&") if mark in line), "")
        num_columns = head[0].count(separator) + 1 if separator else 0
        for row in range(i, len(lines)):
            if separator and separator in lines[row]:
                lines[row] = separator.join(lines[row].split(separator)[:num_columns])
            elif not separator and not lines[row].strip():  # the end of a table in the terminal
                break
            elif not separator:
                lines[row] = lines[row][: head.end()]
    return "\n".join(lines)


def _stable_csv(text: str) -> str:
    """CSV without columns that depend on the machine."""
    rows = list(csv.reader(io.StringIO(text)))
    columns = [i for i, name in enumerate(rows[0]) if name not in OMITTED_KEYS]
    return "".join(",".join(row[i] for i in columns) + "\n" for row in rows)


def stable_text(text: str, *, is_timed: bool) -> str:
    """JSON, JSON lines or other text, without parts that depend on the machine."""
    if (stable := _stable_json(text)) is not None:
        return stable
    text = "\n".join((_stable_json(line) or line).rstrip("\n") for line in text.split("\n"))
    if not is_timed:
        return text
    text = _cut_table(text)
    for pattern, replacement in REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return text


def _shorten(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    return f"sha256 {hashlib.sha256(text.encode()).hexdigest()} of {len(text):,} characters, which begin:\n{text[:2000]}\n"


@contextmanager
def streams(stdin: bytes) -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    """Redirect standard input from bytes, and standard output and error to bytes."""
    out, err = io.BytesIO(), io.BytesIO()
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(out, encoding="utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(err, encoding="utf-8", errors="backslashreplace", write_through=True)
    try:
        yield out, err
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            stream.detach()
        sys.stdin, sys.stdout, sys.stderr = before


def _seed() -> None:
    """Make commands independent of the random state that other commands left."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def call(words: Sequence[str], stdin: bytes = b"") -> Result:
    """Run a command of weft in this process."""
    from weft.cli.main import main

    _seed()
    code: int | str
    with streams(stdin) as (out, err):
        try:
            code = main(list(words))
        except SystemExit as error:
            code = f"SystemExit {error.code}"
        except Exception as error:  # a crash is a result as well, without its traceback
            code = f"{type(error).__name__}: {error}"
            if os.environ.get("GOLDENS_DEBUG"):
                traceback.print_exc(file=sys.__stderr__)
    if code in SIGNAL_CODES:
        raise SystemExit(code)
    return Result(code, out.getvalue().decode("utf-8", "backslashreplace"), err.getvalue().decode("utf-8", "backslashreplace"))


def case_text(case: Case, result: Result, *, is_timed: bool) -> str:
    """The record of a case: command line, standard input, exit code and both streams."""
    command = " ".join(word if re.fullmatch(r"[\w./=,:-]+", word) else repr(word) for word in case.words)
    stdin = f"stdin {case.stdin!r}\n" if case.stdin else ""
    out, err = (_shorten(stable_text(text, is_timed=is_timed)) for text in (result.out, result.err))
    return f"$ weft {command}\n{stdin}exit {result.code}\n--- stdout\n{out}--- stderr\n{err}"


def tensors_text(path: Path) -> str:
    """A line for each tensor of a safetensors file: name, dtype, shape and the hash of its bytes."""
    raw = path.read_bytes()
    header_size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + header_size])
    metadata = {key: value for key, value in header.pop("__metadata__", {}).items() if key not in OMITTED_METADATA}
    lines = [f"metadata {json.dumps(metadata, sort_keys=True)}"]
    for name, entry in sorted(header.items()):
        start, end = (8 + header_size + offset for offset in entry["data_offsets"])
        lines.append(f"{name} {entry['dtype']} {entry['shape']} {hashlib.sha256(raw[start:end]).hexdigest()}")
    return "\n".join(lines) + "\n"


def file_text(path: Path) -> str | None:
    """The record of a file; None if only its name is recorded."""
    if path.suffix == ".safetensors":
        return tensors_text(path)
    if path.name in TEXT_FILES or TEXT_FILE_PATTERN.match(path.name) or path.suffix in (".arpa", ".md", ".tex"):
        return _shorten(stable_text(path.read_text(encoding="utf-8"), is_timed=path.suffix in (".md", ".tex")))
    if path.suffix == ".csv":
        return _stable_csv(path.read_text(encoding="utf-8"))
    if path.name in OMITTED_FILES or path.suffix in (".html", ".lock") or "checkpoints" in path.parts:
        return None
    return f"sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def file_texts(path: Path) -> Iterator[tuple[str, str]]:
    """The records of a file, or of all files of a directory, with their names; LIST is a list of the names."""
    if path.is_file():
        yield path.name, file_text(path) or ""
    if not path.is_dir():
        return
    names = [file.relative_to(path).as_posix() for file in sorted(path.rglob("*")) if file.is_file()]
    visible = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
    yield "LIST", "".join(f"{name}\n" for name in visible if not name.startswith("checkpoints/"))
    for name in visible:
        if (text := file_text(path / name)) is not None:
            yield name, text


class Recorder:
    """Runs scenes in the current directory and writes their records to `output_dir`."""

    def __init__(self, output_dir: Path, is_selected: Callable[[str], bool]) -> None:
        self.output_dir, self.is_selected = output_dir, is_selected
        self.work_dir = os.getcwd()
        self.scenes = {scene.name: scene for scene in scenes()}
        self.trained: set[str] = set()
        self.seconds: dict[str, float] = {}

    def write(self, name: str, text: str) -> None:
        path = self.output_dir / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(LM_HASH.sub("HASH", text.replace(self.work_dir, "HERE")), encoding="utf-8")

    def run_case(self, scene: Scene, case: Case) -> None:
        start = time.process_time()
        result = call(case.words, case.stdin)
        name = f"{scene.name}/{case.name}"
        self.seconds[name] = time.process_time() - start
        if self.seconds[name] > SLOW_SECONDS:
            print(f"{self.seconds[name]:6.1f} s  {name}", file=sys.stderr, flush=True)
        if self.is_selected(name):
            self.write(name, case_text(case, result, is_timed=bool(TIMED_COMMANDS.intersection(case.words[:1]))))
            for path in case.files:
                for file_name, text in file_texts(Path(path)):
                    self.write(f"{name}.files/{file_name}", text)
        for scratch in map(Path, SCRATCH):
            if scratch.is_dir():
                shutil.rmtree(scratch)
            scratch.unlink(missing_ok=True)

    def train(self, name: str) -> None:
        """Train the run of a scene once, after the runs that it needs."""
        scene = self.scenes[name]
        if name in self.trained:
            return
        self.trained.add(name)
        for needed in scene.needs:
            self.train(needed)
        if not scene.run_file:
            return
        Path(f"{name}.toml").write_text(scene.run_file, encoding="utf-8")
        if name == "compare-train":
            return
        self.run_case(scene, Case("train", ("train", f"{name}.toml", *scene.options)))
        if self.is_selected(f"{name}/train"):
            for file_name, text in file_texts(Path(scene.run)):
                self.write(f"{name}/run/{file_name}", text)

    def run_scene(self, scene: Scene) -> None:
        selected = [case for case in scene.cases if self.is_selected(f"{scene.name}/{case.name}")]
        if not selected and not (scene.run_file and self.is_selected(f"{scene.name}/train")):
            return
        arguments = {word for case in selected for word in case.words}
        self.train(scene.name)
        for case in scene.cases:
            if case in selected or arguments.intersection(case.files):
                self.run_case(scene, case)


def record(output_dir: Path, patterns: Sequence[str]) -> dict[str, float]:
    """Run the scenes in a temporary directory; returns the CPU seconds of each case."""
    from weft.cli import display

    display.LOG_SECONDS = math.inf  # type: ignore[attr-defined,unused-ignore]  # no progress lines, however slow the machine is
    warnings.simplefilter("ignore")
    shutil.rmtree(output_dir, ignore_errors=True)
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="goldens-") as work_dir:
        os.chdir(work_dir)
        try:
            golden_data.make(Path(work_dir))
            recorder = Recorder(output_dir, lambda name: matches(name, patterns))
            for scene in recorder.scenes.values():
                start = time.process_time()
                recorder.run_scene(scene)
                print(f"{time.process_time() - start:6.1f} s  {scene.name}", file=sys.stderr, flush=True)
        finally:
            os.chdir(before)
    return recorder.seconds


# ---- comparison of two records


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name, SCENE/CASE, contains or matches one of the patterns, or there are none."""
    return not patterns or any(pattern in name or fnmatchcase(name, pattern) for pattern in patterns)


def read_record(directory: Path, patterns: Sequence[str]) -> dict[str, str]:
    """The texts of a record by name."""
    paths = {path.relative_to(directory).as_posix(): path for path in sorted(directory.rglob("*.txt"))}
    return {name: path.read_text(encoding="utf-8") for name, path in paths.items() if matches(name, patterns)}


def text_differences(before: str, after: str) -> list[str]:
    """The lines of a diff."""
    diff = difflib.unified_diff(before.split("\n"), after.split("\n"), "before", "after", "", "", 1, "")
    return list(diff)[2:]


def numbers(name: str, text: str) -> Counter[str]:
    """The results in a text: hashes of tensors, or the exit code and all decimal numbers of the output."""
    if name.endswith(".safetensors.txt"):
        return Counter(TENSOR_HASH.findall(text))
    head, separator, streams_text = text.partition("--- stdout\n")
    if not separator:  # a file
        return Counter(NUMBER.findall(text))
    exit_code = re.search(r"^exit \S+", head, re.MULTILINE)
    return Counter([*([exit_code[0]] if exit_code else []), *NUMBER.findall(streams_text)])


def number_differences(name: str, before: str, after: str) -> list[str]:
    """The numbers that are only in one of two texts, with their counts."""
    old, new = numbers(name, before), numbers(name, after)
    changes = [("-", old - new), ("+", new - old)]
    return [f"{sign}{number}{f' x {count}' if count > 1 else ''}" for sign, more in changes for number, count in more.items()]


def compare(before_dir: Path, after_dir: Path, patterns: Sequence[str], max_lines: int, *, only_numbers: bool = False) -> int:
    """Print the differences between two records; returns the number of files that differ."""
    before, after = read_record(before_dir, patterns), read_record(after_dir, patterns)
    names = sorted({*before, *after})
    if not names:
        print(f"{before_dir} and {after_dir} have no records{' of ' + ' or '.join(patterns) if patterns else ''}")
        return 1
    num_different = 0
    for name in names:
        if before.get(name) == after.get(name):
            continue
        if name not in before or name not in after:
            num_different += 1
            print(f"only in {before_dir if name in before else after_dir}: {name}")
            continue
        differences = (
            number_differences(name, before[name], after[name]) if only_numbers else text_differences(before[name], after[name])
        )
        if not differences:
            continue
        num_different += 1
        print(f"differs: {name}")
        for line in differences[:max_lines]:
            print(f"    {line[:300]}")
        if len(differences) > max_lines:
            print(f"    ... and {len(differences) - max_lines} more")
    total = f", {sum(numbers(name, text).total() for name, text in after.items()):,} numbers compared" if only_numbers else ""
    print(f"{num_different} of {len(names)} files differ{total}")
    return num_different


def _parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    record_parser = commands.add_parser("record", help="run every case and record its results")
    record_parser.add_argument("output_dir", type=Path, metavar="DIR", help="output directory; is overwritten")
    record_parser.add_argument(
        "--source", type=Path, metavar="DIR", help="directory that contains the package weft (default: this checkout)"
    )
    record_parser.add_argument("--slowest", type=int, default=0, metavar="N", help="print the N slowest cases")
    compare_parser = commands.add_parser("compare", help="print the differences between two records")
    compare_parser.add_argument("before", type=Path, metavar="DIR1")
    compare_parser.add_argument("after", type=Path, metavar="DIR2")
    compare_parser.add_argument("--lines", type=int, default=20, metavar="N", help="maximum number of lines per file (20)")
    compare_parser.add_argument(
        "--numbers", action="store_true", help="compare only exit codes, decimal numbers and tensors, not words"
    )
    for subparser in (record_parser, compare_parser):
        subparser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="only these cases; repeatable")
    return parser.parse_args()


def main() -> int:
    args = _parse_args()
    if args.command == "compare":
        return int(bool(compare(args.before, args.after, args.only, args.lines, only_numbers=args.numbers)))
    source = (args.source or Path(__file__).parents[1] / "src").resolve()
    sys.path.insert(0, str(source))
    os.environ["PYTHONPATH"] = str(source)  # for the processes that `weft compare` starts
    os.environ["OMP_NUM_THREADS"] = "1"
    start = time.monotonic()
    import weft

    if not Path(str(weft.__file__)).is_relative_to(source):
        raise SystemExit(f"{source}: does not contain the package weft")
    seconds = record(args.output_dir.resolve(), args.only)
    print(f"{len(seconds)} commands of {source} in {time.monotonic() - start:.0f} s, recorded in {args.output_dir}")
    for name, cpu_seconds in sorted(seconds.items(), key=lambda item: -item[1])[: args.slowest]:
        print(f"{cpu_seconds:7.2f} s  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
