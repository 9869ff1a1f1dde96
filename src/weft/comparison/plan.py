"""The plan of a comparison: one ordinary run per architecture, option value and seed, all with the same data and budget."""

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
from weft.comparison.applicable_options import applicable_options, flatten_options, try_config, with_model_option, with_option
from weft.comparison.architectures import select_archs
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
COMPARISON = "comparison.json"  # the results; written last
DATA_HASHES = "data_hashes"  # the key in plan.toml
RUN_FILES = "run-files"  # the directory of run files, one for each run


class Variant(NamedTuple):
    """One row of the table."""

    name: str  # "lstm", or "lstm,hidden_size=128"
    values: dict[str, Any]  # a complete run file, without its seed

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
    option: str  # "model.hidden_size"
    values: list[Any]


class FailedRun(NamedTuple):
    """A variant that cannot be trained, or whose training failed."""

    name: str
    seed: int | None  # None: the variant has no run
    reason: str
    code: int  # the exit code of the error


class ComparisonOptions(NamedTuple):
    """The options of a comparison of a run file."""

    models: Sequence[str] = ()  # architectures, or "all"; empty: that of the run file
    seeds: int = 1
    budget: tuple[str, float] | None = None  # minutes or tokens; None: the run file's
    match_params: int | None = None  # approximate number of parameters of each network
    grid: Sequence[Grid] = ()
    tune_trials: int | None = None  # trials per variant


class Variants(NamedTuple):
    variants: list[Variant]
    failed: list[FailedRun]
    notes: list[str]


# ---- options of the command line


def parse_grid(text: str) -> Grid:
    """Parse 'model.hidden_size=128,256': TOML values; bare words are strings."""
    option, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not values or not all(option.split(".")):
        raise UsageError("grid", f"expected OPTION=VALUE,VALUE such as model.hidden_size=128,256, got {text!r}")
    table, _, name = option.partition(".")
    if table not in ("model", "train") or not name:
        raise UsageError(
            "grid", f"{option}: data and tokenizer are shared by all models", "use an option of [model] or [train]"
        )
    if name == "arch":
        raise UsageError("grid", "model.arch: use `models` to compare architectures")
    if table == "train" and name in BUDGETS:
        raise UsageError("grid", f"{option}: the budget is the same for all models")
    return Grid(option, _parse_values(values))


def _parse_values(text: str) -> list[Any]:
    try:
        return list(tomllib.loads(f"values = [{text}]")["values"])
    except ValueError:  # bare words
        return [override({}, [f"value={part.strip()}"])["value"] for part in text.split(",")]


def parse_count(option: str, text: str) -> int:
    """Parse a count such as '1M', '250k', '3e5' or '42'."""
    match = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?(?:e\d{1,2})?)([kKmMgGbB]?)", text.strip().replace("_", "").replace(",", ""))
    factors = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
    number = 0 if match is None else round(float(match[1]) * factors[match[2].lower()])
    if not 1 <= number < 2**63:
        raise UsageError(option, f"expected a count such as 250000, 250k or 1M, got {text!r}")
    return number


# ---- variants


def with_absolute_paths(values: Mapping[str, Any], *, base: Path) -> dict[str, Any]:
    """The run file with absolute paths, so that it can be read from any directory."""
    config = resolve(values, base=base)
    new = {**values, "data": config.to_dict()["data"]}
    for option, paths in (("init_from", config.train.init_from), ("distill_from", config.train.distill_from)):
        new = new if paths is None else with_option(new, f"train.{option}", paths)
    tokenizer = config.to_dict()["tokenizer"]
    return {**new, "tokenizer": tokenizer} if has_tokenizer_files(config) else new


def has_tokenizer_files(config: RunConfig) -> bool:
    """Whether the run file names tokenizer files, so that none has to be trained."""
    table = config.to_dict()["tokenizer"]
    sides = [table[side] for side in ("source", "target") if side in table]
    return all("file" in part for part in sides or [table])


