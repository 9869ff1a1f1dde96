"""`weft prepare`: tokenize the data of a run file ahead of training, in parallel."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import FILES, ModelCommand, Overrides, RunFile
from weft.cli.output import format_duration, pluralize, print_error, print_message, write_json
from weft.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weft.cli.display import Display
    from weft.data.shards import Subset
    from weft.tasks.prepare_shards import Preparation

MEGA = 1_000_000
SHARD_SIZE = 256  # million characters; about 150 MB of tokens


class PrepareProgress:
    """Prints the progress of a preparation."""

    def __init__(self, display: Display) -> None:
        self.display = display

    def on_note(self, text: str) -> None:
        self.display.line(text)

    def on_data(self, summary: str) -> None:
        self.display.line(summary.replace(f"{Path.cwd()}/", ""))

    def on_progress(self, phase: str, done: int, total: int) -> None:
        self.display.show(phase, done / max(1, total))


@dataclass(kw_only=True)
class Prepare(ModelCommand):
    """Tokenize the data of a run file ahead of training, in parallel.

    Writes the tokens of all splits in shards. A run file with data.prepared = "DIR" is trained on them. The same command
    resumes a preparation that was stopped. To use several machines, run it on each with its --shard and a shared directory; the
    last one completes it.
    """

    run_file: RunFile
    overrides: Overrides = None
    processes: Annotated[
        int | None, typer.Option(min=1, max=1024, metavar="N", help="Number of processes.  [default: one per CPU]")
    ] = None
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Write only part I of N, for machine I of N machines.  [default: 1/1]")
    ] = None
    shard_size: Annotated[
        float | None,
        typer.Option(metavar="X", help=f"Size of a shard, in millions of characters.  [default: {SHARD_SIZE}]"),
    ] = None
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all finished shards and source files, and replace corrupted shards.")
    ] = False
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Discard the existing directory and start over.")] = False
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir", "-o", rich_help_panel=FILES, metavar="DIR", help="Output directory.  [default: data.prepared]"
        ),
    ] = None

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.cli.launch import check_processes
        from weft.cli.prepare_workers import WorkerFailed
        from weft.cli.threads import cpus
        from weft.config import override, read_toml
        from weft.data.shards import Subset

        index, count = _parse_shard(self.shard)
        if self.shard_size is not None and not 0 < self.shard_size < 1e6:
            raise UsageError("shard_size", f"must be greater than 0 and less than 1,000,000, got {self.shard_size:g}")
        values = override(read_toml(self.run_file), self.overrides or [])
        output_dir = self._output_dir(values)
        start = time.monotonic()
        with Display(quiet=self.quiet) as display:
            preparation = self._preparation(values, output_dir, display)
            progress = PrepareProgress(display)
            plan = preparation.plan(progress, verify=self.verify)
            num_processes = min(self.processes or cpus(), preparation.max_processes(plan, count))
            check_processes(num_processes)
            subsets = [Subset(index + count * process, count * num_processes) for process in range(num_processes)]
            damaged = preparation.verify(plan, Subset(index, count), progress) if self.verify else []
            for path in damaged:
                display.clear()
                print_message("warning", f"{path}: checksum mismatch; it is written again")
            try:
                self._write(preparation, plan, subsets, display)
            except WorkerFailed as failure:
                display.clear()
                print_message("error", failure.message)
                return failure.exit_code
            unfinished = preparation.join(plan)
        self._summarize(output_dir, unfinished, damaged, time.monotonic() - start)
        return 0

    def _output_dir(self, values: Mapping[str, Any]) -> Path:
        prepared = values.get("data", {}).get("prepared") if isinstance(values.get("data"), dict) else None
        if self.output_dir is None and not isinstance(prepared, str):
            raise UsageError("output_dir", "required, because the run file has no data.prepared", "name a directory")
        return self.output_dir if self.output_dir is not None else self.run_file.parent / str(prepared)

    def _preparation(self, values: dict[str, Any], output_dir: Path, display: Display) -> Preparation:
        """The preparation of a run file, with its recommended tokenizer, or with the one that it was begun with."""
        from weft import files
        from weft.data.prepared_index import INDEX, PLAN, read_checked
        from weft.runs.recommend import recommend, with_arch
        from weft.runs.resolve import resolve
        from weft.tasks.prepare_shards import Preparation

        if isinstance(values.get("data"), dict):
            values = {**values, "data": {name: value for name, value in values["data"].items() if name != "prepared"}}
        if self.overwrite and any((output_dir / name).exists() for name in (PLAN, INDEX)):
            files.remove(output_dir)
        stored = read_checked(output_dir / PLAN) if (output_dir / PLAN).exists() else None
        if stored is None:
            display.show("reading training data", 0.0)
            config = recommend(values, base=self.run_file.parent).config
        else:
            config = resolve({"tokenizer": stored["tokenizer"], **with_arch(values)}, base=self.run_file.parent)
        default = SHARD_SIZE * MEGA if stored is None else int(stored["shard_size"])
        return Preparation(config, output_dir, default if self.shard_size is None else max(1, round(self.shard_size * MEGA)))

    def _write(self, preparation: Preparation, plan: Mapping[str, Any], subsets: list[Subset], display: Display) -> None:
        from weft.cli.prepare_workers import run_workers

        if len(subsets) == 1:
            preparation.write(plan, subsets[0], PrepareProgress(display))
            return
        run_workers(preparation, subsets, lambda fraction: display.show("tokenizing", fraction))

    def _summarize(self, output_dir: Path, unfinished: Mapping[str, int | None], damaged: list[Path], seconds: float) -> None:
        from weft.data.prepared_index import read_index

        corpora = {} if unfinished else read_index(output_dir)["corpora"]
        counts = {name: {"shards": len(entry["shards"]), "tokens": entry["tokens"]} for name, entry in corpora.items()}
        if self.json:
            write_json(
                {
                    "directory": str(output_dir),
                    "complete": not unfinished,
                    "corpora": counts,
                    "missing_shards": unfinished,
                    "rewritten": [str(path) for path in damaged],
                    "seconds": round(seconds, 3),
                }
            )
            return
        if self.quiet:
            return
        for name, count in counts.items():
            print_error(f"{name}: {count['tokens']:,} tokens in {pluralize(count['shards'], 'shard')}")
        if unfinished:
            names = ", ".join(name if number is None else f"{name} ({number})" for name, number in unfinished.items())
            print_error(f"Part {self.shard} written to {output_dir}. Other parts are missing shards of {names}.")
        else:
            # as in the run file, whose paths are relative to its directory
            name = os.path.relpath(output_dir, self.run_file.parent) if not output_dir.is_absolute() else output_dir
            print_error(f'Prepared data saved to {output_dir} ({format_duration(seconds)}). Set data.prepared = "{name}"')


def _parse_shard(text: str | None) -> tuple[int, int]:
    """Index, from 0, and count of --shard I/N."""
    if text is None:
        return 0, 1
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError("shard", f"expected I/N with 1 <= I <= N, got {text!r}")
    return int(match[1]) - 1, int(match[2])
