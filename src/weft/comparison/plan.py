"""What a comparison trains: kinds, settings and seeds, each an ordinary run of the same data within the same budget."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from weft import files
from weft.backup import Backup
from weft.comparison.applicable_options import applicable_options, everywhere, leaves, try_config, with_option
from weft.comparison.architectures import archs_of
from weft.config import describe_differences, override, read_toml
from weft.errors import ConfigError, DataError, ModelError, UsageError
from weft.lock import Lock
from weft.models.seq2seq_config import SIDES
from weft.runs.config import RunConfig
from weft.runs.resolve import resolve
from weft.runs.run_dir import RunDir
from weft.tasks.registry import find_task
from weft.training import checkpoint
from weft.training.config import BUDGETS

PLAN = "plan.toml"
COMPARISON = "comparison.json"  # what was found; written last
SUMS = "sums"  # of the data, in the plan
RUN_FILES = "run-files"  # one for each run, as it is given to `weft train`


class Variant(NamedTuple):
    """One row of the table."""

    name: str  # "lstm", or "lstm,width=128"
    values: dict[str, Any]  # a whole run file, without its seed

    @property
    def arch(self) -> str:
        return str(self.values["model"]["arch"])


class PlannedRun(NamedTuple):
    """One run."""

    variant: Variant
    seed: int
    output_dir: Path

    @property
    def values(self) -> dict[str, Any]:
        return {**self.variant.values, "seed": self.seed}


class Grid(NamedTuple):
    option: str  # "model.width"
    values: list[Any]


class FailedRun(NamedTuple):
    """A variant that can't be trained, or could not be trained to its end."""

    name: str
    seed: int | None  # None: none of its runs
    reason: str
    code: int  # the exit code of such an error


class ComparisonOptions(NamedTuple):
    """What is wanted beside the run file."""

    models: Sequence[str] = ()  # kinds, or "all"; none: the run file's own
    seeds: int = 1
    budget: tuple[str, float] | None = None  # minutes or tokens; None: the run file's
    match_params: int | None = None  # about how many parameters each network is to have
    grid: Sequence[Grid] = ()
    tune_trials: int | None = None  # trials for each network


class Variants(NamedTuple):
    variants: list[Variant]
    failed: list[FailedRun]
    notes: list[str]


# ---- options as they are typed


def parse_grid(text: str) -> Grid:
    """'model.hidden_size=128,256' -> what it names; values as TOML reads them, bare words as strings."""
    option, equals, listed = (part.strip() for part in text.partition("="))
    if not equals or not listed or not all(option.split(".")):
        raise UsageError(f"--grid {text}", "must look like model.hidden_size=128,256")
    table, _, name = option.partition(".")
    if table not in ("model", "train") or not name:
        raise UsageError(
            f"--grid {option}", "all variants read the same data with one tokenizer", "name an option of [model] or [train]"
        )
    if name == "arch":
        raise UsageError("--grid model.arch", "kinds are named by --models")
    if table == "train" and name in BUDGETS:
        raise UsageError(f"--grid {option}", "is the budget, which all variants share", "drop it")
    return Grid(option, _listed(listed))


def _listed(text: str) -> list[Any]:
    try:
        values: list[Any] = tomllib.loads(f"values = [{text}]")["values"]
    except ValueError:  # bare words
        values = [override({}, [f"value={part.strip()}"])["value"] for part in text.split(",")]
    return values


def parse_count(option: str, text: str) -> int:
    """'1M' -> 1,000,000; '250k', '3e5' and '42' likewise."""
    found = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?(?:e\d{1,2})?)([kKmMgGbB]?)", text.strip().replace("_", "").replace(",", ""))
    factors = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
    number = 0 if found is None else round(float(found[1]) * factors[found[2].lower()])
    if not 1 <= number < 2**63:
        raise UsageError(f"{option} {text}", "must be a number such as 250000, 250k or 1M")
    return number


# ---- variants