def _with_budget(values: Mapping[str, Any], budget: tuple[str, float] | None) -> dict[str, Any]:
    if budget is None:
        return dict(values)
    train = {name: value for name, value in values.get("train", {}).items() if name not in BUDGETS}
    return {**values, "train": {**train, budget[0]: budget[1]}}


def _arch_variants(values: Mapping[str, Any], arch: str, options: ComparisonOptions, *, base: Path) -> Variants:
    applicable = applicable_options(values, arch, base=base)
    variants, failed = [Variant(arch, _with_budget(applicable.values, options.budget))], list[FailedRun]()
    ignored = dict.fromkeys(applicable.ignored)
    for choices in options.grid:
        tries = [_grid_variant(variant, choices.option, value, base=base) for variant in variants for value in choices.values]
        valid = [result for result in tries if isinstance(result, Variant)]
        unknown = variants and not valid and not _has_option(applicable.values, choices.option, base=base)
        if unknown or _is_unused(arch, choices.option, values):
            ignored[choices.option] = None  # the architecture does not have this option
            continue
        variants, failed = valid, failed + [result for result in tries if isinstance(result, FailedRun)]
    return Variants(variants, failed, [f"{arch}: ignoring {_join_names(ignored)}"] if ignored else [])


def _join_names(options: Iterable[str]) -> str:
    """'num_heads, ffn_dim and norm', without the table."""
    *first, last = [name.removeprefix("model.") for name in options]
    return f"{', '.join(first)} and {last}" if first else last


def _grid_variant(variant: Variant, option: str, value: Any, *, base: Path) -> Variant | FailedRun:
    """The variant with a grid value of an option, or a failure if the value is invalid."""
    name = f"{variant.name},{option.partition('.')[2]}={_format_value(value)}"
    changed = _with_grid_value(variant.values, option, value)
    config = try_config(changed, base=base)
    if isinstance(config, ConfigError):
        return FailedRun(name, None, str(config), config.exit_code)
    return Variant(name, changed)


def _with_grid_value(values: dict[str, Any], option: str, value: Any) -> dict[str, Any]:
    table, _, name = option.partition(".")
    if table == "model" and "." not in name:
        return with_model_option(values, name, value)
    return with_option(values, option, value)


def _is_unused(arch: str, option: str, values: Mapping[str, Any]) -> bool:
    """Whether the model does not use the option: one that is fitted in one pass has a [train] table but does not read it."""
    return option.startswith("train.") and not find_task(values["task"]).presets[arch].estimator.by_steps


def _has_option(values: Mapping[str, Any], option: str, *, base: Path) -> bool:
    """Whether the architecture of a run file has an option, possibly in its encoder or decoder: an option that it lacks is
    missing from the resolved configuration, or 'none'."""
    table, _, name = option.partition(".")
    options = flatten_options(resolve(values, base=base).to_dict())
    return any(options.get(path, "none") != "none" for path in (option, *(f"{table}.{side}.{name}" for side in SIDES)))


def _format_value(value: Any) -> str:
    """A value as part of the name of a row."""
    return str(value).lower() if isinstance(value, bool) else str(value).replace(" ", "")


def _with_unique_names(variants: Iterable[Variant]) -> list[Variant]:
    """The variants with unique names: the second `lstm` is `lstm#2`."""
    counts: dict[str, int] = {}
    numbered = []
    for variant in variants:
        number = counts[variant.name] = counts.get(variant.name, 0) + 1
        numbered.append(variant if number == 1 else variant._replace(name=f"{variant.name}#{number}"))
    return numbered


