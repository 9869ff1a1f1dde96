"""What every task and command prints and writes, recorded as text, so that a change of the code can be shown to change nothing.

    python tools/goldens.py record before --source ../other-checkout/src     what that code does
    python tools/goldens.py record after                                     what this code does
    python tools/goldens.py compare before after                             what differs; exit code 1 if anything does

`--only PATTERN` picks cases, by any part of SCENE/CASE or as a shell pattern, and repeatable: `--only tag`,
`--only predict`, `--only 'lm-*/explain*'`. Runs that they need are trained as well. Times, rates, sizes on disk and memory are
left out of what is recorded, as are paths of the machine. One thread computes: sums depend on their number.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import golden_data
from golden_cases import Case, Scene, scenes

Json = Any
# what a clock, a disk or a machine decides, at any depth of JSON
LEFT_OUT = {
    "seconds", "training_seconds", "tokens_per_second", "peak_memory", "bytes", "trained_with", "environment", "decoding",
    "decoding_per_second", "free_memory", "weft", "date",
}  # fmt: skip
CLOCKS = [
    (re.compile(r"\b\d+:\d\d(:\d\d)?\b"), "TIME"),
    (re.compile(r"\b[\d.,]+ (tokens|examples|lines|pairs|sentences|characters)/s\b"), r"RATE \1/s"),
    (re.compile(r"\b[\d.,]+ (s|ms|min|seconds|minutes)\b"), r"TIME \1"),
    (re.compile(r"^trained with .*$", re.MULTILINE), "trained with LEFT OUT"),
    (re.compile(r"\b[\d.,]+ (B|KB|MB|GB|kB|KiB|MiB|GiB)\b"), r"SIZE \1"),
]
HASHED = re.compile(r"(?<=/lm:)[0-9a-f]{8}(?=\*)")  # of a language model beside another run, paths of its data included
CLOCKED = {"train", "info", "compare"}  # the commands whose text tells times and sizes
COSTS = re.compile(r"(^|.*\W)parameters(?=\W+training\b)")  # columns of a comparison after this one are a machine's
EXACT = ("metrics.jsonl", "resolved.toml", "labels.json", "samples.jsonl", "comparison.json", "config.json", "run.toml")
EXACT_LIKE = re.compile(r"(tokenizer|features|vocab|merges|special).*\.(json|txt)$")
HASHES = ("config", "weft.sha256")  # of metadata: paths are part of the config, which resolved.toml shows
UNTOLD = {"timings.jsonl", "environment.json"}
SCRATCH = ("runs/x", "x", "x.arpa", "x.pdf", "compared-x")
STOPPED = (129, 130, 143)  # by a signal, which was meant for all of this
SLOW = 3.0  # seconds of CPU of a case that is worth a word
LONGEST = 400_000  # characters of a text that is kept; of a longer one its sum and its beginning


class Result(NamedTuple):
    code: int | str
    out: str
    err: str


def _left_out(key: str, value: Json) -> bool:
    """Whether a machine decides it; a sum of a whole document with its times is a string, that of numbers is none."""
    return value is not None and (key in LEFT_OUT or (key == "sum" and isinstance(value, str)))


def _without(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: "LEFT OUT" if _left_out(key, inner) else _without(inner) for key, inner in value.items()}
    return [_without(inner) for inner in value] if isinstance(value, list) else value


def _plain(text: str) -> str | None:
    """JSON without what a machine decides, as it was laid out; None where it is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict | list):
        return None
    kept = _without(found)
    return text if kept == found else json.dumps(kept, ensure_ascii=False, indent=2) + "\n"


def _without_costs(text: str) -> str:
    """A table of a comparison, up to the column of the parameters: one for a terminal, for Markdown or for LaTeX."""
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if not (head := COSTS.match(line)):
            continue
        mark = next((one for one in ("|", "&") if one in line), "")
        columns = head[0].count(mark) + 1 if mark else 0
        for row in range(at, len(lines)):
            if mark and mark in lines[row]:
                lines[row] = mark.join(lines[row].split(mark)[:columns])
            elif not mark and not lines[row].startswith("---"):
                lines[row] = lines[row][: head.end()]
    return "\n".join(lines)


def _columns(text: str) -> str:
    """CSV without the columns that a machine decides."""
    rows = list(csv.reader(io.StringIO(text)))
    kept = [at for at, name in enumerate(rows[0]) if name not in LEFT_OUT]
    return "".join(",".join(row[at] for at in kept) + "\n" for row in rows)


def plain(text: str, *, clocked: bool) -> str:
    """What was printed or written, without what a machine decides; JSON, lines of JSON, or any other text."""
    if (whole := _plain(text)) is not None:
        return whole
    lines = [(_plain(line) or line).rstrip("\n") for line in text.split("\n")]
    text = _without_costs("\n".join(lines)) if clocked else "\n".join(lines)
    for pattern, put in CLOCKS if clocked else ():
        text = pattern.sub(put, text)
    return text