def with_absolute_paths(values: Mapping[str, Any], *, base: Path) -> dict[str, Any]:
    """The run file with what it names where it lies: it can be read from anywhere."""
    config = resolve(values, base=base)
    new = {**values, "data": config.to_dict()["data"]}
    if config.train.init_from is not None:
        new = with_option(new, "train.init_from", config.train.init_from)
    tokenizer = config.to_dict()["tokenizer"]
    return {**new, "tokenizer": tokenizer} if given_tokenizer(config) else new


def given_tokenizer(config: RunConfig) -> bool:
    """Whether the run file names files of tokenizers, so that none is to be trained."""
    table = config.to_dict()["tokenizer"]
    sides = [table[side] for side in ("source", "target") if side in table]
    return all("file" in part for part in sides or [table])


def _budgeted(values: Mapping[str, Any], budget: tuple[str, float] | None) -> dict[str, Any]:
    if budget is None:
        return dict(values)
    train = {name: value for name, value in values.get("train", {}).items() if name not in BUDGETS}
    return {**values, "train": {**train, budget[0]: budget[1]}}


def _one_arch(values: Mapping[str, Any], kind: str, options: ComparisonOptions, *, base: Path) -> Variants:
    found = applicable_options(values, kind, base=base)
    variants, refused = [Variant(kind, _budgeted(found.values, options.budget))], list[FailedRun]()
    dropped = dict.fromkeys(found.dropped)  # each once
    for choices in options.grid:
        tries = [_tried(variant, choices.option, value, base=base) for variant in variants for value in choices.values]
        fit = [one for one in tries if isinstance(one, Variant)]
        strange = variants and not fit and not _has(found.values, choices.option, base=base)
        if strange or _ignores(kind, choices.option, values):
            dropped[choices.option] = None  # no value of it means anything here
            continue
        variants, refused = fit, refused + [one for one in tries if isinstance(one, FailedRun)]
    applies = "does not apply" if len(dropped) == 1 else "do not apply"
    return Variants(variants, refused, [f"{kind}: {', '.join(dropped)} {applies}"] if dropped else [])


def _tried(variant: Variant, option: str, value: Any, *, base: Path) -> Variant | FailedRun:
    """The variant with another value of an option, if it can be so."""
    name = f"{variant.name},{option.partition('.')[2]}={_shown(value)}"
    changed = _changed(variant.values, option, value)
    config = try_config(changed, base=base)
    if isinstance(config, ConfigError):
        return FailedRun(name, None, str(config), config.exit_code)
    return Variant(name, changed)


def _changed(values: dict[str, Any], option: str, value: Any) -> dict[str, Any]:
    table, _, name = option.partition(".")
    if table == "model" and "." not in name:
        return everywhere(values, name, value)
    return with_option(values, option, value)


def _ignores(kind: str, option: str, values: Mapping[str, Any]) -> bool:
    """A model that is counted has a [train] table and looks at none of it."""
    return option.startswith("train.") and not find_task(values["task"]).presets[kind].estimator.by_steps


def _has(values: Mapping[str, Any], option: str, *, base: Path) -> bool:
    """Whether the kind of a run file has an option, one of its sides' among them: what it has none of is not in its settings,
    or is 'none' there."""
    table, _, name = option.partition(".")
    known = leaves(resolve(values, base=base).to_dict())
    return any(known.get(place, "none") != "none" for place in (option, *(f"{table}.{side}.{name}" for side in SIDES)))


def _shown(value: Any) -> str:
    """A value as a name of a row has it."""
    return str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")


def _numbered(variants: Iterable[Variant]) -> list[Variant]:
    """The same with names that tell all of them apart: the second `lstm` is `lstm#2`."""
    seen: dict[str, int] = {}
    found = []
    for variant in variants:
        seen[variant.name] = seen.get(variant.name, 0) + 1
        times = seen[variant.name]
        found.append(variant if times == 1 else variant._replace(name=f"{variant.name}#{times}"))
    return found


