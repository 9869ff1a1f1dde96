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
from weft.aside import Aside
from weft.compare.fitting import everywhere, fitted, leaves, tried, with_option
from weft.compare.kinds import kinds_of
from weft.config import differences, override, read_toml
from weft.errors import ConfigError, DataError, ModelError, UsageError
from weft.lock import Lock
from weft.models.pair_tables import SIDES
from weft.runs.folder import RunFolder
from weft.runs.resolve import resolve
from weft.runs.settings import Settings
from weft.tasks.registry import find_task
from weft.train import checkpoint
from weft.train.tables import BUDGETS

PLAN = "plan.toml"
COMPARISON = "comparison.json"  # what was found; written last
SUMS = "sums"  # of the data, in the plan
RUN_FILES = "run-files"  # one for each run, as it is given to `weft train`


class Variant(NamedTuple):
    """One row of the table."""

    name: str  # "lstm", or "lstm,width=128"
    values: dict[str, Any]  # a whole run file, without its seed

    @property
    def kind(self) -> str:
        return str(self.values["model"]["kind"])


class Planned(NamedTuple):
    """One run."""

    variant: Variant
    seed: int
    out: Path

    @property
    def values(self) -> dict[str, Any]:
        return {**self.variant.values, "seed": self.seed}


class Grid(NamedTuple):
    option: str  # "model.width"
    values: list[Any]


class Refused(NamedTuple):
    """A variant that can't be trained, or could not be trained to its end."""

    name: str
    seed: int | None  # None: none of its runs
    reason: str
    code: int  # the exit code of such an error


class Asked(NamedTuple):
    """What is wanted beside the run file."""

    models: Sequence[str] = ()  # kinds, or "all"; none: the run file's own
    seeds: int = 1
    budget: tuple[str, float] | None = None  # minutes or tokens; None: the run file's
    params: int | None = None  # about how many parameters each network is to have
    grid: Sequence[Grid] = ()
    tune: int | None = None  # trials for each network


class Variants(NamedTuple):
    variants: list[Variant]
    refused: list[Refused]
    notes: list[str]


# ---- options as they are typed


def parse_grid(text: str) -> Grid:
    """'model.width=128,256' -> what it names; values as TOML reads them, bare words as strings."""
    option, equals, listed = (part.strip() for part in text.partition("="))
    if not equals or not listed or not all(option.split(".")):
        raise UsageError(f"--grid {text}: must look like model.width=128,256")
    table, _, name = option.partition(".")
    if table not in ("model", "train") or not name:
        raise UsageError(
            f"--grid {option}: all variants read the same data with one tokenizer; name an option of [model] or [train]"
        )
    if name == "kind":
        raise UsageError("--grid model.kind: kinds are named by --models")
    if table == "train" and name in BUDGETS:
        raise UsageError(f"--grid {option}: is the budget, which all variants share; drop it")
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
        raise UsageError(f"{option} {text}: must be a number such as 250000, 250k or 1M")
    return number


# ---- variants


def absolute(values: Mapping[str, Any], *, base: Path) -> dict[str, Any]:
    """The run file with what it names where it lies: it can be read from anywhere."""
    settings = resolve(values, base=base)
    new = {**values, "data": settings.to_dict()["data"]}
    if settings.train.init_from is not None:
        new = with_option(new, "train.init_from", settings.train.init_from)
    tokenizer = settings.to_dict()["tokenizer"]
    return {**new, "tokenizer": tokenizer} if given_tokenizer(settings) else new


def given_tokenizer(settings: Settings) -> bool:
    """Whether the run file names files of tokenizers, so that none is to be trained."""
    table = settings.to_dict()["tokenizer"]
    sides = [table[side] for side in ("source", "target") if side in table]
    return all("file" in part for part in sides or [table])


def _budgeted(values: Mapping[str, Any], budget: tuple[str, float] | None) -> dict[str, Any]:
    if budget is None:
        return dict(values)
    train = {name: value for name, value in values.get("train", {}).items() if name not in BUDGETS}
    return {**values, "train": {**train, budget[0]: budget[1]}}


