"""`weft train`: a run from its file to its folder, with progress; the same command resumes."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import FILES, ModelCommand
from weft.cli.output import format_duration, note, score_name, write_json
from weft.errors import ModelError
from weft.runs.finished import is_finished, remove_on_failure

if TYPE_CHECKING:
    from weft.runs.config import RunConfig


@dataclass(kw_only=True)
class Train(ModelCommand):
    """Train what a run file says. The same command resumes a run that was stopped.

    Ctrl-C saves and stops; pressed twice it stops at once.
    """

    run_file: Annotated[Path, typer.Argument(metavar="RUN.TOML", help="The run file; weft init writes one.")]
    output_dir: Annotated[
        Path | None,
        typer.Option(rich_help_panel=FILES, metavar="DIR", help="The run folder.  [default: runs/NAME of the run file]"),
    ] = None
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=VALUE", help="Change an option of the run file; may be given several times."),
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start over: the new run replaces the one in the folder.")] = (
        False
    )
    tokenizer_from: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Use the tokenizer of another run, so that both can be compared.")
    ] = None

    init_from: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Start from the weights of another run, and with its tokenizer.")
    ] = None

    def run(self) -> int:
        from weft.config import override, read_toml
        from weft.runs.job import with_tokenizer_from, with_tokenizer_of_init
        from weft.runs.resolve import resolve
        from weft.runs.run_dir import RunDir

        values = override(read_toml(self.run_file), self.overrides or [])
        if self.init_from is not None:
            values = {**values, "train": {**values.get("train", {}), "init_from": str(self.init_from.absolute())}}
        if self.tokenizer_from is not None:
            values = with_tokenizer_from(values, self.tokenizer_from)
        elif self.init_from is not None:
            values = with_tokenizer_of_init(values, self.init_from)
        output_dir = self.output_dir or Path("runs") / self.run_file.stem
        config = resolve(values, base=self.run_file.parent)  # a wrong run file is refused before anything is looked at
        if not self.overwrite and is_finished(output_dir, config):
            self._check(output_dir)
            RunDir(output_dir).drop_backup()
            note(f"{output_dir}: this run is finished; --overwrite trains it again", quiet=self.quiet)
            self._summarise(output_dir, config)
            return 0
        began = time.monotonic()
        code = self._train(values, output_dir)
        if code == 0:
            self._summarise(output_dir, config, seconds=time.monotonic() - began)
        return code

    def _check(self, output_dir: Path) -> None:
        """Refuse to call a run finished that can't be read."""
        from weft.runs.load import load

        try:
            load(output_dir, device="cpu").info()  # which asks for the weights
        except ModelError as error:
            raise ModelError("", f"{error}", "--overwrite trains it again") from None

    def _train(self, values: dict[str, Any], output_dir: Path) -> int:
        from weft.cli.display import Display
        from weft.cli.progress import TrainProgress
        from weft.cli.signals import Stop
        from weft.errors import TrainingInterrupted
        from weft.runs.job import train
        from weft.runs.run_dir import RunDir

        directory = RunDir(output_dir)
        waited, replaces = directory.backup.exists(), self.overwrite and os.path.isfile(directory.resolved)
        with remove_on_failure(output_dir), Stop() as stop, Display(quiet=self.quiet) as display:
            try:
                train(
                    values,
                    output_dir,
                    base=self.run_file.parent,
                    callback=TrainProgress(display, stop),
                    overwrite=self.overwrite,
                )
            except TrainingInterrupted:
                display.clear()
                display.line(f"weft: stopped and saved in {output_dir}; {self._resuming(output_dir)}")
                return stop.exit_code
            except KeyboardInterrupt:
                display.clear()
                then = f"{output_dir} is as it was" if replaces else f"the same command goes on with {output_dir}"
                if waited and not directory.backup.exists():
                    then = f"the run that was to be replaced is back in {output_dir}"
                display.line(f"weft: stopped before the first step; {then}")
                return stop.exit_code
        return 0

    def _resuming(self, output_dir: Path) -> str:
        from weft.runs.run_dir import RunDir

        aside = RunDir(output_dir).backup
        kept = f"; the earlier run is kept in {aside.path} until this one has weights" if aside.exists() else ""
        return f"the same command{', without --overwrite,' if self.overwrite else ''} resumes{kept}"

    def _summarise(self, output_dir: Path, config: RunConfig, *, seconds: float | None = None) -> None:
        from weft.runs.status import read_run_status

        demo = read_run_status(output_dir)
        if self.json:
            took = {} if seconds is None else {"seconds": round(seconds, 3)}
            write_json({"run": str(output_dir), **demo.to_json(), **took})
            return
        lines = [f"the run is in {output_dir}" if seconds is None else f"trained in {format_duration(seconds)}: {output_dir}"]
        if demo.best is not None:
            at = "" if demo.is_fitted else f" at step {demo.best_step:,}"
            lines.insert(0, f"best valid {score_name(demo.best[0].name)} {demo.best[1]:.4f}{at}")
        held_out = len(config.datasets) > 1
        name = shlex.quote(str(output_dir))  # to be pasted into a shell
        lines.append(f"next: weft evaluate {name}{'' if held_out else ' --data FILE'}, or weft {config.spec.use} {name}")
        note("\n".join(lines), quiet=self.quiet)