def variants(values: Mapping[str, Any], options: ComparisonOptions, *, base: Path) -> Variants:
    """Every kind with every combination of the grid; what can't be right is refused by name, if it is not all of them."""
    run_file = {name: value for name, value in values.items() if name != "seed"}
    kinds = archs_of(run_file, options.models)
    parts = [_one_arch(run_file, kind, options, base=base) for kind in kinds]
    found = _numbered(variant for part in parts for variant in part.variants)
    for choices in options.grid:
        if not any(f",{choices.option.partition('.')[2]}=" in variant.name for variant in found):
            raise ConfigError(f"--grid {choices.option}", f"{_why_none(run_file, kinds, choices, base=base)}")
    return Variants(found, [one for part in parts for one in part.failed], [note for part in parts for note in part.notes])


def _why_none(values: Mapping[str, Any], kinds: Sequence[str], choices: Grid, *, base: Path) -> str:
    """Why an option of the grid makes no variant: what a kind that has it says, else one that knows its name, or a like one."""
    files_of = {kind: applicable_options(values, kind, base=base).values for kind in kinds}
    found = {kind: try_config(_changed(one, choices.option, choices.values[0]), base=base) for kind, one in files_of.items()}
    said = {kind: error for kind, error in found.items() if isinstance(error, ConfigError)}
    if not said:
        return f"applies to none of {', '.join(kinds)}"

    def strangeness(kind: str) -> tuple[bool, bool, bool]:
        error = said[kind]
        unknown = error.is_unknown and error.where == choices.option
        return not _has(files_of[kind], choices.option, base=base), unknown, not error.has_suggestion

    error = said[min(said, key=strangeness)]
    return "; ".join(filter(None, (error.problem, error.fix))) if error.where == choices.option else str(error)


def directory_name(name: str) -> str:
    """A name of a row as one of a folder."""
    return re.sub(r"[^A-Za-z0-9.,=_#+-]", "_", name)[:120]


def plan_runs(variants: Sequence[Variant], seeds: Sequence[int], output_dir: Path) -> list[PlannedRun]:
    """A run for each variant and seed, seed by seed: what is stopped early has every kind."""
    names = [directory_name(variant.name) for variant in variants]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError("--grid", f"two variants would be trained into {twice}", "make the values shorter")
    return [
        PlannedRun(variant, seed, output_dir / f"{name}-{seed}")
        for seed in seeds
        for name, variant in zip(names, variants, strict=True)
    ]


# ---- the folder


def to_toml(values: Mapping[str, Any], options: ComparisonOptions) -> dict[str, Any]:
    """plan.toml: all that decides what is trained."""
    found: dict[str, Any] = {"models": list(options.models), "seeds": options.seeds}
    if options.budget is not None:
        found["budget"] = {options.budget[0]: options.budget[1]}
    found |= {
        name: value for name, value in (("params", options.match_params), ("tune", options.tune_trials)) if value is not None
    }
    if options.grid:
        found["grid"] = {option: choices for option, choices in options.grid}
    return {**found, "run": dict(values), SUMS: _sums(values)}


def _sums(values: Mapping[str, Any]) -> dict[str, str]:
    """The SHA-256 of every file that runs learn from, by its path; one that is gone can't have changed."""
    sources = resolve(values, base=Path()).datasets
    paths = [path for name in ("train", "valid") if name in sources for path in sources[name].paths]
    return {str(path): files.sha256(path) for path in files.within(paths) if path.exists()}


def check_files_exist(values: Mapping[str, Any]) -> None:
    """Refuse data that is not there before anything makes room for what would be trained with it."""
    for source in resolve(values, base=Path()).datasets.values():
        for path in source.paths:
            if not path.exists():
                raise DataError(path, "no such file")