def _one_kind(values: Mapping[str, Any], kind: str, asked: Asked, *, base: Path) -> Variants:
    found = fitted(values, kind, base=base)
    variants, refused = [Variant(kind, _budgeted(found.values, asked.budget))], list[Refused]()
    dropped = dict.fromkeys(found.dropped)  # each once
    for choices in asked.grid:
        tries = [_tried(variant, choices.option, value, base=base) for variant in variants for value in choices.values]
        fit = [one for one in tries if isinstance(one, Variant)]
        strange = variants and not fit and not _has(found.values, choices.option, base=base)
        if strange or _ignores(kind, choices.option, values):
            dropped[choices.option] = None  # no value of it means anything here
            continue
        variants, refused = fit, refused + [one for one in tries if isinstance(one, Refused)]
    applies = "does not apply" if len(dropped) == 1 else "do not apply"
    return Variants(variants, refused, [f"{kind}: {', '.join(dropped)} {applies}"] if dropped else [])


def _tried(variant: Variant, option: str, value: Any, *, base: Path) -> Variant | Refused:
    """The variant with another value of an option, if it can be so."""
    name = f"{variant.name},{option.partition('.')[2]}={_shown(value)}"
    changed = _changed(variant.values, option, value)
    settings = tried(changed, base=base)
    if isinstance(settings, ConfigError):
        return Refused(name, None, str(settings), settings.exit_code)
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


def variants(values: Mapping[str, Any], asked: Asked, *, base: Path) -> Variants:
    """Every kind with every combination of the grid; what can't be right is refused by name, if it is not all of them."""
    run_file = {name: value for name, value in values.items() if name != "seed"}
    kinds = kinds_of(run_file, asked.models)
    parts = [_one_kind(run_file, kind, asked, base=base) for kind in kinds]
    found = _numbered(variant for part in parts for variant in part.variants)
    for choices in asked.grid:
        if not any(f",{choices.option.partition('.')[2]}=" in variant.name for variant in found):
            raise ConfigError(f"--grid {choices.option}: {_why_none(run_file, kinds, choices, base=base)}")
    return Variants(found, [one for part in parts for one in part.refused], [note for part in parts for note in part.notes])


def _why_none(values: Mapping[str, Any], kinds: Sequence[str], choices: Grid, *, base: Path) -> str:
    """Why an option of the grid makes no variant: what a kind that has it says, else one that knows its name, or a like one."""
    files_of = {kind: fitted(values, kind, base=base).values for kind in kinds}
    found = {kind: tried(_changed(one, choices.option, choices.values[0]), base=base) for kind, one in files_of.items()}
    said = {kind: error for kind, error in found.items() if isinstance(error, ConfigError)}
    if not said:
        return f"applies to none of {', '.join(kinds)}"

    def strangeness(kind: str) -> tuple[bool, bool, bool]:
        error = said[kind]
        unknown = error.unknown and error.option == choices.option
        return not _has(files_of[kind], choices.option, base=base), unknown, not error.near

    error = said[min(said, key=strangeness)]
    return error.reason if error.option == choices.option else str(error)


def folder_name(name: str) -> str:
    """A name of a row as one of a folder."""
    return re.sub(r"[^A-Za-z0-9.,=_#+-]", "_", name)[:120]


def planned(variants: Sequence[Variant], seeds: Sequence[int], out: Path) -> list[Planned]:
    """A run for each variant and seed, seed by seed: what is stopped early has every kind."""
    names = [folder_name(variant.name) for variant in variants]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"--grid: two variants would be trained into {twice}; make the values shorter")
    return [
        Planned(variant, seed, out / f"{name}-{seed}") for seed in seeds for name, variant in zip(names, variants, strict=True)
    ]


# ---- the folder


