"""`weft compare` for several machines: the plan, a worker, the status of all workers, and the table."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.output import format_duration, pluralize, status, write, write_json
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.cli.commands.compare import Compare
    from weft.cli.display import Display
    from weft.comparison.lease import Worker
    from weft.comparison.plan import FailedRun, PlannedRun
    from weft.comparison.runner import ComparisonRunner, TrainedComparison
    from weft.comparison.shared_plan import SharedPlan
    from weft.comparison.worker import Check

TABLE = "table"  # the lease of the worker that makes the table
PLAN_OPTIONS = (  # set when the comparison is planned
    "models",
    "overrides",
    "seeds",
    "max_minutes",
    "max_tokens",
    "match_params",
    "grid",
    "tune_trials",
    "overwrite",
    "metric",
    "tokenize",
    "context",
    "minimal_pairs",
    "output_dir",
    "data",
)


def is_shared_input(inputs: Sequence[Path]) -> bool:
    """Whether the input is a comparison for workers. No heavy imports."""
    return len(inputs) == 1 and os.path.isfile(inputs[0] / "workers.json")


def run_shared(command: Compare) -> int:
    """A worker, the status or the table of a comparison for workers."""
    if not is_shared_input(command.inputs):
        fix = "plan it with weft compare RUN.TOML --plan-only --output-dir DIR"
        raise UsageError(command.inputs[0], "not a comparison for workers (workers.json is missing)", fix)
    for name in PLAN_OPTIONS:
        if (value := getattr(command, name)) and (name, value) != ("seeds", 1):
            option = "set" if name == "overrides" else name
            raise UsageError(option, f"{command.inputs[0]} is planned already", "set it together with `plan_only`")
    command._output_options().check(command.inputs[0])
    if command.status:
        return _show_status(command)
    return _work(command) if command.worker else _make_table(command)


# ---- plan


def plan(command: Compare, runner: ComparisonRunner, run_file: Path) -> int:
    """Write the plan of a comparison for workers."""
    from weft.cli.compare_progress import CompareObserver
    from weft.cli.display import Display
    from weft.cli.signals import Stop
    from weft.comparison.shared_runner import Description, plan_for_workers

    output_dir = runner.runner_config.output_dir
    description = Description(
        run_file.stem, command._command(), command.metric, command.tokenize, command.context, command.minimal_pairs or ()
    )
    with Stop() as stop, Display(quiet=command.quiet) as display:
        try:
            shared = plan_for_workers(runner, CompareObserver(display, stop), description)
        except KeyboardInterrupt:
            display.clear()
            display.line("Stopped before the comparison was planned.")
            return stop.exit_code
    count = len(shared.variants) * shared.seeds
    if command.json:
        write_json({"comparison": str(output_dir), "runs": count})
    status(f"Planned {pluralize(count, 'run')} in {output_dir}", quiet=command.quiet)
    status(f"Next: weft compare {output_dir} --worker, on as many machines as you like", quiet=command.quiet)
    return 0


# ---- worker


class _EvaluationProgress:
    """Shows the progress of an evaluation, and stops it if the run was lost or the worker is to stop."""

    def __init__(self, display: Display, check: Check) -> None:
        self.display, self.check = display, check

    def show(self, phase: str, fraction: float, detail: str = "") -> None:
        self.check()
        self.display.show(phase, fraction, detail.partition("  ")[0])

    def clear(self) -> None:
        self.display.clear()


class _Evaluator:
    """Evaluates trained runs and stores the results where the table reads them."""

    def __init__(self, command: Compare, plan: SharedPlan, display: Display) -> None:
        from weft.comparison.results import EvaluationOptions

        self.output_dir, self.device, self.display = command.inputs[0], command.device, display
        self.options = EvaluationOptions(tokenize=plan.tokenize, context=plan.context)

    def __call__(self, planned: PlannedRun, check: Check) -> FailedRun | None:
        from weft import files
        from weft.comparison.evaluation import RESULTS, evaluate_runs

        results_dir = self.output_dir / RESULTS
        files.refuse_link(results_dir)
        _, failures = evaluate_runs(
            {planned.variant.name: [planned.output_dir]},
            lambda run: results_dir / run.name,
            _EvaluationProgress(self.display, check),
            self.options,
            device=self.device,
            has_own_run_file=True,
        )
        return failures[0] if failures else None


def _work(command: Compare) -> int:
    import torch

    from weft.cli.compare_progress import CompareObserver
    from weft.cli.display import Display
    from weft.cli.signals import Stop
    from weft.comparison.cells import Cells, this_worker
    from weft.comparison.shared_plan import HostCheck, SharedPlan
    from weft.comparison.shared_runner import WorkerConfig, train_shared, worker_train
    from weft.comparison.worker import Idle, WorkerOptions
    from weft.errors import TrainingInterrupted

    output_dir = command.inputs[0]
    plan, worker = SharedPlan.read(output_dir), this_worker()
    host = HostCheck(plan)
    host.check_version()
    host.check_data()
    if command.retry_failed:
        _retry_failed(command, [Cells(path, worker, command.lease_seconds) for path in (output_dir, output_dir / "tune")])
    status(f"Worker on {worker.host} (process {worker.process})", quiet=command.quiet)
    config = WorkerConfig(worker, command.lease_seconds, command.jobs, torch.get_num_threads())
    with Stop() as stop, Display(quiet=command.quiet) as display:
        observer = CompareObserver(display, stop)
        observer.saving()
        options = WorkerOptions(not command.exit_when_idle, _Evaluator(command, plan, display), host.check_data)
        try:
            trained = train_shared(plan, output_dir, worker_train(config, observer, options), observer)
        except Idle:
            display.clear()
            display.line(f"Nothing left to take; other workers are not finished. Status: weft compare {output_dir} --status")
            return 0
        except (TrainingInterrupted, KeyboardInterrupt):
            display.clear()
            display.line(f"Stopped. Saved to {output_dir}. Other workers, or the same command, resume the runs.")
            return stop.exit_code
        except BaseException:
            display.clear()
            raise
    return _finish_together(command, plan, trained, worker)


def _retry_failed(command: Compare, cells: Sequence[Any]) -> None:
    from weft import files
    from weft.comparison.evaluation import COMPARISON

    count = sum(part.retry_failed() for part in cells if part.directory.is_dir())
    if count:
        files.remove(command.inputs[0] / COMPARISON)  # the table is made again
    status(f"Trying {pluralize(count, 'failed run')} again" if count else "No run has failed", quiet=command.quiet)


# ---- table


def _finish_together(command: Compare, plan: SharedPlan, trained: TrainedComparison, worker: Worker) -> int:
    """Make the table, unless another worker makes it."""
    from weft.comparison.cells import CELLS
    from weft.comparison.evaluation import COMPARISON
    from weft.comparison.lease import BEATS, Leases
    from weft.comparison.worker import Heartbeat

    output_dir = command.inputs[0]
    leases = Leases(output_dir / CELLS, worker, command.lease_seconds)
    while True:
        number = leases.numbers().get(TABLE, 0)
        owner = leases.read(TABLE, number) if number else None
        if owner is not None and not owner.is_held and (output_dir / COMPARISON).is_file():
            maker = owner.worker.host
            status(f"Finished. {maker} has made the table; weft compare {output_dir} prints it", quiet=command.quiet)
            return trained.failures[0].code if trained.failures else 0
        lease = leases.claim(TABLE, number) if leases.is_free(TABLE, number) else None
        if lease is not None:
            with Heartbeat([lease], command.lease_seconds / BEATS), lease:
                return _finish(command, plan, trained)
        if command.exit_when_idle:
            return 0
        time.sleep(min(1.0, command.lease_seconds / BEATS))


def _finish(command: Compare, plan: SharedPlan, trained: TrainedComparison) -> int:
    """Evaluate what is not evaluated, write the results and print the table."""
    pairs = [Path(path) for path in plan.minimal_pairs]
    planned = replace(command, metric=plan.metric, tokenize=plan.tokenize, context=plan.context, minimal_pairs=pairs or None)
    info = planned._info(plan.title, trained.failures, planned._pairs(plan.task))
    info = info._replace(command=plan.command, tuned=trained.tuned, about=plan.about)
    return planned._finish(trained.rows, info, command.inputs[0], has_own_run_file=True)


def _make_table(command: Compare) -> int:
    """Print the table of a finished comparison."""
    from weft.cli.display import Display
    from weft.comparison.cells import this_worker
    from weft.comparison.shared_plan import HostCheck, SharedPlan
    from weft.comparison.shared_runner import RecordedRuns, Unfinished, train_shared

    output_dir = command.inputs[0]
    plan, recorded = SharedPlan.read(output_dir), RecordedRuns(this_worker(), command.lease_seconds)
    host = HostCheck(plan)
    host.check_version()
    host.check_data()
    with Display(quiet=True) as display:
        try:
            trained = train_shared(plan, output_dir, recorded.make_train, _silent_observer(display))
        except Unfinished:
            ended = sum(recorded.cells is not None and recorded.cells.outcome(run) is not None for run in recorded.plan)
            problem = f"not finished ({recorded.phase}: {ended} of {pluralize(len(recorded.plan), 'run')} ended)"
            raise UsageError(output_dir, problem, f"run weft compare {output_dir} --worker") from None
    return _finish(command, plan, trained)


def _silent_observer(display: Display) -> Any:
    from weft.cli.compare_progress import CompareObserver
    from weft.cli.signals import Stop

    return CompareObserver(display, Stop())


# ---- status


def _show_status(command: Compare) -> int:
    """Print the state of each run, its owner and the age of its lease."""
    from weft.cli.display import Display
    from weft.comparison.cell_status import read_cells
    from weft.comparison.cells import this_worker
    from weft.comparison.shared_plan import SharedPlan
    from weft.comparison.shared_runner import RecordedRuns, Unfinished, train_shared
    from weft.text.table_layout import columns

    output_dir = command.inputs[0]
    plan, recorded = SharedPlan.read(output_dir), RecordedRuns(this_worker(), command.lease_seconds)
    with Display(quiet=True) as display, suppress(Unfinished):
        train_shared(plan, output_dir, recorded.make_train, _silent_observer(display))
    states = [] if recorded.cells is None else read_cells(recorded.cells, recorded.plan)
    counts: dict[str, int] = {}
    for cell in states:
        counts[cell.state] = counts.get(cell.state, 0) + 1
    if command.json:
        write_json({"phase": recorded.phase, "runs": [cell._asdict() for cell in states], "counts": counts})
        return 0
    rows = [["run", "state", "host", "process", "done", "lease age", ""]]
    for cell in states:
        age = "" if cell.lease_age is None else format_duration(cell.lease_age)
        fraction = "" if cell.fraction is None else f"{cell.fraction:.0%}"
        process = "" if cell.process is None else str(cell.process)
        rows.append([cell.run, cell.state, cell.host, process, fraction, age, cell.reason])
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    write(columns(rows, left=3) + f"\n{recorded.phase}: {pluralize(len(states), 'run')}, {summary}\n")
    return 0