def begin(output_dir: Path, plan: Mapping[str, Any], *, overwrite: bool) -> None:
    """Make the folder of a comparison, or find it as this very plan left it; a comparison that is begun anew is set aside.
    Call under the lock."""
    files.sweep(output_dir)
    check_is_comparison(output_dir)
    aside, path = previous_plan(output_dir), output_dir / PLAN
    aside.repair()
    _refuse_links(output_dir)  # what was set aside and is back may hold some
    drop_backup(output_dir)
    if aside.exists() and not path.is_file():
        aside.restore()  # the one that was to replace it was killed before it was more than a name, or is not wanted
    if path.is_file() and overwrite:
        aside.move_in()
    if not path.is_file():
        files.write_text(path, tomli_w.dumps(dict(plan)))
    there, here = dict(_read(path)), dict(plan)
    before, now = there.pop(SUMS, {}), here.pop(SUMS, {})
    if found := describe_differences(there, here):
        fix = f"; remove {path} to go back to the one that waits in {aside.path}" if aside.exists() else ""
        raise UsageError(
            output_dir,
            f"holds another comparison ({'; '.join(found[:3])})",
            f"choose another --output-dir, or --overwrite{fix}",
        )
    # a finished run of the old data beside a new one would not be of the same data, and may have learned what is now tested
    if changed := [name for name in before if now.get(name, before[name]) != before[name]]:
        raise UsageError(
            output_dir, f"{changed[0]} has changed since runs learned from it", "choose another --output-dir, or --overwrite"
        )


def _refuse_links(output_dir: Path) -> None:
    for path in (*output_dir.iterdir(), *(output_dir / "tune").glob("*")):
        files.refuse_link(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except ConfigError as error:
        raise ModelError("", f"{error}", "the comparison is damaged, --overwrite makes it again") from None


def previous_plan(output_dir: Path) -> Backup:
    """The comparison that is to be replaced, until the new one is finished."""
    return Backup(output_dir, PLAN)


def drop_backup(output_dir: Path) -> None:
    """If the comparison of a run file is finished, the one that it replaces is gone."""
    if (output_dir / PLAN).is_file() and (output_dir / COMPARISON).is_file():
        previous_plan(output_dir).drop()


def bring_back(output_dir: Path) -> bool:
    """If no run of the new comparison has saved anything, the one that was to be replaced is back; whether it is. Call under
    the lock."""
    aside = previous_plan(output_dir)
    if not aside.exists() or any(RunDir(run).weights.exists() or checkpoint.names(run) for run in _runs(output_dir)):
        return False
    aside.restore()
    return True


def _runs(output_dir: Path) -> list[Path]:
    """The folders of runs, those of trials too, and what else is as deep."""
    found = [path for path in previous_plan(output_dir).contents() if path.is_dir()]
    return [*found, *(inner for path in found for inner in sorted(path.iterdir()) if inner.is_dir())]


def check_unused(output_dir: Path) -> None:
    """A run of a comparison that was killed may still be saving, and would save into what takes the place of its own."""
    for run in _runs(output_dir):
        if (run / ".lock").is_file():
            with Lock(run):
                pass


@contextmanager
def restore_on_failure(output_dir: Path, *, overwrite: bool) -> Iterator[None]:
    """If the block that begins a comparison anew fails, the one that was to be replaced is back. Call under the lock."""
    try:
        yield
    except BaseException:
        previous_plan(output_dir).repair()
        if overwrite and previous_plan(output_dir).exists():
            previous_plan(output_dir).restore()
        raise


def check_is_comparison(output_dir: Path) -> None:
    """Leave a folder alone that holds something, but no comparison, or a link that leads out of it."""
    _refuse_links(output_dir)
    if not (_is_plan(output_dir / PLAN) or previous_plan(output_dir).exists()) and (
        strangers := previous_plan(output_dir).contents()
    ):
        raise UsageError(output_dir, f"is no comparison and not empty ({strangers[0].name})", "choose another --output-dir")


def _is_plan(path: Path) -> bool:
    """Whether it is the plan of a comparison, and not somebody's plan.toml for something else; damaged ones are ours."""
    try:
        return path.is_file() and {"seeds", "run"} <= read_toml(path).keys()
    except ConfigError:
        return True