def as_toml(values: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    """plan.toml: all that decides what is trained."""
    found: dict[str, Any] = {"models": list(asked.models), "seeds": asked.seeds}
    if asked.budget is not None:
        found["budget"] = {asked.budget[0]: asked.budget[1]}
    found |= {name: value for name, value in (("params", asked.params), ("tune", asked.tune)) if value is not None}
    if asked.grid:
        found["grid"] = {option: choices for option, choices in asked.grid}
    return {**found, "run": dict(values), SUMS: _sums(values)}


def _sums(values: Mapping[str, Any]) -> dict[str, str]:
    """The SHA-256 of every file that runs learn from, by its path; one that is gone can't have changed."""
    sources = resolve(values, base=Path()).datasets
    paths = [path for name in ("train", "valid") if name in sources for path in sources[name].paths]
    return {str(path): files.sha256(path) for path in files.within(paths) if path.exists()}


def refuse_missing(values: Mapping[str, Any]) -> None:
    """Refuse data that is not there before anything makes room for what would be trained with it."""
    for source in resolve(values, base=Path()).datasets.values():
        for path in source.paths:
            if not path.exists():
                raise DataError(f"{path}: no such file")


def begin(out: Path, plan: Mapping[str, Any], *, fresh: bool) -> None:
    """Make the folder of a comparison, or find it as this very plan left it; a comparison that is begun anew is set aside.
    Call under the lock."""
    files.sweep(out)
    refuse_strangers(out)
    aside, path = earlier(out), out / PLAN
    aside.mend()
    _refuse_links(out)  # what was set aside and is back may hold some
    settle(out)
    if aside.is_there() and not path.is_file():
        aside.bring_back()  # the one that was to replace it was killed before it was more than a name, or is not wanted
    if path.is_file() and fresh:
        aside.put()
    if not path.is_file():
        files.write_text(path, tomli_w.dumps(dict(plan)))
    there, here = dict(_read(path)), dict(plan)
    before, now = there.pop(SUMS, {}), here.pop(SUMS, {})
    if found := differences(there, here):
        cure = f"; remove {path} to go back to the one that waits in {aside.place}" if aside.is_there() else ""
        raise UsageError(f"{out}: holds another comparison ({'; '.join(found[:3])}); choose another --out, or --fresh{cure}")
    # a finished run of the old data beside a new one would not be of the same data, and may have learned what is now tested
    if changed := [name for name in before if now.get(name, before[name]) != before[name]]:
        raise UsageError(f"{out}: {changed[0]} has changed since runs learned from it; choose another --out, or --fresh")


def _refuse_links(out: Path) -> None:
    for path in (*out.iterdir(), *(out / "tune").glob("*")):
        files.refuse_link(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path)
    except ConfigError as error:
        raise ModelError(f"{error}; the comparison is damaged, --fresh makes it again") from None


def earlier(out: Path) -> Aside:
    """The comparison that is to be replaced, until the new one is finished."""
    return Aside(out, PLAN)


def settle(out: Path) -> None:
    """If the comparison of a run file is finished, the one that it replaces is gone."""
    if (out / PLAN).is_file() and (out / COMPARISON).is_file():
        earlier(out).drop()


def bring_back(out: Path) -> bool:
    """If no run of the new comparison has saved anything, the one that was to be replaced is back; whether it is. Call under
    the lock."""
    aside = earlier(out)
    if not aside.is_there() or any(RunFolder(run).weights.exists() or checkpoint.names(run) for run in _runs(out)):
        return False
    aside.bring_back()
    return True


def _runs(out: Path) -> list[Path]:
    """The folders of runs, those of trials too, and what else is as deep."""
    found = [path for path in earlier(out).contents() if path.is_dir()]
    return [*found, *(inner for path in found for inner in sorted(path.iterdir()) if inner.is_dir())]


def refuse_used(out: Path) -> None:
    """A run of a comparison that was killed may still be saving, and would save into what takes the place of its own."""
    for run in _runs(out):
        if (run / ".lock").is_file():
            with Lock(run):
                pass


@contextmanager
def or_as_it_was(out: Path, *, fresh: bool) -> Iterator[None]:
    """If the block that begins a comparison anew fails, the one that was to be replaced is back. Call under the lock."""
    try:
        yield
    except BaseException:
        earlier(out).mend()
        if fresh and earlier(out).is_there():
            earlier(out).bring_back()
        raise


def refuse_strangers(out: Path) -> None:
    """Leave a folder alone that holds something, but no comparison, or a link that leads out of it."""
    _refuse_links(out)
    if not (_is_plan(out / PLAN) or earlier(out).is_there()) and (strangers := earlier(out).contents()):
        raise UsageError(f"{out}: is no comparison and not empty ({strangers[0].name}); choose another --out")


def _is_plan(path: Path) -> bool:
    """Whether it is the plan of a comparison, and not somebody's plan.toml for something else; damaged ones are ours."""
    try:
        return path.is_file() and {"seeds", "run"} <= read_toml(path).keys()
    except ConfigError:
        return True
