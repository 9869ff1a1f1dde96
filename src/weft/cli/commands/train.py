"""`weft train`: a run from its file to its folder, with progress; the same command resumes."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import FILES, Shared
from weft.cli.output import duration, note, score_name, write_json
from weft.errors import ModelError
from weft.runs.finished import is_finished, leaving_nothing

if TYPE_CHECKING:
    from weft.runs.settings import Settings


@dataclass(kw_only=True)
class Train(Shared):
    """Train what a run file says. The same command resumes a run that was stopped.

    Ctrl-C saves and stops; pressed twice it stops at once.
    """

    run_file: Annotated[Path, typer.Argument(metavar="RUN.TOML", help="The run file; weft init writes one.")]
    out: Annotated[
        Path | None,
        typer.Option(rich_help_panel=FILES, metavar="DIR", help="The run folder.  [default: runs/NAME of the run file]"),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=VALUE", help="Change an option of the run file; may be given several times."),
    ] = None
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over: the new run replaces the one in the folder.")] = False
    tokenizer_from: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Use the tokenizer of another run, so that both can be compared.")
    ] = None

    init_from: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Start from the weights of another run, and with its tokenizer.")
    ] = None

    def run(self) -> int:
        from weft.config import override, read_toml
        from weft.runs.folder import RunFolder
        from weft.runs.job import borrow_for_start, borrow_tokenizer
        from weft.runs.resolve import resolve

        values = override(read_toml(self.run_file), self.settings or [])
        if self.init_from is not None:
            values = {**values, "train": {**values.get("train", {}), "init_from": str(self.init_from.absolute())}}
        if self.tokenizer_from is not None:
            values = borrow_tokenizer(values, self.tokenizer_from)
        elif self.init_from is not None:
            values = borrow_for_start(values, self.init_from)
        out = self.out or Path("runs") / self.run_file.stem
        settings = resolve(values, base=self.run_file.parent)  # a wrong run file is refused before anything is looked at
        if not self.fresh and is_finished(out, settings):
            self._check(out)
            RunFolder(out).settle()
            note(f"{out}: this run is finished; --fresh trains it again", quiet=self.quiet)
            self._summarise(out, settings)
            return 0
        began = time.monotonic()
        code = self._train(values, out)
        if code == 0:
            self._summarise(out, settings, seconds=time.monotonic() - began)
        return code

    def _check(self, out: Path) -> None:
        """Refuse to call a run finished that can't be read."""
        from weft.runs.load import load

        try:
            load(out, device="cpu").info()  # which asks for the weights
        except ModelError as error:
            raise ModelError(f"{error}; --fresh trains it again") from None

    def _train(self, values: dict[str, Any], out: Path) -> int:
        from weft.cli.display import Display
        from weft.cli.progress import TrainWatcher
        from weft.cli.signals import Stop
        from weft.errors import TrainingInterrupted
        from weft.runs.folder import RunFolder
        from weft.runs.job import train

        folder = RunFolder(out)
        waited, replaces = folder.aside.is_there(), self.fresh and os.path.isfile(folder.resolved)
        with leaving_nothing(out), Stop() as stop, Display(quiet=self.quiet) as display:
            try:
                train(values, out, base=self.run_file.parent, watcher=TrainWatcher(display, stop), fresh=self.fresh)
            except TrainingInterrupted:
                display.clear()
                display.line(f"weft: stopped and saved in {out}; {self._resuming(out)}")
                return stop.exit_code
            except KeyboardInterrupt:
                display.clear()
                then = f"{out} is as it was" if replaces else f"the same command goes on with {out}"
                if waited and not folder.aside.is_there():
                    then = f"the run that was to be replaced is back in {out}"
                display.line(f"weft: stopped before the first step; {then}")
                return stop.exit_code
        return 0

    def _resuming(self, out: Path) -> str:
        from weft.runs.folder import RunFolder

        aside = RunFolder(out).aside
        kept = f"; the earlier run is kept in {aside.place} until this one has weights" if aside.is_there() else ""
        return f"the same command{', without --fresh,' if self.fresh else ''} resumes{kept}"

    def _summarise(self, out: Path, settings: Settings, *, seconds: float | None = None) -> None:
        from weft.runs.story import read_story

        story = read_story(out)
        if self.json:
            took = {} if seconds is None else {"seconds": round(seconds, 3)}
            write_json({"run": str(out), **story.to_json(), **took})
            return
        lines = [f"the run is in {out}" if seconds is None else f"trained in {duration(seconds)}: {out}"]
        if story.best is not None:
            at = "" if story.counted else f" at step {story.best_step:,}"
            lines.insert(0, f"best valid {score_name(story.best[0].name)} {story.best[1]:.4f}{at}")
        held_out = len(settings.datasets) > 1
        name = shlex.quote(str(out))  # to be pasted into a shell
        lines.append(f"next: weft evaluate {name}{'' if held_out else ' --data FILE'}, or weft {settings.spec.use} {name}")
        note("\n".join(lines), quiet=self.quiet)