def variants(values: Mapping[str, Any], options: ComparisonOptions, *, base: Path) -> Variants:
    """Every architecture with every combination of the grid. Invalid combinations are failures, unless all are invalid."""
    run_file = {name: value for name, value in values.items() if name != "seed"}
    archs = select_archs(run_file, options.models)
    parts = [_arch_variants(run_file, arch, options, base=base) for arch in archs]
    valid = _with_unique_names(variant for part in parts for variant in part.variants)
    for choices in options.grid:
        if not any(f",{choices.option.partition('.')[2]}=" in variant.name for variant in valid):
            raise ConfigError("grid", _grid_error(run_file, archs, choices, base=base))
    return Variants(
        valid, [failed for part in parts for failed in part.failed], [note for part in parts for note in part.notes]
    )


def _grid_error(values: Mapping[str, Any], archs: Sequence[str], choices: Grid, *, base: Path) -> str:
    """Why a grid option is invalid for every architecture: the error of an architecture that has the option if possible, else
    of one that knows its name or a similar one."""
    run_files = {arch: applicable_options(values, arch, base=base).values for arch in archs}
    results = {
        arch: try_config(_with_grid_value(run_file, choices.option, choices.values[0]), base=base)
        for arch, run_file in run_files.items()
    }
    errors = {arch: error for arch, error in results.items() if isinstance(error, ConfigError)}
    if not errors:
        return f"{choices.option}: not used by {', '.join(archs)}"

    def relevance(arch: str) -> tuple[bool, bool, bool]:
        error = errors[arch]
        unknown = error.is_unknown and error.where == choices.option
        return not _has_option(run_files[arch], choices.option, base=base), unknown, not error.has_suggestion

    return str(errors[min(errors, key=relevance)])


def directory_name(name: str) -> str:
    """The name of a row as the name of a directory."""
    return re.sub(r"[^A-Za-z0-9.,=_#+-]", "_", name)[:120]


def plan_runs(variants: Sequence[Variant], seeds: Sequence[int], output_dir: Path) -> list[PlannedRun]:
    """A run for each variant and seed, ordered by seed, so that a comparison stopped early includes every architecture."""
    names = [directory_name(variant.name) for variant in variants]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise UsageError("grid", f"two variants have the directory {duplicate}", "use shorter values")
    return [
        PlannedRun(variant, seed, output_dir / f"{name}-{seed}")
        for seed in seeds
        for name, variant in zip(names, variants, strict=True)
    ]


# ---- the directory of a comparison


def to_toml(values: Mapping[str, Any], options: ComparisonOptions) -> dict[str, Any]:
    """The content of plan.toml: everything that determines the trained models."""
    plan: dict[str, Any] = {"models": list(options.models), "seeds": options.seeds}
    if options.budget is not None:
        plan["budget"] = {options.budget[0]: options.budget[1]}
    numbers = {"match_params": options.match_params, "tune_trials": options.tune_trials}
    plan |= {name: number for name, number in numbers.items() if number is not None}
    if options.grid:
        plan["grid"] = {option: choices for option, choices in options.grid}
    return {**plan, "run": dict(values), DATA_HASHES: _data_hashes(values)}


def _data_hashes(values: Mapping[str, Any]) -> dict[str, str]:
    """The SHA-256 of every file that runs are trained or validated on, by its path; missing files are left out."""
    sources = resolve(values, base=Path()).datasets
    paths = [path for name in ("train", "valid") if name in sources for path in sources[name].paths]
    return {str(path): files.sha256(path) for path in files.list_files(paths) if path.exists()}


def check_files_exist(values: Mapping[str, Any]) -> None:
    """Raise DataError for a missing data file, before an existing comparison becomes a backup."""
    for source in resolve(values, base=Path()).datasets.values():
        for path in source.paths:
            if not path.exists():
                raise DataError(path, "file not found")