def _short(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    return f"sha256 {hashlib.sha256(text.encode()).hexdigest()} of {len(text):,} characters, which begin:\n{text[:2000]}\n"


@contextmanager
def streams(stdin: bytes) -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    """Standard input from bytes, output and error into bytes."""
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
    """No command sees what another one drew."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def call(words: Sequence[str], stdin: bytes = b"") -> Result:
    """One command of weft, in this process."""
    from weft.cli.main import main

    _seed()
    code: int | str
    with streams(stdin) as (out, err):
        try:
            code = main(list(words))
        except SystemExit as error:
            code = f"SystemExit {error.code}"
        except Exception as error:  # a crash is a result, too: its kind and words, not its lines
            code = f"{type(error).__name__}: {error}"
            if os.environ.get("GOLDENS_DEBUG"):
                traceback.print_exc(file=sys.__stderr__)
    if code in STOPPED:
        raise SystemExit(code)
    return Result(code, out.getvalue().decode("utf-8", "backslashreplace"), err.getvalue().decode("utf-8", "backslashreplace"))


def told(case: Case, result: Result, *, clocked: bool) -> str:
    """The text of a case: its command line, exit code and streams."""
    shown = " ".join(word if re.fullmatch(r"[\w./=,:-]+", word) else repr(word) for word in case.words)
    stdin = f"stdin {case.stdin!r}\n" if case.stdin else ""
    out, err = (_short(plain(text, clocked=clocked)) for text in (result.out, result.err))
    return f"$ weft {shown}\n{stdin}exit {result.code}\n--- stdout\n{out}--- stderr\n{err}"


def tensors(path: Path) -> str:
    """A line for each tensor: its name, type, shape and the sum of its bytes."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    about = {key: value for key, value in header.pop("__metadata__", {}).items() if key not in HASHES}
    lines = [f"metadata {json.dumps(about, sort_keys=True)}"]
    for name, entry in sorted(header.items()):
        low, high = entry["data_offsets"]
        found = hashlib.sha256(raw[8 + size + low : 8 + size + high]).hexdigest()
        lines.append(f"{name} {entry['dtype']} {entry['shape']} {found}")
    return "\n".join(lines) + "\n"


def written(path: Path) -> str | None:
    """What is kept of a file; None where only its name is."""
    if path.suffix == ".safetensors":
        return tensors(path)
    if path.name in EXACT or EXACT_LIKE.match(path.name) or path.suffix in (".arpa", ".md", ".tex"):
        return _short(plain(path.read_text(encoding="utf-8"), clocked=path.suffix in (".md", ".tex")))
    if path.suffix == ".csv":
        return _columns(path.read_text(encoding="utf-8"))
    if path.name in UNTOLD or path.suffix in (".html", ".lock") or "checkpoints" in path.parts:
        return None
    return f"sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def folder(path: Path) -> Iterator[tuple[str, str]]:
    """What a run directory, or a file, holds: names and texts to keep."""
    if path.is_file():
        yield path.name, written(path) or ""
    names = sorted(one for one in path.rglob("*") if one.is_file())
    if path.is_dir():
        shown = [one.relative_to(path).as_posix() for one in names if not any(part.startswith(".") for part in one.parts)]
        yield "LIST", "".join(f"{name}\n" for name in shown if not name.startswith("checkpoints/"))
    for one in names:
        if not any(part.startswith(".") for part in one.relative_to(path).parts) and (text := written(one)) is not None:
            yield one.relative_to(path).as_posix(), text


class Recorder:
    """Runs scenes in the current directory and writes what they do under `place`."""

    def __init__(self, place: Path, wanted: Callable[[str], bool]) -> None:
        self.place, self.wanted = place, wanted
        self.here = os.getcwd()
        self.known = {scene.name: scene for scene in scenes()}
        self.trained: set[str] = set()
        self.seconds: dict[str, float] = {}

    def keep(self, name: str, text: str) -> None:
        path = self.place / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HASHED.sub("HASH", text.replace(self.here, "HERE")), encoding="utf-8")

    def do(self, scene: Scene, case: Case) -> None:
        started = time.process_time()
        result = call(case.words, case.stdin)
        name = f"{scene.name}/{case.name}"
        self.seconds[name] = time.process_time() - started
        if self.seconds[name] > SLOW:
            print(f"{self.seconds[name]:6.1f} s  {name}", file=sys.stderr, flush=True)
        if self.wanted(name):
            self.keep(name, told(case, result, clocked=bool(CLOCKED.intersection(case.words[:1]))))
            for path in case.files:
                for inner, text in folder(Path(path)):
                    self.keep(f"{name}.files/{inner}", text)
        for scratch in map(Path, SCRATCH):
            if scratch.is_dir():
                shutil.rmtree(scratch)
            scratch.unlink(missing_ok=True)

    def train(self, name: str) -> None:
        """The run of a scene, once; what it needs first."""
        scene = self.known[name]
        if name in self.trained:
            return
        self.trained.add(name)
        for other in scene.needs:
            self.train(other)
        if not scene.run_file:
            return
        Path(f"{name}.toml").write_text(scene.run_file, encoding="utf-8")
        if name == "compare-train":
            return
        self.do(scene, Case("train", ("train", f"{name}.toml", *scene.options)))
        if self.wanted(f"{name}/train"):
            for inner, text in folder(Path(scene.run)):
                self.keep(f"{name}/run/{inner}", text)

    def scene(self, scene: Scene) -> None:
        cases = [case for case in scene.cases if self.wanted(f"{scene.name}/{case.name}")]
        if not cases and not (scene.run_file and self.wanted(f"{scene.name}/train")):
            return
        files = {path for case in cases for path in case.words}
        self.train(scene.name)
        for case in scene.cases:
            if case in cases or files.intersection(case.files):
                self.do(scene, case)


