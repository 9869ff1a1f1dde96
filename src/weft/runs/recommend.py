"""Applies the recommended settings of a task to a run file: every option that the file leaves out and a recipe knows a good
value for is filled in. What the file sets always wins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tomli_w

from weft.config import BUDGETS, parse_config
from weft.data.config import training
from weft.data.prepared_index import profile_from_json, read_index
from weft.data.profile import DataProfile, profile_data
from weft.data.source import Source
from weft.errors import ConfigError, DataError
from weft.runs.config import RunConfig
from weft.runs.resolve import RunFile, resolve
from weft.runs.run_dir import RunDir
from weft.tasks.registry import TASKS
from weft.text.reading import subject
from weft.training.config import TrainConfig
from weft.training.device import uses_gpu

if TYPE_CHECKING:
    from weft.tasks.recipe import Recipe

MIN_EXAMPLES = 100  # nothing is known about settings for less data
CPU_FLOPS = 4e10  # operations per second of training on two cores, roughly
MAX_CPU_SECONDS = 5400.0  # of the training that is recommended on a CPU
TABLES = ("data", "tokenizer", "model", "train")
DESCRIBED = {"model.num_layers": "layers", "model.hidden_size": "hidden size", "model.dropout": "dropout"}
OPTIMIZER_OPTIONS = ("optimizer", "lr", "muon_lr", "adam_beta2", "momentum", "weight_decay")


class Recommendation(NamedTuple):
    """A run file with the recommended options, and what they are."""

    values: dict[str, Any]
    config: RunConfig  # resolved; its data sets have read their files
    options: Mapping[str, Any] = {}  # that were filled in, by dotted name
    reason: str = ""  # what about the data they follow from; "" if nothing was filled in
    warning: str = ""
    profile: DataProfile | None = None  # None if the data was not read
    flops: float = 0.0  # of the whole training, roughly; 0 if it takes seconds, or nothing was filled in
    step_seconds: float = 0.0  # the time of a training step, if it was measured


def with_arch(values: Mapping[str, Any]) -> dict[str, Any]:
    """The run file with an architecture: its own, or the default of its task."""
    task, model = values.get("task"), values.get("model", {})
    if not isinstance(task, str) or task not in TASKS or not isinstance(model, Mapping):
        return dict(values)  # `resolve` refuses it
    return {**values, "model": {"arch": TASKS[task].arch, **model}}


def recommend(values: Mapping[str, Any], *, base: Path, profile: DataProfile | None = None) -> Recommendation:
    """Fill in the options that a run file leaves out. Reads the training data.

    Args:
        values: The run file.
        base: The directory that its paths are relative to.
        profile: Of the training data, if it is known.

    Returns:
        The completed run file. It is unchanged, apart from `model.arch`, if it asks for that, if its task has no recipes, if it
        starts from other weights, or if there is too little data to know.
    """
    plain, recipes = _find_recipes(values, base, profile)
    if not recipes or plain.profile is None:
        return plain
    return _apply(choose(recipes, is_gpu=plain.profile.is_gpu), plain, with_prepared_tokenizer(values, base), base)


def with_prepared_tokenizer(values: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """The run file with the tokenizer of data.prepared, unless it has its own: on another device, another tokenizer might be
    recommended."""
    data = values.get("data")
    prepared = data.get("prepared") if isinstance(data, Mapping) else None
    if not isinstance(prepared, str) or "tokenizer" in values:
        return dict(values)
    return {**values, "tokenizer": read_index(base / prepared)["tokenizer"]}


def recommend_if_readable(values: Mapping[str, Any], *, base: Path) -> Recommendation:
    """`recommend`; data that cannot be read changes nothing, because a check of the data reports all that is wrong with it."""
    try:
        return recommend(values, base=base)
    except DataError:
        named = with_arch(values)
        return Recommendation(named, resolve(named, base=base))


def recommend_ladder(values: Mapping[str, Any], *, base: Path) -> list[Recommendation]:
    """All recommendations, from the best model to the one that is trained fastest."""
    plain, recipes = _find_recipes(values, base, None)
    return [_apply(recipe, plain, with_prepared_tokenizer(values, base), base) for recipe in recipes] or [plain]


def _find_recipes(
    values: Mapping[str, Any], base: Path, profile: DataProfile | None
) -> tuple[Recommendation, Sequence[Recipe]]:
    """The run file as it is, and the recipes for it."""
    named = with_prepared_tokenizer(with_arch(values), base)
    config = resolve(named, base=base)  # a wrong run file is refused before any data is read
    run, task = parse_config(RunFile, values, prefix=""), config.spec
    if task.recipes is None or not run.recommend or config.train.init_from is not None or "train" not in config.datasets:
        return Recommendation(named, config), ()
    profile = profile or _profile(config)
    if profile.num_examples < MIN_EXAMPLES:
        few = subject(profile.num_examples, "training example", "is", "are")
        warning = f"{few} too few to recommend settings for; using general ones"
        return Recommendation(named, config, warning=warning, profile=profile), ()
    return Recommendation(named, config, profile=profile), task.recipes(profile, _tables(with_prepared_tokenizer(values, base)))


def _tables(values: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {table: values.get(table, {}) for table in TABLES}


def complete(
    values: Mapping[str, Any], out: Path, *, base: Path, overwrite: bool = False, inputs: Mapping[str, Path] | None = None
) -> Recommendation:
    """The run file with all recommended options, for a run in the directory `out`. A run that has begun with the same run file
    keeps its settings, even if another machine or version of weft would recommend others. `inputs` are files of data in memory
    that are not yet in the run directory, by split."""
    if overwrite or not has_begun(out, values):
        return _recommend_staged(values, inputs, base) if inputs else recommend(values, base=base)
    stored = RunDir(out).read_resolved()
    tables = _tables(values)
    merged = {table: _merged(stored.get(table, {}), tables[table]) for table in TABLES}
    merged["train"] = {**_applicable_train(stored.get("train", {}), tables["train"]), **tables["train"]}
    new = {**values, **merged}
    return Recommendation(new, resolve(new, base=base))


def _recommend_staged(values: Mapping[str, Any], inputs: Mapping[str, Path], base: Path) -> Recommendation:
    """The recommendation for data in temporary files; the run file keeps the paths that the data will have."""
    staged = {**values["data"], **{split: str(path) for split, path in inputs.items()}}
    recommendation = recommend({**values, "data": staged}, base=base)
    paths = {split: values["data"][split] for split in inputs}
    new = {**recommendation.values, "data": {**recommendation.values["data"], **paths}}
    return recommendation._replace(values=new, config=resolve(new, base=base))


def has_begun(out: Path, values: Mapping[str, Any]) -> bool:
    """Whether a directory contains a run of this run file."""
    try:
        return RunDir(out).resolved.is_file() and (out / "run.toml").read_text(encoding="utf-8") == tomli_w.dumps(dict(values))
    except (OSError, UnicodeDecodeError):
        return False


def describe(recommendation: Recommendation) -> str:
    """The main choices in one line: 29,000 pairs, sentences of 12 words: bpe 8,000, transformer, dropout 0.3, 6,000 steps."""
    options = recommendation.options
    parts = [_describe_tokenizer(options), options.get("model.arch", "")]
    parts += [f"{words} {options[name]:g}" for name, words in DESCRIBED.items() if name in options]
    parts += [_describe_budget(name, options[f"train.{name}"]) for name in BUDGETS if f"train.{name}" in options]
    return f"{recommendation.reason}: {', '.join(filter(None, parts))}" if any(parts) else ""


def _describe_budget(name: str, value: float) -> str:
    """'6,000 steps', '1 minute'."""
    unit = name.removeprefix("max_")
    return f"{value:,g} {unit.removesuffix('s') if value == 1 else unit}"


def _describe_tokenizer(options: Mapping[str, Any]) -> str:
    """'bpe 8,000', or 'char to whitespace' if source and target differ."""
    sides = []
    for side in ("tokenizer.", "tokenizer.source.", "tokenizer.target."):
        if f"{side}type" in options:
            size = f" {options[f'{side}vocab_size']:,}" if f"{side}vocab_size" in options else ""
            sides.append(f"{options[f'{side}type']}{size}")
    return " to ".join(sides)


def choose(ladder: Sequence[Recipe], *, is_gpu: bool) -> Recipe:
    """The best settings; on a CPU, the best that train in an hour and a half, or the fastest."""
    if is_gpu:
        return ladder[0]
    return next((recipe for recipe in ladder if recipe.flops <= MAX_CPU_SECONDS * CPU_FLOPS), ladder[-1])


def _profile(config: RunConfig) -> DataProfile:
    train, has_valid, is_gpu = training(config.datasets), "valid" in config.datasets, uses_gpu(config.train.device)
    # a format that is kept in memory is read anyway, and its recipes use its summary
    if config.data.prepared is not None and (isinstance(train, Source) or not train.format.in_memory):
        return profile_from_json(read_index(Path(config.data.prepared))["profile"], has_valid=has_valid, is_gpu=is_gpu)
    return profile_data(train, has_valid=has_valid, is_gpu=is_gpu)


def _apply(recipe: Recipe, plain: Recommendation, values: Mapping[str, Any], base: Path) -> Recommendation:
    """Add the options of a recipe that the run file does not set. One that contradicts an option of the file is left out."""
    given, recommended = _tables(values), {table: dict(getattr(recipe, table)) for table in TABLES}
    recommended["train"] = _applicable_train(recipe.train, given["train"])
    while True:
        new = {**values, **{table: _merged(recommended[table], given[table]) for table in TABLES}}
        try:
            config = resolve(new, base=base)
            break
        except ConfigError as error:
            if not (_remove(recommended, error.where) or _remove(recommended, f"model.{error.where.split('.')[-1]}")):
                recommended = {**{table: {} for table in TABLES}, "model": {"arch": recipe.model["arch"]}}
    if config.data == plain.config.data:
        config.__dict__["datasets"] = plain.config.datasets  # that have read their files
    options = dict(_added(new, values))
    reason = recipe.reason if options else ""
    return Recommendation(new, config, options, reason, profile=plain.profile, flops=recipe.flops)


def _applicable_train(recommended: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of [train] without those that belong to a budget or an optimizer that the run file replaces."""
    removed = set(BUDGETS) if any(name in given for name in BUDGETS) else set()
    optimizer = recommended.get("optimizer", TrainConfig.model_fields["optimizer"].default)
    if given.get("optimizer", optimizer) != optimizer:
        removed |= set(OPTIMIZER_OPTIONS)
    return {name: value for name, value in recommended.items() if name not in removed}


def _merged(recommended: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Recommended options, overridden by those of the run file, table by table."""
    merged = {**recommended, **given}
    for name, value in recommended.items():
        if isinstance(value, Mapping) and isinstance(given.get(name), Mapping):
            merged[name] = _merged(value, given[name])
    return merged


def _remove(tables: dict[str, dict[str, Any]], option: str) -> bool:
    """Remove a recommended option of a dotted name; whether there was one."""
    *path, name = option.split(".")
    table: Any = tables
    for part in path:
        table = table.get(part) if isinstance(table, Mapping) else None
    if not isinstance(table, dict) or name not in table or option == "model.arch":
        return False
    del table[name]
    return True


def _added(new: Mapping[str, Any], old: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The options of nested tables that `old` does not have, by dotted name."""
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping):
            yield from _added(value, before if isinstance(before, Mapping) else {}, f"{prefix}{name}.")
        elif name not in old:
            yield f"{prefix}{name}", value
