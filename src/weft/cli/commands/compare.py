"""`weft compare`: many models on the same data within the same budget, or runs that are there already; one table, one page."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import FILES, Context, Data, Shared
from weft.cli.output import note, say
from weft.cli.usage import one_line
from weft.errors import UsageError
from weft.lock import Lock

if TYPE_CHECKING:
    from weft.cli.compare_result import Wanted
    from weft.compare.plan import Asked, Refused
    from weft.data.probe_files import Pair
    from weft.report.comparison import Facts


@dataclass(kw_only=True)
class Compare(Shared):
    """Train models of several kinds on the same data, tokenizer and budget, and compare them in one table and one page.

    The same command resumes a comparison that was stopped. With run folders instead of a run file nothing is trained: those
    runs are compared, which must be of one task and the same data, or are all measured on --data.

    Ctrl-C saves and stops; pressed twice it stops at once.
    """

    what: Annotated[list[Path], typer.Argument(metavar="RUN.TOML | RUN...", help="A run file, or run folders.")]
    models: Annotated[
        str | None,
        typer.Option(
            metavar="KIND,...",
            help="Kinds of the run file's task, or all.  [default: its own, baselines, lstm, transformer; with --grid its own]",
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=VALUE", help="Change an option of the run file; may be given several times."),
    ] = None
    seeds: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Runs of each model, each with its seed.")] = 1
    minutes: Annotated[float | None, typer.Option(metavar="X", help="Train each run so long.")] = None
    tokens: Annotated[
        str | None, typer.Option(metavar="N", help="Train each run on so many tokens, such as 1M.  [default: as the run file]")
    ] = None
    params: Annotated[
        str | None, typer.Option(metavar="N", help="Choose each network's width so that it has about N parameters, as 1M.")
    ] = None
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="A.B=X,Y", help="Compare each model with every value; may be given several times."),
    ] = None
    tune: Annotated[
        int | None,
        typer.Option(metavar="N", help="First choose settings of each model by N trials on the validation data."),
    ] = None
    jobs: Annotated[int, typer.Option(min=1, max=256, metavar="N", help="Runs that are trained at a time.")] = 1
    out: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=FILES,
            metavar="DIR",
            help="Where it all goes.  [default: runs/NAME-comparison, of runs runs/comparison]",
        ),
    ] = None
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over: what is in the folder is deleted once the new comparison is finished.")
    ] = False
    score: Annotated[
        str | None, typer.Option(metavar="NAME", help="What decides, such as nats_per_token.  [default: the task's own]")
    ] = None
    tokenize: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="How BLEU splits outputs, as in weft evaluate.  [default: what suits all rows]"),
    ] = None
    context: Context = None
    data: Data = None
    suite: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            readable=False,
            help="Minimal pairs that language models choose from, a file or a folder; may be given several times.",
        ),
    ] = None
    csv: Annotated[
        Path | None, typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write the table as CSV; - is standard output.")
    ] = None
    markdown: Annotated[
        Path | None, typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write the table as Markdown.")
    ] = None
    latex: Annotated[Path | None, typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write the table as LaTeX.")] = None

    def run(self) -> int:
        planned = len(self.what) == 1 and not self.what[0].is_dir()
        return self._plan(self.what[0]) if planned else self._existing()

    # ---- a run file

    def _asked(self) -> Asked:
        from weft.compare.kinds import parse_models
        from weft.compare.plan import Asked, parse_count, parse_grid

        if self.minutes is not None and self.tokens is not None:
            raise UsageError("--minutes and --tokens are two budgets; give one")
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise UsageError(f"--minutes {self.minutes:g}: must be more than 0")
        budget: tuple[str, float] | None = None if self.minutes is None else ("minutes", float(self.minutes))
        if self.tokens is not None:
            budget = ("tokens", parse_count("--tokens", self.tokens))
        return Asked(
            models=() if self.models is None else parse_models(self.models),
            seeds=self.seeds,
            budget=budget,
            params=None if self.params is None else parse_count("--params", self.params),
            grid=[parse_grid(text) for text in self.grid or ()],
            tune=self.tune,
        )

    def _plan(self, run_file: Path) -> int:
        import torch

        from weft.cli.compare_watch import CompareObserver
        from weft.cli.display import Display
        from weft.cli.signals import Stop
        from weft.compare.bleu import check_wanted
        from weft.compare.comparing import Comparing, Place
        from weft.compare.plan import PLAN, earlier
        from weft.compare.scores import refuse_others
        from weft.config import override, read_toml
        from weft.errors import TrainingInterrupted

        if self.data:
            raise UsageError(f"--data: is for runs that are there; {run_file} names its own, data.test")
        out = self.out or Path("runs") / f"{run_file.stem}-comparison"
        self._wanted().check(out)
        place = Place(out, self.jobs, torch.get_num_threads(), self.fresh)
        # resolved: the same comparison from wherever it is called
        values = override(read_toml(run_file), self.settings or [])
        comparing = Comparing(values, self._asked(), place, base=run_file.parent.resolve())
        refuse_others(comparing.task, self.score)
        check_wanted(comparing.task, self.tokenize)
        comparing.refuse_policy(self.context)
        pairs = self._pairs(comparing.task)
        waited, replaces = earlier(out).is_there(), self.fresh and (out / PLAN).is_file()
        with Stop() as stop, Display(quiet=self.quiet) as display:
            try:
                trained = comparing.train(CompareObserver(display, stop))
            except (TrainingInterrupted, KeyboardInterrupt):
                display.clear()
                then = f"and saved in {out}; {self._going_on(out)}"
                if self.fresh and not stop.saves and (waited or replaces):
                    back = f"the comparison that was to be replaced is back in {out}" if waited else f"{out} is as it was"
                    then = f"before the first run; {back}"
                display.line(f"weft: stopped {then}")
                return stop.exit_code
        if comparing.alone is not None and trained.rows:
            note(comparing.alone, quiet=self.quiet)
        facts = self._facts(run_file.stem, trained.failures, pairs)._replace(tuned=trained.tuned, about=comparing.about)
        return self._finish(trained.rows, facts, out)

    def _going_on(self, out: Path) -> str:
        from weft.compare.plan import earlier

        aside = earlier(out)
        kept = f"; the comparison before it is kept in {aside.place} until this one is finished" if aside.is_there() else ""
        return f"the same command{', without --fresh,' if self.fresh else ''} goes on{kept}"

    # ---- runs

    def _existing(self) -> int:
        from weft.cli.probing import refuse_files
        from weft.compare.bleu import check_wanted
        from weft.compare.groups import find, grouped, is_comparison, readable
        from weft.compare.measuring import refuse_missing, refuse_policy, refuse_strangers
        from weft.compare.scores import refuse_others
        from weft.runs.folder import make_folder

        for option in ("models", "seeds", "minutes", "tokens", "params", "grid", "tune", "fresh"):
            if (given := getattr(self, option)) and (option, given) != ("seeds", 1):
                raise UsageError(f"--{option}: is for a comparison of a run file; runs that are there are not trained")
        if self.settings:
            raise UsageError("--set: is for a comparison of a run file; runs that are there are not trained")
        paths = [path for path in self.what if not is_comparison(path)]
        for path in self.what:
            if path not in paths:
                note(f"{path}: is a comparison, not a run; left out", quiet=self.quiet)
        if self.suite:
            refuse_files(paths)
        if not paths:
            raise UsageError("compare: no run is named; give run folders, or a run file")
        kept, damaged = readable(paths)
        runs = find(kept, data=bool(self.data))
        task = str(runs[0].settings["task"])
        refuse_others(task, self.score)
        check_wanted(task, self.tokenize)
        pairs = self._pairs(task)
        rows = {name: [run.path for run in group] for name, group in grouped(runs).items()}
        refuse_policy([run.path for run in runs], self.context)
        refuse_missing(self.data or ())
        out = self.out or Path("runs/comparison")
        self._wanted().check(out)
        refuse_strangers(out)
        make_folder(out)
        return self._finish(rows, self._facts(out.name, damaged, pairs), out)

    # ---- both

    def _pairs(self, task: str) -> list[Pair]:
        """The pairs that runs are asked about; a bad suite is refused before anything is trained or measured."""
        from weft.cli.probing import read_pairs
        from weft.compare.probe import check_task

        if not self.suite:
            return []
        check_task(task)
        return read_pairs(self.suite, quiet=self.quiet)

    def _facts(self, title: str, failures: Sequence[Refused], pairs: Sequence[Pair]) -> Facts:
        from weft.report.comparison import Facts

        return Facts(title, self._command(), self.score, failures, self.suite or (), pairs)

    def _wanted(self) -> Wanted:
        from weft.cli.compare_result import Wanted

        return Wanted(self.csv, self.markdown, self.latex, self.json, self.quiet)

    def _command(self) -> str:
        """What makes the same comparison again."""
        words = ["weft", "compare", *map(str, self.what)]
        for option in ("models", "seeds", "minutes", "tokens", "params", "tune", "score", "tokenize", "context"):
            value = getattr(self, option)
            if value is not None and (option, value) != ("seeds", 1):
                words += [f"--{option}", f"{value:g}" if isinstance(value, float) else str(value)]
        words += [word for text in self.settings or () for word in ("--set", text)]
        words += [word for text in self.grid or () for word in ("--grid", text)]
        words += [word for path in self.suite or () for word in ("--suite", str(path))]
        words += [word for path in self.data or () for word in ("--data", str(path))]
        return shlex.join(words if self.out is None else [*words, "--out", str(self.out)])

    def _finish(self, rows: Mapping[str, Sequence[Path]], facts: Facts, out: Path) -> int:
        """Measure, write, print; the exit code is that of the first run that failed, if one did."""
        from weft.cli.compare_result import give, give_failures, written
        from weft.cli.display import Display
        from weft.compare.evidence import How
        from weft.compare.measuring import REPORT, failed, kept_in, measured
        from weft.compare.plan import bring_back, earlier

        how = How(tokenize=self.tokenize, context=self.context)
        try:
            with Lock(out), Display(quiet=self.quiet) as display:
                asked = all(map(os.path.isfile, self.what))  # by a run file, not by runs, which may be somebody else's
                evidence, damaged = measured(rows, kept_in(rows, out), display, how, data=self.data, named=asked)
                facts = facts._replace(failures=[*facts.failures, *damaged])
                found = written(evidence, facts, out, display) if evidence else {}
                back = not evidence and bring_back(out)
        except KeyboardInterrupt:
            say(f"weft: stopped; what was measured is kept, and {self._going_on(out)}")
            raise
        if evidence:
            give(evidence, found, facts, self._wanted())
        elif self.json:
            give_failures(facts)
        for failure in facts.failures:
            say(f"weft: {one_line(failed(failure))}")
        if back:
            say(f"weft: the comparison that was to be replaced is back in {out}")
        elif earlier(out).is_there():
            say(f"weft: the comparison that was to be replaced is kept in {earlier(out).place}")
        if evidence:
            note(f"the report is in {out / REPORT}", quiet=self.quiet)
        return facts.failures[0].code if facts.failures else 0