def record(place: Path, patterns: Sequence[str]) -> dict[str, float]:
    """Run the scenes in a new temporary directory; the seconds of CPU of each case."""
    from weft.cli import display

    display.LOG_SECONDS = math.inf  # type: ignore[attr-defined,unused-ignore]  # no word of progress, however slow the machine is
    warnings.simplefilter("ignore")
    shutil.rmtree(place, ignore_errors=True)
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="goldens-") as made:
        os.chdir(made)
        try:
            golden_data.make(Path(made))
            recorder = Recorder(place, lambda name: matches(name, patterns))
            for scene in recorder.known.values():
                started = time.process_time()
                recorder.scene(scene)
                print(f"{time.process_time() - started:6.1f} s  {scene.name}", file=sys.stderr, flush=True)
        finally:
            os.chdir(before)
    return recorder.seconds


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name, SCENE/CASE, has one of the patterns, or is meant by one; without any, it is."""
    return not patterns or any(pattern in name or fnmatchcase(name, pattern) for pattern in patterns)


def texts(place: Path, patterns: Sequence[str]) -> Mapping[str, str]:
    paths = {path.relative_to(place).as_posix(): path for path in sorted(place.rglob("*.txt"))}
    return {name: path.read_text(encoding="utf-8") for name, path in paths.items() if matches(name, patterns)}


def compare(one: Path, two: Path, patterns: Sequence[str], most: int) -> int:
    """Print what differs between two records; how many files do."""
    before, after = texts(one, patterns), texts(two, patterns)
    if not before and not after:
        print(f"nothing is recorded in {one} and {two} that {' or '.join(patterns) or 'could be compared'} names")
        return 1
    different = 0
    for name in sorted({*before, *after}):
        if before.get(name) == after.get(name):
            continue
        different += 1
        if name not in before or name not in after:
            print(f"only in {one if name in before else two}: {name}")
            continue
        print(f"differs: {name}")
        found = difflib.unified_diff(before[name].split("\n"), after[name].split("\n"), "before", "after", "", "", 1, "")
        lines = list(found)[2:]
        for line in lines[:most]:
            print(f"    {line[:300]}")
        if len(lines) > most:
            print(f"    ... {len(lines) - most} lines more")
    print(f"{different} of {len({*before, *after})} files differ")
    return different


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="what", required=True)
    made = parts.add_parser("record", help="run every case, and write what it did")
    made.add_argument("place", type=Path, metavar="DIR", help="is written anew")
    made.add_argument(
        "--source", type=Path, metavar="DIR", help="the directory that contains the package weft; default: this checkout"
    )
    made.add_argument("--slowest", type=int, default=0, metavar="N", help="print the N slowest cases")
    seen = parts.add_parser("compare", help="list what differs between two records")
    seen.add_argument("one", type=Path, metavar="DIR1")
    seen.add_argument("two", type=Path, metavar="DIR2")
    seen.add_argument("--lines", type=int, default=20, metavar="N", help="lines of difference shown of each file (20)")
    for part in (made, seen):
        part.add_argument("--only", action="append", default=[], metavar="PATTERN", help="these cases only; repeatable")
    return parser.parse_args()


def main() -> int:
    options = _options()
    if options.what == "compare":
        return 1 if compare(options.one, options.two, options.only, options.lines) else 0
    source = (options.source or Path(__file__).parents[1] / "src").resolve()
    sys.path.insert(0, str(source))
    os.environ["PYTHONPATH"] = str(source)  # for the processes that a comparison starts
    os.environ["OMP_NUM_THREADS"] = "1"
    started = time.monotonic()
    import weft

    if not Path(str(weft.__file__)).is_relative_to(source):
        raise SystemExit(f"{source}: the package weft is not in it")
    seconds = record(options.place.resolve(), options.only)
    print(f"{len(seconds)} commands of {source} in {time.monotonic() - started:.0f} s, into {options.place}")
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1])[: options.slowest]:
        print(f"{spent:7.2f} s  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
