"""`weft compare`: many models on the same data within the same budget, or runs that are there already; one table, one page."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import FILES, Context, Data, ModelCommand
from weft.cli.output import note, print_error
from weft.cli.usage import one_line
from weft.errors import UsageError
from weft.lock import Lock

if TYPE_CHECKING:
    from weft.cli.compare_result import OutputOptions
    from weft.comparison.plan import ComparisonOptions, FailedRun
    from weft.data.minimal_pair_files import MinimalPair
    from weft.report.comparison import ComparisonInfo


@dataclass(kw_only=True)
class Compare(ModelCommand):
    """Train models of several kinds on the same data, tokenizer and budget, and compare them in one table and one page.

    The same command resumes a comparison that was stopped. With run folders instead of a run file nothing is trained: those
    runs are compared, which must be of one task and the same data, or are all measured on --data.

    Ctrl-C saves and stops; pressed twice it stops at once.
    """

    inputs: Annotated[list[Path], typer.Argument(metavar="RUN.TOML | RUN...", help="A run file, or run folders.")]
    models: Annotated[
        str | None,
        typer.Option(
            metavar="KIND,...",
            help="Kinds of the run file's task, or all.  [default: its own, baselines, lstm, transformer; with --grid its own]",
        ),
    ] = None
    config: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=VALUE", help="Change an option of the run file; may be given several times."),
    ] = None
    seeds: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Runs of each model, each with its seed.")] = 1
    max_minutes: Annotated[float | None, typer.Option(metavar="X", help="Train each run so long.")] = None
    max_tokens: Annotated[
        str | None, typer.Option(metavar="N", help="Train each run on so many tokens, such as 1M.  [default: as the run file]")
    ] = None
    match_params: Annotated[
        str | None, typer.Option(metavar="N", help="Choose each network's width so that it has about N parameters, as 1M.")
    ] = None
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="A.B=X,Y", help="Compare each model with every value; may be given several times."),
    ] = None
    tune_trials: Annotated[
        int | None,
        typer.Option(metavar="N", help="First choose settings of each model by N trials on the validation data."),
    ] = None
    jobs: Annotated[int, typer.Option(min=1, max=256, metavar="N", help="Runs that are trained at a time.")] = 1
    output_dir: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=FILES,
            metavar="DIR",
            help="Where it all goes.  [default: runs/NAME-comparison, of runs runs/comparison]",
        ),
    ] = None
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Start over: what is in the folder is deleted once the new comparison is finished."),
    ] = False
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="What decides, such as loss.  [default: the task's own]")
    ] = None
    tokenize: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="How BLEU splits outputs, as in weft evaluate.  [default: what suits all rows]"),
    ] = None
    context: Context = None
    data: Data = None
    minimal_pairs: Annotated[
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
        planned = len(self.inputs) == 1 and not self.inputs[0].is_dir()
        return self._plan(self.inputs[0]) if planned else self._existing()

    # ---- a run file

    def _asked(self) -> ComparisonOptions:
        from weft.comparison.architectures import parse_models
        from weft.comparison.plan import ComparisonOptions, parse_count, parse_grid

        if self.max_minutes is not None and self.max_tokens is not None:
            raise UsageError("", "--max-minutes and --max-tokens are two budgets", "give one")
        if self.max_minutes is not None and not 0 < self.max_minutes < float("inf"):
            raise UsageError(f"--max-minutes {self.max_minutes:g}", "must be more than 0")
        budget: tuple[str, float] | None = None if self.max_minutes is None else ("minutes", float(self.max_minutes))
        if self.max_tokens is not None:
            budget = ("tokens", parse_count("--max-tokens", self.max_tokens))
        return ComparisonOptions(
            models=() if self.models is None else parse_models(self.models),
            seeds=self.seeds,
            budget=budget,
            match_params=None if self.match_params is None else parse_count("--match-params", self.match_params),
            grid=[parse_grid(text) for text in self.grid or ()],
            tune_trials=self.tune_trials,
        )

    def _plan(self, run_file: Path) -> int:
        import torch

        from weft.cli.compare_progress import CompareObserver
        from weft.cli.display import Display
        from weft.cli.signals import Stop
        from weft.comparison.bleu_tokenizer import check_tokenizer_option
        from weft.comparison.plan import PLAN, previous_plan
        from weft.comparison.runner import ComparisonRunner, Place
        from weft.comparison.scores import refuse_others
        from weft.config import override, read_toml
        from weft.errors import TrainingInterrupted

        if self.data:
            raise UsageError("--data", "is for runs that are there", f"{run_file} names its own, data.test")
        output_dir = self.output_dir or Path("runs") / f"{run_file.stem}-comparison"
        self._wanted().check(output_dir)
        place = Place(output_dir, self.jobs, torch.get_num_threads(), self.overwrite)
        # resolved: the same comparison from wherever it is called
        values = override(read_toml(run_file), self.config or [])
        comparing = ComparisonRunner(values, self._asked(), place, base=run_file.parent.resolve())
        refuse_others(comparing.task, self.metric)
        check_tokenizer_option(comparing.task, self.tokenize)
        comparing.refuse_policy(self.context)
        pairs = self._pairs(comparing.task)
        waited, replaces = previous_plan(output_dir).exists(), self.overwrite and (output_dir / PLAN).is_file()
        with Stop() as stop, Display(quiet=self.quiet) as display:
            try:
                trained = comparing.train(CompareObserver(display, stop))
            except (TrainingInterrupted, KeyboardInterrupt):
                display.clear()
                then = f"and saved in {output_dir}; {self._going_on(output_dir)}"
                if self.overwrite and not stop.saves and (waited or replaces):
                    back = (
                        f"the comparison that was to be replaced is back in {output_dir}"
                        if waited
                        else f"{output_dir} is as it was"
                    )
                    then = f"before the first run; {back}"
                display.line(f"weft: stopped {then}")
                return stop.exit_code
        if comparing.alone is not None and trained.rows:
            note(comparing.alone, quiet=self.quiet)
        facts = self._facts(run_file.stem, trained.failures, pairs)._replace(tuned=trained.tuned, about=comparing.about)
        return self._finish(trained.rows, facts, output_dir)

    def _going_on(self, output_dir: Path) -> str:
        from weft.comparison.plan import previous_plan

        aside = previous_plan(output_dir)
        kept = f"; the comparison before it is kept in {aside.path} until this one is finished" if aside.exists() else ""
        return f"the same command{', without --overwrite,' if self.overwrite else ''} goes on{kept}"

    # ---- runs

    def _existing(self) -> int:
        from weft.cli.minimal_pairs_runner import refuse_files
        from weft.comparison.bleu_tokenizer import check_tokenizer_option
        from weft.comparison.evaluation import refuse_missing, refuse_policy, refuse_strangers
        from weft.comparison.groups import find, group_runs, is_comparison, readable
        from weft.comparison.scores import refuse_others
        from weft.runs.run_dir import make_directory

        for option in ("models", "seeds", "minutes", "tokens", "params", "grid", "tune", "fresh"):
            if (given := getattr(self, option)) and (option, given) != ("seeds", 1):
                raise UsageError(f"--{option}", "is for a comparison of a run file", "runs that are there are not trained")
        if self.config:
            raise UsageError("--set", "is for a comparison of a run file", "runs that are there are not trained")
        paths = [path for path in self.inputs if not is_comparison(path)]
        for path in self.inputs:
            if path not in paths:
                note(f"{path}: is a comparison, not a run; left out", quiet=self.quiet)
        if self.minimal_pairs:
            refuse_files(paths)
        if not paths:
            raise UsageError("compare", "no run is named", "give run folders, or a run file")
        kept, damaged = readable(paths)
        runs = find(kept, data=bool(self.data))
        task = str(runs[0].config["task"])
        refuse_others(task, self.metric)
        check_tokenizer_option(task, self.tokenize)
        pairs = self._pairs(task)
        rows = {name: [run.path for run in group] for name, group in group_runs(runs).items()}
        refuse_policy([run.path for run in runs], self.context)
        refuse_missing(self.data or ())
        output_dir = self.output_dir or Path("runs/comparison")
        self._wanted().check(output_dir)
        refuse_strangers(output_dir)
        make_directory(output_dir)
        return self._finish(rows, self._facts(output_dir.name, damaged, pairs), output_dir)

    # ---- both

    def _pairs(self, task: str) -> list[MinimalPair]:
        """The pairs that runs are asked about; a bad suite is refused before anything is trained or measured."""
        from weft.cli.minimal_pairs_runner import read_pairs
        from weft.comparison.minimal_pairs import check_task

        if not self.minimal_pairs:
            return []
        check_task(task)
        return read_pairs(self.minimal_pairs, quiet=self.quiet)

    def _facts(self, title: str, failures: Sequence[FailedRun], pairs: Sequence[MinimalPair]) -> ComparisonInfo:
        from weft.report.comparison import ComparisonInfo

        return ComparisonInfo(title, self._command(), self.metric, failures, self.minimal_pairs or (), pairs)

    def _wanted(self) -> OutputOptions:
        from weft.cli.compare_result import OutputOptions

        return OutputOptions(self.csv, self.markdown, self.latex, self.json, self.quiet)

    def _command(self) -> str:
        """What makes the same comparison again."""
        words = ["weft", "compare", *map(str, self.inputs)]
        for option in ("models", "seeds", "minutes", "tokens", "params", "tune", "score", "tokenize", "context"):
            value = getattr(self, option)
            if value is not None and (option, value) != ("seeds", 1):
                words += [f"--{option}", f"{value:g}" if isinstance(value, float) else str(value)]
        words += [word for text in self.config or () for word in ("--set", text)]
        words += [word for text in self.grid or () for word in ("--grid", text)]
        words += [word for path in self.minimal_pairs or () for word in ("--suite", str(path))]
        words += [word for path in self.data or () for word in ("--data", str(path))]
        return shlex.join(words if self.output_dir is None else [*words, "--output-dir", str(self.output_dir)])

    def _finish(self, rows: Mapping[str, Sequence[Path]], facts: ComparisonInfo, output_dir: Path) -> int:
        """Measure, write, print; the exit code is that of the first run that failed, if one did."""
        from weft.cli.compare_result import give, give_failures, written
        from weft.cli.display import Display
        from weft.comparison.evaluation import REPORT, cached_results, evaluate_runs, failed
        from weft.comparison.plan import bring_back, previous_plan
        from weft.comparison.results import EvaluationOptions

        how = EvaluationOptions(tokenize=self.tokenize, context=self.context)
        try:
            with Lock(output_dir), Display(quiet=self.quiet) as display:
                asked = all(map(os.path.isfile, self.inputs))  # by a run file, not by runs, which may be somebody else's
                results, damaged = evaluate_runs(
                    rows, cached_results(rows, output_dir), display, how, data=self.data, named=asked
                )
                facts = facts._replace(failures=[*facts.failures, *damaged])
                found = written(results, facts, output_dir, display) if results else {}
                back = not results and bring_back(output_dir)
        except KeyboardInterrupt:
            print_error(f"weft: stopped; what was measured is kept, and {self._going_on(output_dir)}")
            raise
        if results:
            give(results, found, facts, self._wanted())
        elif self.json:
            give_failures(facts)
        for failure in facts.failures:
            print_error(f"weft: {one_line(failed(failure))}")
        if back:
            print_error(f"weft: the comparison that was to be replaced is back in {output_dir}")
        elif previous_plan(output_dir).exists():
            print_error(f"weft: the comparison that was to be replaced is kept in {previous_plan(output_dir).path}")
        if results:
            note(f"the report is in {output_dir / REPORT}", quiet=self.quiet)
        return facts.failures[0].code if facts.failures else 0