def begin(output_dir: Path, plan: Mapping[str, Any], *, overwrite: bool) -> None:
    """Create the directory of a comparison, or check that it has this plan; with `overwrite`, the existing comparison becomes
    a backup. Call under the lock."""
    files.remove_temporary_files(output_dir)
    check_is_comparison(output_dir)
    backup, path = previous_plan(output_dir), output_dir / PLAN
    backup.repair()
    _refuse_links(output_dir)  # a restored backup may contain some
    drop_backup(output_dir)
    if backup.exists() and not path.is_file():
        backup.restore()  # the new comparison was killed before it had a plan, or its plan was removed
    if path.is_file() and overwrite:
        backup.create()
    if not path.is_file():
        files.write_text(path, tomli_w.dumps(dict(plan)))
    old, new = dict(_read(path)), dict(plan)
    old_hashes, new_hashes = old.pop(DATA_HASHES, {}), new.pop(DATA_HASHES, {})
    if differences := describe_differences(old, new):
        fix = f"; remove {path} to restore the backup in {backup.path}" if backup.exists() else ""
        problem = f"contains a comparison with different options ({'; '.join(differences[:3])})"
        raise UsageError(output_dir, problem, f"choose another `output_dir` or use `overwrite`{fix}")
    # finished and new runs would have different data, and finished ones may have seen what is now test data
    if changed := [name for name in old_hashes if new_hashes.get(name, old_hashes[name]) != old_hashes[name]]:
        problem = f"{changed[0]} has changed since runs were trained on it"
        raise UsageError(output_dir, problem, "choose another `output_dir` or use `overwrite`")


def _refuse_links(output_dir: Path) -> None:
    for path in (*output_dir.iterdir(), *(output_dir / "tune").glob("*")):
        files.refuse_link(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except ConfigError as error:
        raise ModelError(error.where, error.problem, "use `overwrite` to start the comparison over") from None


def previous_plan(output_dir: Path) -> Backup:
    """The backup of the comparison that is being replaced, kept until the new one is finished."""
    return Backup(output_dir, PLAN)


def drop_backup(output_dir: Path) -> None:
    """Remove the backup once the new comparison of a run file is finished."""
    if (output_dir / PLAN).is_file() and (output_dir / COMPARISON).is_file():
        previous_plan(output_dir).delete()


def restore_backup(output_dir: Path) -> bool:
    """Restore the backup if no run of the new comparison has saved anything; returns whether it did. Call under the lock."""
    backup = previous_plan(output_dir)
    if not backup.exists() or any(RunDir(run).weights.exists() or checkpoint.names(run) for run in _runs(output_dir)):
        return False
    backup.restore()
    return True


def _runs(output_dir: Path) -> list[Path]:
    """All directories at the depth of runs and trials, which include other directories."""
    directories = [path for path in previous_plan(output_dir).contents() if path.is_dir()]
    return [*directories, *(inner for path in directories for inner in sorted(path.iterdir()) if inner.is_dir())]


def check_unused(output_dir: Path) -> None:
    """Raise InUseError if a run of a killed comparison is still saving: it would save into the new comparison."""
    for run in _runs(output_dir):
        if (run / ".lock").is_file():
            with Lock(run):
                pass


@contextmanager
def restore_on_failure(output_dir: Path, *, overwrite: bool) -> Iterator[None]:
    """Restore the backup if the block that starts a comparison over fails. Call under the lock."""
    try:
        yield
    except BaseException:
        previous_plan(output_dir).repair()
        if overwrite and previous_plan(output_dir).exists():
            previous_plan(output_dir).restore()
        raise


def check_is_comparison(output_dir: Path) -> None:
    """Raise UsageError if the directory contains anything but a comparison, or a link out of the directory."""
    _refuse_links(output_dir)
    backup = previous_plan(output_dir)
    if not (_is_plan(output_dir / PLAN) or backup.exists()) and (other := backup.contents()):
        problem = f"not empty and not a comparison (contains {other[0].name})"
        raise UsageError(output_dir, problem, "choose another `output_dir`")


def _is_plan(path: Path) -> bool:
    """Whether the file is the plan of a comparison and not another plan.toml; a damaged one counts as a plan."""
    try:
        return path.is_file() and {"seeds", "run"} <= read_toml(path).keys()
    except ConfigError:
        return True
