"""`weft compare`: several models with the same data and budget, or existing runs, in one table and one report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import FILES, WORKERS, Context, Csv, Data, Device, ModelCommand, Overrides
from weft.cli.output import note, status, warn
from weft.cli.usage import one_line, with_flags
from weft.errors import UsageError
from weft.lock import Lock

if TYPE_CHECKING:
    from weft.cli.compare_result import OutputOptions
    from weft.comparison.plan import ComparisonOptions, FailedRun
    from weft.data.minimal_pair_files import MinimalPair
    from weft.report.comparison import ComparisonInfo


@dataclass(kw_only=True)
class Compare(ModelCommand):
    """Train and compare several models, or compare existing runs.

    With a run file, each model is trained on the same data, with the same tokenizer and budget; the same command resumes a
    comparison that was stopped. With run directories nothing is trained; the runs must have one task and the same data, or
    are evaluated on --data. With a comparison, or with --report, only the HTML report is written.

    On several machines, plan the comparison in a shared directory (--plan-only), then start workers there (DIR --worker). The
    last worker prints the table, and so does the command with DIR alone.

    Ctrl-C saves and stops; press it twice to stop at once.
    """

    inputs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN.TOML | RUN... | COMPARISON", help="Run file, run directories, or a comparison."),
    ]
    models: Annotated[
        str | None,
        typer.Option(
            metavar="ARCH,...",
            help="Comma-separated architectures, or all.  [default: the run file's, baselines, and lstm and transformer (or "
            "gpt) unless the run file's has the same layer type; with train.init_from only the run file's and baselines; with "
            "--grid only the run file's]",
        ),
    ] = None
    overrides: Overrides = None
    seeds: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Number of seeds per model.")] = 1
    max_minutes: Annotated[float | None, typer.Option(metavar="X", help="Training budget of each run in minutes.")] = None
    max_tokens: Annotated[
        str | None,
        typer.Option(metavar="N", help="Training budget of each run in tokens, e.g. 1M.  [default: the run file's]"),
    ] = None
    match_params: Annotated[
        str | None,
        typer.Option(metavar="N", help="Choose hidden_size so that each network has about N parameters, e.g. 1M."),
    ] = None
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=X,Y", help="Compare all values of an option, e.g. --grid train.lr=1e-3,3e-3. Repeatable."),
    ] = None
    tune_trials: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="First tune learning rate, dropout and hidden_size with N trials on the validation data.",
        ),
    ] = None
    jobs: Annotated[int, typer.Option(min=1, max=256, metavar="N", help="Number of runs to train in parallel.")] = 1
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Discard the existing comparison and start over.")] = False
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="Metric to rank by.  [default: the task's first metric]")
    ] = None
    tokenize: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="seq2seq: tokenizer of BLEU, as in weft evaluate.  [default: one for all]"),
    ] = None
    context: Context = None
    minimal_pairs: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", readable=False, help="Also test language models on minimal pairs. Repeatable."),
    ] = None
    plan_only: Annotated[
        bool,
        typer.Option("--plan-only", rich_help_panel=WORKERS, help="Plan the comparison for workers, and train nothing."),
    ] = False
    worker: Annotated[
        bool,
        typer.Option(
            "--worker", rich_help_panel=WORKERS, help="Train and evaluate runs of a planned comparison, with other workers."
        ),
    ] = False
    status: Annotated[
        bool,
        typer.Option(
            "--status", rich_help_panel=WORKERS, help="Print the state of each run of a planned comparison, and its worker."
        ),
    ] = False
    exit_when_idle: Annotated[
        bool,
        typer.Option(
            "--exit-when-idle",
            rich_help_panel=WORKERS,
            help="End a worker when no run is left to take.  [default: wait until all runs have ended]",
        ),
    ] = False
    retry_failed: Annotated[
        bool,
        typer.Option("--retry-failed", rich_help_panel=WORKERS, help="Let workers take failed runs again."),
    ] = False
    lease_seconds: Annotated[
        float,
        typer.Option(
            rich_help_panel=WORKERS,
            min=1.0,
            max=86400.0,
            metavar="X",
            help="Seconds without a sign of life after which other workers take the runs of this one.",
        ),
    ] = 120.0
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir",
            "-o",
            rich_help_panel=FILES,
            metavar="DIR",
            help="Output directory.  [default: runs/NAME-comparison; for runs runs/comparison]",
        ),
    ] = None
    report: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=FILES,
            metavar="FILE",
            help="Where to write the HTML report.  [default: report.html in the output directory]",
        ),
    ] = None
    data: Data = None
    csv: Csv = None
    markdown: Annotated[
        Path | None, typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write the table as Markdown.")
    ] = None
    latex: Annotated[Path | None, typer.Option(rich_help_panel=FILES, metavar="FILE", help="Write the table as LaTeX.")] = None
    device: Device = "auto"

    def run(self) -> int:
        from weft.cli.compare_worker import is_shared_input, run_shared
        from weft.cli.report_command import check_report_file, is_comparison

        check_report_file(self.report)
        self._check_worker_options()
        if self.worker or self.status or is_shared_input(self.inputs):
            return run_shared(self)
        is_run_file = len(self.inputs) == 1 and not self.inputs[0].is_dir() and self.inputs[0].suffix != ".json"
        if is_run_file:
            return self._compare_models(self.inputs[0])
        if self.report is not None or (len(self.inputs) == 1 and is_comparison(self.inputs[0])):
            return self._write_report()
        return self._compare_runs()

    def _check_worker_options(self) -> None:
        modes = [f"`{name}`" for name in ("plan_only", "worker", "status") if getattr(self, name)]
        if len(modes) > 1:
            raise UsageError("", f"{' and '.join(modes)} cannot be combined")
        for name in ("exit_when_idle", "retry_failed"):
            if getattr(self, name) and not self.worker:
                raise UsageError(name, "requires `worker`")

    def _write_report(self) -> int:
        from weft.cli.report_command import ReportOptions, write_report

        options = ReportOptions(self.report, self.data, self.context, self.device, self.json, self.quiet)
        return write_report(self.inputs, options)

    # ---- a run file

    def _options(self) -> ComparisonOptions:
        from weft.comparison.architectures import parse_models
        from weft.comparison.plan import ComparisonOptions, parse_count, parse_grid

        if self.max_minutes is not None and self.max_tokens is not None:
            raise UsageError("", "`max_minutes` and `max_tokens` cannot be combined")
        if self.max_minutes is not None and not 0 < self.max_minutes < float("inf"):
            raise UsageError("max_minutes", f"must be greater than 0, got {self.max_minutes:g}")
        budget: tuple[str, float] | None = None if self.max_minutes is None else ("max_minutes", float(self.max_minutes))
        if self.max_tokens is not None:
            budget = ("max_tokens", parse_count("max_tokens", self.max_tokens))
        return ComparisonOptions(
            models=() if self.models is None else parse_models(self.models),
            seeds=self.seeds,
            budget=budget,
            match_params=None if self.match_params is None else parse_count("match_params", self.match_params),
            grid=[parse_grid(text) for text in self.grid or ()],
            tune_trials=self.tune_trials,
        )

    def _compare_models(self, run_file: Path) -> int:
        import torch

        from weft.cli.compare_progress import CompareObserver
        from weft.cli.compare_worker import plan
        from weft.cli.display import Display
        from weft.cli.signals import Stop
        from weft.comparison.bleu_tokenizer import check_tokenizer_option
        from weft.comparison.plan import PLAN, previous_plan
        from weft.comparison.runner import ComparisonRunner, RunnerConfig
        from weft.comparison.scores import check_metric
        from weft.config import override, read_toml
        from weft.errors import TrainingInterrupted

        if self.data:
            raise UsageError("data", "requires run directories", "with a run file, set data.test")
        output_dir = self.output_dir or Path("runs") / f"{run_file.stem}-comparison"
        self._output_options().check(output_dir)
        runner_config = RunnerConfig(output_dir, self.jobs, torch.get_num_threads(), self.overwrite)
        # absolute: the same comparison from any working directory
        values = override(read_toml(run_file), self.overrides or [])
        runner = ComparisonRunner(values, self._options(), runner_config, base=run_file.parent.resolve())
        check_metric(runner.task, self.metric)
        check_tokenizer_option(runner.task, self.tokenize)
        runner.check_context(self.context)
        pairs = self._pairs(runner.task)
        if self.plan_only:
            return plan(self, runner, run_file)
        had_backup, replaces = previous_plan(output_dir).exists(), self.overwrite and (output_dir / PLAN).is_file()
        with Stop() as stop, Display(quiet=self.quiet) as display:
            try:
                trained = runner.train(CompareObserver(display, stop))
            except (TrainingInterrupted, KeyboardInterrupt):
                display.clear()
                message = f". Saved to {output_dir}. {self._how_to_resume(output_dir)}"
                if self.overwrite and not stop.saves and (had_backup or replaces):
                    restored = (
                        f"The previous comparison is back in {output_dir}." if had_backup else f"{output_dir} is unchanged."
                    )
                    message = f" before the first run. {restored}"
                display.line(f"Stopped{message}")
                return stop.exit_code
        if runner.single_model_note is not None and trained.rows:
            note(with_flags(runner.single_model_note), quiet=self.quiet)
        info = self._info(run_file.stem, trained.failures, pairs)._replace(tuned=trained.tuned, about=runner.about)
        return self._finish(trained.rows, info, output_dir, has_own_run_file=True)

    def _how_to_resume(self, output_dir: Path) -> str:
        from weft.comparison.plan import previous_plan

        backup = previous_plan(output_dir)
        backup_note = f" The previous comparison is in {backup.path} until this one is finished." if backup.exists() else ""
        return f"Run the same command{' without --overwrite' if self.overwrite else ''} to resume.{backup_note}"

    # ---- runs

    def _compare_runs(self) -> int:
        from weft.cli.minimal_pairs_runner import refuse_files
        from weft.comparison.bleu_tokenizer import check_tokenizer_option
        from weft.comparison.evaluation import check_context_policy, check_data_files, check_output_dir
        from weft.comparison.groups import group_runs, is_comparison, open_runs, split_readable
        from weft.comparison.scores import check_metric
        from weft.runs.run_dir import make_directory

        for name in ("models", "seeds", "max_minutes", "max_tokens", "match_params", "grid", "tune_trials", "overwrite"):
            if (value := getattr(self, name)) and (name, value) != ("seeds", 1):
                raise UsageError(name, "requires a run file; existing runs are not trained")
        if self.overrides:
            raise UsageError("set", "requires a run file; existing runs are not trained")
        paths = [path for path in self.inputs if not is_comparison(path)]
        for path in self.inputs:
            if path not in paths:
                note(f"skipped {path}: a comparison, not a run", quiet=self.quiet)
        if self.minimal_pairs:
            refuse_files(paths, "minimal_pairs")
        if not paths:
            raise UsageError("compare", "no run", "name run directories or a run file")
        usable, damaged = split_readable(paths)
        runs = open_runs(usable, data=bool(self.data))
        task = str(runs[0].config["task"])
        check_metric(task, self.metric)
        check_tokenizer_option(task, self.tokenize)
        pairs = self._pairs(task)
        rows = {name: [run.path for run in group] for name, group in group_runs(runs).items()}
        check_context_policy([run.path for run in runs], self.context)
        check_data_files(self.data or ())
        output_dir = self.output_dir or Path("runs/comparison")
        self._output_options().check(output_dir)
        check_output_dir(output_dir)
        make_directory(output_dir)
        return self._finish(rows, self._info(output_dir.name, damaged, pairs), output_dir)

    # ---- run file or runs

    def _pairs(self, task: str) -> list[MinimalPair]:
        """The minimal pairs; an invalid suite is refused before anything is trained or evaluated."""
        from weft.cli.minimal_pairs_runner import read_pairs
        from weft.comparison.minimal_pairs import check_task

        if not self.minimal_pairs:
            return []
        check_task(task)
        return read_pairs(self.minimal_pairs, quiet=self.quiet)

    def _info(self, title: str, failures: Sequence[FailedRun], pairs: Sequence[MinimalPair]) -> ComparisonInfo:
        from weft.report.comparison import ComparisonInfo

        return ComparisonInfo(title, self._command(), self.metric, failures, self.minimal_pairs or (), pairs)

    def _output_options(self) -> OutputOptions:
        from weft.cli.compare_result import OutputOptions

        return OutputOptions(self.csv, self.markdown, self.latex, self.json, self.quiet)

    def _command(self) -> str:
        """The command that reproduces the comparison."""
        words = ["weft", "compare", *map(str, self.inputs)]
        names = ("models", "seeds", "max_minutes", "max_tokens", "match_params", "tune_trials", "metric", "tokenize", "context")
        for name in names:
            value = getattr(self, name)
            if value is not None and (name, value) != ("seeds", 1):
                words += [f"--{name.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
        words += [word for text in self.overrides or () for word in ("--set", text)]
        words += [word for text in self.grid or () for word in ("--grid", text)]
        words += [word for path in self.minimal_pairs or () for word in ("--minimal-pairs", str(path))]
        words += [word for path in self.data or () for word in ("--data", str(path))]
        return shlex.join(words if self.output_dir is None else [*words, "--output-dir", str(self.output_dir)])

    def _finish(
        self,
        rows: Mapping[str, Sequence[Path]],
        info: ComparisonInfo,
        output_dir: Path,
        *,
        has_own_run_file: bool = False,
    ) -> int:
        """Evaluate, write and print; the exit code is that of the first run that failed, if any."""
        from weft.cli.compare_result import print_results, write_failures, write_results
        from weft.cli.display import Display
        from weft.comparison.evaluation import REPORT, cached_results, describe_failure, evaluate_runs
        from weft.comparison.plan import previous_plan, restore_backup
        from weft.comparison.results import EvaluationOptions

        evaluation = EvaluationOptions(tokenize=self.tokenize, context=self.context)
        try:
            with Lock(output_dir), Display(quiet=self.quiet) as display:
                stored = cached_results(rows, output_dir)
                results, damaged = evaluate_runs(
                    rows, stored, display, evaluation, data=self.data, device=self.device, has_own_run_file=has_own_run_file
                )
                info = info._replace(failures=[*info.failures, *damaged])
                document = write_results(results, info, output_dir, display) if results else {}
                is_restored = not results and restore_backup(output_dir)
        except KeyboardInterrupt:
            status(f"Stopped. The results so far are saved. {self._how_to_resume(output_dir)}", quiet=False)
            raise
        if results:
            self._copy_report(output_dir / REPORT)
            print_results(results, document, info, self._output_options())
        elif self.json:
            write_failures(info)
        for failure in info.failures:
            warn(one_line(describe_failure(failure)))
        if is_restored:
            warn(f"the previous comparison is back in {output_dir}")
        elif previous_plan(output_dir).exists():
            warn(f"the previous comparison is kept in {previous_plan(output_dir).path}")
        if results:
            status(f"Report: {self.report or output_dir / REPORT}", quiet=self.quiet)
        return info.failures[0].code if info.failures else 0

    def _copy_report(self, written: Path) -> None:
        """Write the report to --report, too."""
        from weft import files

        if self.report is not None:
            files.write_text(self.report, written.read_text(encoding="utf-8"), user_path=True)
