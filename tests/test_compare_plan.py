"""Which runs a comparison trains: architectures, grids, budgets, sizes and its directory; and existing runs as rows."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from small_runs import SilentCallback, make_text, run_file, train_here

from weft.comparison import applicable_options as fitting
from weft.comparison import match_params as sizes
from weft.comparison import shared_tokenizer as tokens
from weft.comparison.applicable_options import applicable_options, flatten_options, try_config, with_option
from weft.comparison.architectures import default_archs, describe_choice, parse_models
from weft.comparison.groups import group_runs, is_comparison, open_runs
from weft.comparison.plan import (
    ComparisonOptions,
    Grid,
    Variant,
    begin,
    check_files_exist,
    check_unused,
    directory_name,
    drop_backup,
    parse_count,
    parse_grid,
    plan_runs,
    previous_plan,
    restore_backup,
    restore_on_failure,
    to_toml,
    variants,
    with_absolute_paths,
)
from weft.errors import ConfigError, DataError, InUseError, ModelError, UsageError
from weft.lock import Lock
from weft.runs.job import Job
from weft.runs.resolve import resolve
from weft.runs.run_dir import RunDir
from weft.tasks.prepare import prepare
from weft.tasks.registry import find_task
from weft.text.tokenizers import TokenizerConfig, train_tokenizer
from weft.training.neural import read_training

BASE = Path()
LM: dict[str, Any] = {
    "task": "lm",
    "data": {"train": "text.txt", "valid": 0.1, "read_as": "lines"},
    "model": {"arch": "gpt", "hidden_size": 96, "num_heads": 4, "num_layers": 2, "dropout": 0.2, "position_encoding": "rotary"},
    "train": {"max_steps": 10, "muon_lr": 0.01},
}
PAIRS: dict[str, Any] = {
    "task": "seq2seq",
    "data": {"train": "pairs.tsv"},
    "model": {
        "arch": "bahdanau",
        "hidden_size": 48,
        "attention": "additive",
        "encoder": {"num_layers": 2},
        "decoder": {"hidden_size": 32},
    },
}
LABELS: dict[str, Any] = {
    "task": "classification",
    "data": {"train": "a.tsv"},
    "model": {"arch": "lstm", "hidden_size": 24, "pooling": "last"},
}


def plan_of(*models: str, grid: tuple[str, ...] = (), values: dict[str, Any] = LM, **asked: Any):
    return variants(values, ComparisonOptions(models=models, grid=[parse_grid(text) for text in grid], **asked), base=BASE)


# ---- options


def test_parsing_of_command_line_values():
    assert parse_models("lstm, gru") == ["lstm", "gru"]
    assert parse_grid("model.hidden_size=128,256") == Grid("model.hidden_size", [128, 256])
    assert parse_grid("model.skip_connection = plain, residual") == Grid("model.skip_connection", ["plain", "residual"])
    assert parse_grid("model.num_heads=[2,4],[4,4]") == Grid("model.num_heads", [[2, 4], [4, 4]])
    assert parse_grid("train.lr=1e-3") == Grid("train.lr", [0.001])
    assert [parse_count("--max-tokens", text) for text in ("42", "250k", "1M", "1.5m", "3e5", "2_000")] == [
        42,
        250_000,
        10**6,
        1_500_000,
        300_000,
        2000,
    ]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("hidden_size", "grid: expected OPTION=VALUE,VALUE such as model.hidden_size=128,256, got 'hidden_size'"),
        ("model.hidden_size=", "grid: expected OPTION=VALUE,VALUE such as model.hidden_size=128,256, got 'model.hidden_size='"),
        (
            "data.context_length=1,2",
            "grid: data.context_length: data and tokenizer are shared by all models; use an option of [model] or [train]",
        ),
        ("model.arch=lstm", "grid: model.arch: use `models` to compare architectures"),
        ("train.max_steps=1,2", "grid: train.max_steps: the budget is the same for all models"),
    ],
)
def test_invalid_grids_are_refused(typed, said):
    with pytest.raises(UsageError) as caught:
        parse_grid(typed)
    assert str(caught.value) == said


def test_other_invalid_values_are_refused():
    with pytest.raises(
        UsageError, match=r"^models: expected a comma-separated list such as lstm,gru,transformer, got 'lstm,'$"
    ):
        parse_models("lstm,")
    for text in ("", "0", "-3", "many", "1T", "1e400", "9" * 400):
        with pytest.raises(UsageError) as caught:
            parse_count("match_params", text)
        assert str(caught.value) == f"match_params: expected a count such as 250000, 250k or 1M, got {text!r}"


# ---- kinds


def test_an_architecture_keeps_the_options_that_apply_to_it():
    results = {kind: applicable_options(LM, kind, base=BASE) for kind in find_task("lm").presets}
    assert results["gpt"] == (LM, [])
    assert results["ngram"].values["model"] == {"arch": "ngram"}
    assert set(results["ngram"].ignored) == {
        "model.hidden_size", "model.num_heads", "model.num_layers", "model.dropout", "model.position_encoding", "train.muon_lr"
    }  # fmt: skip
    assert results["lstm"].values["model"] == {"arch": "lstm", "hidden_size": 96, "num_layers": 2, "dropout": 0.2}
    assert set(results["lstm"].ignored) == {"model.num_heads", "model.position_encoding", "train.muon_lr"}
    # its positions are what tells it from a gpt
    assert results["transformer"].values["model"] == {
        "arch": "transformer", "hidden_size": 96, "num_heads": 4, "num_layers": 2, "dropout": 0.2
    }  # fmt: skip
    assert all(item.values["train"]["max_steps"] == 10 for item in results.values())


def test_options_do_not_turn_one_architecture_into_another():
    results = {kind: applicable_options(PAIRS, kind, base=BASE) for kind in find_task("seq2seq").presets}
    assert results["sutskever"].values["model"] == {
        "arch": "sutskever", "hidden_size": 48, "encoder": {"num_layers": 2}, "decoder": {"hidden_size": 32}
    }  # fmt: skip
    assert resolve(results["sutskever"].values, base=BASE).model.attention == "none"
    assert resolve(results["transformer"].values, base=BASE).model.attention == "scaled-dot"
    mixed = with_option(LM, "model", {"arch": "lstm", "layer_type": "gru", "hidden_size": 8})
    assert resolve(applicable_options(mixed, "rnn", base=BASE).values, base=BASE).model.layer_type == "rnn"


@pytest.mark.parametrize("values", [LM, PAIRS, LABELS], ids=lambda values: values["task"])
def test_every_architecture_of_a_task_can_be_derived_from_any_run_file(values):
    for kind in find_task(values["task"]).presets:
        single = applicable_options(values, kind, base=BASE)
        assert resolve(single.values, base=BASE).arch == kind
        # nothing is lost without a word
        given = {f"model.{name}" for name in flatten_options(values["model"])} - {"model.arch"}
        kept = {f"model.{name}" for name in flatten_options(single.values["model"])}
        assert given - kept == {name for name in single.ignored if name.startswith("model.")}


@pytest.mark.parametrize("values", [LM, PAIRS, LABELS], ids=lambda values: values["task"])
def test_applicability_does_not_depend_on_error_messages(values, monkeypatch):
    """The same options are dropped, and the same fault is told first, whatever the words of the errors are."""

    def in_other_words(given: Any, *, base: Path) -> Any:
        try:
            return resolve(given, base=base)
        except ConfigError as error:
            words = hashlib.sha256(str(error).encode()).hexdigest()
            raise ConfigError(error.where, words, is_unknown=error.is_unknown, has_suggestion=error.has_suggestion) from None

    kinds = list(find_task(values["task"]).presets)
    before = [applicable_options(values, kind, base=BASE) for kind in kinds]
    monkeypatch.setattr(fitting, "resolve", in_other_words)
    assert [applicable_options(values, kind, base=BASE) for kind in kinds] == before


def test_run_file_errors_carry_their_option():
    for option, value, fields in (
        ("model.hiden_size", 8, ("model.hiden_size", True, True)),
        ("model.qqqqq", 8, ("model.qqqqq", True, False)),
        ("model.hidden_size", -1, ("model.hidden_size", False, False)),
    ):
        error = try_config(with_option(LM, option, value), base=BASE)
        assert isinstance(error, ConfigError) and (error.where, error.is_unknown, error.has_suggestion) == fields
        assert str(error).startswith(f"{error.where}: {error.problem}")
    assert ConfigError("", "anything else").problem == "anything else"


def test_an_unknown_architecture_is_refused():
    with pytest.raises(ConfigError) as caught:
        plan_of("lstm", "transfomer")
    assert str(caught.value) == "models: unknown architecture 'transfomer'; did you mean 'transformer'?"


def test_a_run_file_error_is_not_an_inapplicable_option():
    with pytest.raises(ConfigError, match=r"^data\.context_lenght: unknown option; did you mean 'context_length'\?"):
        plan_of("lstm", "gru", values=with_option(LM, "data.context_lenght", 8))


# ---- grids


def test_variants():
    result = plan_of("ngram", "lstm", "gpt", grid=("model.hidden_size=32,64", "train.lr=0.1,0.2"))
    assert [variant.name for variant in result.variants] == [
        "ngram",
        *(f"{kind},hidden_size={width},lr={lr}" for kind in ("lstm", "gpt") for width in (32, 64) for lr in (0.1, 0.2)),
    ]
    assert result.variants[4].values["model"]["hidden_size"] == 64 and result.variants[4].values["train"]["lr"] == 0.2
    assert result.failed == []
    assert result.notes[0] == (
        "ngram: ignoring hidden_size, num_heads, num_layers, dropout, position_encoding, train.muon_lr and train.lr"
    )
    assert result.notes[2:] == []
    assert all("seed" not in variant.values for variant in result.variants)


def test_one_option_that_does_not_apply():
    values = {**LM, "model": {"arch": "lstm", "hidden_size": 16}, "train": {}}
    assert plan_of("lstm", "ngram", values=values).notes == ["ngram: ignoring hidden_size"]


@pytest.mark.parametrize(
    ("task", "own", "kinds"),
    [
        ("lm", "gpt", ["gpt", "ngram", "lstm"]),
        ("lm", "gru", ["gru", "ngram", "lstm", "transformer"]),
        ("lm", "ngram", ["ngram", "lstm", "transformer"]),
        ("classification", "lstm", ["lstm", "naive-bayes", "logistic-regression", "transformer"]),
        ("seq2seq", "lstm-input-feeding", ["lstm-input-feeding", "transformer"]),
        ("tagging", "transformer", ["transformer", "lstm"]),
    ],
)
def test_default_architectures(task, own, kinds):
    assert default_archs({"task": task, "model": {"arch": own}}) == kinds


def test_a_run_with_init_from_is_compared_with_baselines_and_says_so():
    values = {"task": "classification", "model": {"arch": "bert"}, "train": {"init_from": "runs/bert"}}
    assert default_archs(values) == ["bert", "naive-bayes", "logistic-regression"]
    assert describe_choice(values, default_archs(values)) == (
        "Comparing bert (from the run file), naive-bayes and logistic-regression (baselines);"
        " set `models` to choose others, or to all for all 10 architectures"
    )


def test_all_architectures_of_the_task():
    result = plan_of("all").variants
    others = ["ngram", "conv", "rnn", "lstm", "gru", "mingru", "minlstm", "transformer"]
    assert [item.name for item in result] == ["gpt", *others]  # its own first
    assert [item.name for item in plan_of("all", values=LABELS).variants][1:3] == ["naive-bayes", "logistic-regression"]


def test_without_models_the_architecture_of_the_run_file():
    assert [variant.name for variant in plan_of(grid=("model.hidden_size=32,64",)).variants] == [
        "gpt,hidden_size=32",
        "gpt,hidden_size=64",
    ]


def test_duplicates_are_two_rows():
    assert [variant.name for variant in plan_of("lstm", "lstm", "gru").variants] == ["lstm", "lstm#2", "gru"]
    result = plan_of("lstm", grid=("model.hidden_size=16,16",)).variants
    assert [variant.name for variant in result] == ["lstm,hidden_size=16", "lstm,hidden_size=16#2"]
    assert result[0].values == result[1].values


def test_an_invalid_grid_value_is_a_refused_row():
    result = plan_of("gpt", grid=("model.num_heads=4,5",))
    assert [variant.name for variant in result.variants] == ["gpt,num_heads=4"]
    assert [(variant.name, variant.code) for variant in result.failed] == [("gpt,num_heads=5", 2)]
    assert (
        result.failed[0].reason == "model.num_heads: hidden_size 96 is not divisible by 5; change one of them or set head_dim"
    )


def test_a_grid_option_that_no_architecture_has_is_refused():
    with pytest.raises(ConfigError, match=r"^grid: model.hiden_size: unknown option; did you mean 'hidden_size'\?"):
        plan_of("lstm", "gpt", grid=("model.hiden_size=1,2",))
    with pytest.raises(ConfigError, match=r"^grid: model.hidden_size: expected an integer, got 'a'$"):
        plan_of("lstm", grid=("model.hidden_size=a,b",))
    with pytest.raises(ConfigError, match=r"^grid: train.lr: not used by ngram$"):
        plan_of("ngram", grid=("train.lr=0.1,0.2",))


@pytest.mark.parametrize(
    ("models", "grid", "arch"),
    [
        ("ngram,lstm", "model.hidden_size=a,b", "lstm"),
        ("lstm,ngram", "model.order=a", "ngram"),
        ("lstm,gpt", "model.num_heads=5,7", "gpt"),
        ("gpt,lstm", "model.num_heads=5,7", "gpt"),
        ("ngram,lstm,gpt", "model.position_encoding=xx", "lstm"),
        ("ngram,lstm", "model.num_heads=2", "lstm"),
    ],
)
def test_a_refused_grid_gives_the_reason_of_an_architecture_that_has_the_option(models, grid, arch):
    with pytest.raises(ConfigError) as caught:
        plan_of(*models.split(","), grid=(grid,))
    assert str(caught.value) == f"grid: {reason(arch, grid)}"


def reason(arch: str, grid: str, values: Any = None) -> str:
    """Why one architecture refuses the first value of a grid."""
    option, choices = parse_grid(grid)
    run_file = applicable_options(LM if values is None else values, arch, base=BASE).values
    error = try_config(with_option(run_file, option, choices[0]), base=BASE)
    assert isinstance(error, ConfigError)
    return str(error)


def test_an_unknown_option_suggests_the_nearest_name_of_any_architecture():
    with pytest.raises(ConfigError, match=r"^grid: model.hiden_size: unknown option; did you mean 'hidden_size'\?"):
        plan_of("ngram", "lstm", grid=("model.hiden_size=1,2",))
    with pytest.raises(ConfigError) as caught:
        plan_of("bahdanau", "transformer", grid=("model.num_heads=5",), values=PAIRS)
    assert str(caught.value) == f"grid: {reason('transformer', 'model.num_heads=5', PAIRS)}"


def test_refused_values_are_distinguished_from_inapplicable_ones():
    result = plan_of("gpt", "transformer", "lstm", grid=("model.num_heads=5,96", "model.num_layers=1,2"))
    assert [variant.name for variant in result.variants] == [
        *(f"transformer,num_heads=96,num_layers={layers}" for layers in (1, 2)),
        *(f"lstm,num_layers={layers}" for layers in (1, 2)),
    ]
    odd = "model.position_encoding: 'rotary' requires an even head size, got 1; change num_heads or set head_dim"
    assert [(variant.name, variant.reason) for variant in result.failed] == [
        ("gpt,num_heads=5", reason("gpt", "model.num_heads=5")),
        ("gpt,num_heads=96", odd),
        ("transformer,num_heads=5", reason("transformer", "model.num_heads=5")),
    ]
    assert all("heads" not in note for note in result.notes if not note.startswith("lstm: "))
    # its positions are 'none', so these are for others
    result = plan_of("lstm", "gpt", grid=("model.position_encoding=rotary,alibi",))
    assert [variant.name for variant in result.variants] == [
        "lstm",
        "gpt,position_encoding=rotary",
        "gpt,position_encoding=alibi",
    ]
    assert result.failed == [] and "position_encoding" in result.notes[0]


def test_hidden_size_of_a_grid_applies_to_encoder_and_decoder():
    result = plan_of("lstm", grid=("model.hidden_size=16,24",), values=PAIRS).variants
    for variant, width in zip(result, (16, 24), strict=True):
        model = resolve(variant.values, base=BASE).model
        assert (model.encoder.hidden_size, model.decoder.hidden_size) == (width, width)


def test_one_budget_for_all_runs():
    for budget in (("tokens", 500), ("minutes", 0.5)):
        result = plan_of("ngram", "lstm", budget=budget).variants
        assert [item.values["train"].get("steps") for item in result] == [None, None]
        assert [item.values["train"][budget[0]] for item in result] == [budget[1]] * 2


# ---- size


@pytest.fixture(scope="module")
def letters():
    return train_tokenizer(TokenizerConfig(type="char"), iter(["a quick brown fox", "jumps over the lazy dog"]))


def parameters(values, letters):
    settings = resolve(values, base=BASE)
    return settings.preset.estimator.num_parameters(settings, letters)


@pytest.mark.parametrize(("kind", "target"), [("conv", 3_000), ("gru", 5_000), ("gpt", 5_000), ("gpt", 300_000)])
def test_no_other_hidden_size_is_nearer_to_the_target_size(letters, kind, target):
    values = applicable_options({**LM, "model": {"arch": "gpt", "num_layers": 2}}, kind, base=BASE).values
    result = sizes.match_num_params(values, target, letters, base=BASE)
    assert resolve(result.values, base=BASE).model.hidden_size == result.hidden_size
    position = sizes.HIDDEN_SIZES.index(result.hidden_size)
    for width in sizes.HIDDEN_SIZES[max(0, position - 8) : position + 9]:
        other = with_option(values, "model.hidden_size", width)
        try:
            count = parameters(other, letters)
        except ConfigError:
            continue
        assert count is not None and abs(count - target) >= abs(result.num_parameters - target)


def test_ngram_models_have_no_target_size(letters):
    assert parameters({**LM, "model": {"arch": "ngram"}, "train": {}}, letters) is None


def test_no_hidden_size_may_reach_the_target_size(letters):
    values = with_option(with_option(LM, "model.num_heads", 97), "model.position_encoding", "none")
    with pytest.raises(ConfigError) as caught:
        sizes.match_num_params(values, 1, letters, base=BASE)
    error = try_config(with_option(values, "model.hidden_size", 128), base=BASE)
    assert str(caught.value) == f"match_params: no hidden size works: {error}"


# ---- the folder


def test_a_plan_is_recognized_and_not_confused_with_another(tmp_path):
    asked = ComparisonOptions(
        models=["lstm"], seeds=2, budget=("tokens", 50), match_params=1000, grid=[Grid("train.lr", [0.1])], tune_trials=4
    )
    begin(tmp_path, to_toml(LM, asked), overwrite=False)
    begin(tmp_path, to_toml(LM, asked), overwrite=False)
    (tmp_path / "lstm-0").mkdir()
    with pytest.raises(UsageError) as caught:
        begin(tmp_path, to_toml(LM, asked._replace(seeds=3, tune_trials=None)), overwrite=False)
    assert str(caught.value) == (
        f"{tmp_path}: contains a comparison with different options (seeds: 2, now 3; tune_trials: 4, now not set); "
        f"choose another `output_dir` or use `overwrite`"
    )
    begin(tmp_path, to_toml(LM, asked._replace(seeds=3)), overwrite=True)
    assert names(tmp_path) == [".previous", "plan.toml"] and names(tmp_path / ".previous") == ["lstm-0", "plan.toml"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_previous_comparison_is_kept_until_the_new_one_is_finished(tmp_path):
    first, second, third = (to_toml(LM, ComparisonOptions(models=["lstm"], seeds=seeds)) for seeds in (1, 2, 3))
    begin(tmp_path, first, overwrite=False)
    plan = (tmp_path / "plan.toml").read_text()
    for name in ("comparison.json", "lstm-0"):
        (tmp_path / name).write_text("of the first")
    before = names(tmp_path)
    for newer in (second, third):  # the one in between was not finished, and is gone
        begin(tmp_path, newer, overwrite=True)
        assert names(tmp_path) == [".previous", "plan.toml"] and names(tmp_path / ".previous") == before
        (tmp_path / "lstm-0").write_text("of another")
    with pytest.raises(UsageError) as caught:
        begin(tmp_path, first, overwrite=False)
    assert str(caught.value) == (
        f"{tmp_path}: contains a comparison with different options (seeds: 3, now 1); choose another `output_dir` or use `overwrite`; "
        f"remove {tmp_path / 'plan.toml'} to restore the backup in {tmp_path / '.previous'}"
    )
    with pytest.raises(KeyboardInterrupt), restore_on_failure(tmp_path, overwrite=False):
        raise KeyboardInterrupt
    assert (tmp_path / "lstm-0").read_text() == "of another"
    with pytest.raises(KeyboardInterrupt), restore_on_failure(tmp_path, overwrite=True):
        begin(tmp_path, second, overwrite=True)
        raise KeyboardInterrupt
    assert names(tmp_path) == before and (tmp_path / "plan.toml").read_text() == plan
    begin(tmp_path, second, overwrite=True)
    (tmp_path / "comparison.json").write_text("of the second")  # and killed just after it
    begin(tmp_path, second, overwrite=False)
    assert names(tmp_path) == ["comparison.json", "plan.toml"]


@pytest.fixture
def replaced(tmp_path) -> Path:
    """The folder of a finished comparison of one seed, and of one of two seeds that is to replace it."""
    begin(tmp_path, to_toml(LM, ComparisonOptions(models=["lstm"])), overwrite=False)
    (tmp_path / "lstm-0").mkdir()
    (tmp_path / "comparison.json").write_text("of the first")
    begin(tmp_path, to_toml(LM, ComparisonOptions(models=["lstm"], seeds=2)), overwrite=True)
    return tmp_path


FIRST = ["comparison.json", "lstm-0", "plan.toml"]


def test_without_a_new_plan_the_previous_comparison_is_restored(replaced):
    (replaced / "plan.toml").unlink()  # as the message says, or killed before it was written
    (replaced / "lstm-1").mkdir()
    begin(replaced, to_toml(LM, ComparisonOptions(models=["lstm"])), overwrite=False)
    assert names(replaced) == FIRST


def test_a_comparison_of_existing_runs_does_not_touch_backups(replaced):
    (replaced / "plan.toml").rename(replaced / "away")
    (replaced / "comparison.json").write_text("of runs")
    drop_backup(replaced)
    assert (replaced / ".previous").exists()
    (replaced / "away").rename(replaced / "plan.toml")
    drop_backup(replaced)
    assert not (replaced / ".previous").exists()


@pytest.mark.parametrize("saved", ["lstm-0/model.safetensors", "tune/lstm-0/checkpoints/000001/train_state.json"])
def test_the_previous_comparison_is_restored_unless_something_was_saved(replaced, saved):
    (replaced / saved).parent.mkdir(parents=True)
    (replaced / saved).touch()
    assert not restore_backup(replaced)
    (replaced / saved).unlink()
    (replaced / saved).parent.rmdir()
    assert restore_backup(replaced) and names(replaced) == FIRST
    assert not restore_backup(replaced)


def test_a_run_in_progress_is_not_backed_up(tmp_path):
    plan, run = to_toml(LM, ComparisonOptions(models=["lstm"])), tmp_path / "lstm-0"
    begin(tmp_path, plan, overwrite=False)
    run.mkdir()
    with Lock(run), pytest.raises(InUseError) as caught:
        check_unused(tmp_path)
    assert str(caught.value).startswith(f"{run}: in use by another process (process ")
    check_unused(tmp_path)


def test_missing_data_does_not_move_the_previous_comparison(tmp_path):
    values = {**LM, "data": {**LM["data"], "test": str(tmp_path / "gone.txt")}}
    with pytest.raises(DataError) as caught:
        check_files_exist({**values, "data": {**values["data"], "train": str(touched(tmp_path / "text.txt"))}})
    assert str(caught.value) == f"{tmp_path / 'gone.txt'}: file not found"


def touched(path: Path) -> Path:
    path.touch()
    return path


@pytest.mark.parametrize("move", range(1, 7))
def test_killed_during_backup_or_restore(tmp_path, monkeypatch, move):
    """At each of three moves there, and three back."""

    class Killed(BaseException):
        pass

    begin(tmp_path, to_toml(LM, ComparisonOptions(models=["lstm"])), overwrite=False)
    for name in FIRST[:2]:
        (tmp_path / name).write_text("of the first")
    moves, rename = iter(range(1, 100)), Path.rename

    def killed(self: Path, to: Path) -> Path:
        if next(moves) == move:
            raise Killed
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(Killed):
        previous_plan(tmp_path).create()
        previous_plan(tmp_path).restore()
    begin(tmp_path, to_toml(LM, ComparisonOptions(models=["lstm"])), overwrite=False)
    assert names(tmp_path) == FIRST


def test_a_half_finished_backup_is_restored(tmp_path):
    begin(tmp_path, to_toml(LM, ComparisonOptions()), overwrite=False)
    (tmp_path / ".previous").mkdir()
    (tmp_path / ".previous" / "lstm-0").write_text("moved")
    (tmp_path / "lstm-1").write_text("not moved")
    begin(tmp_path, to_toml(LM, ComparisonOptions()), overwrite=False)
    assert names(tmp_path) == ["lstm-0", "lstm-1", "plan.toml"]


def test_a_directory_that_is_not_a_comparison_is_not_touched(tmp_path):
    (tmp_path / "thesis.tex").touch()
    for fresh in (False, True):
        with pytest.raises(UsageError) as caught:
            begin(tmp_path, to_toml(LM, ComparisonOptions()), overwrite=fresh)
        assert (
            str(caught.value)
            == f"{tmp_path}: not empty and not a comparison (contains thesis.tex); choose another `output_dir`"
        )


def test_an_unrelated_plan_file_is_not_a_comparison(tmp_path):
    (tmp_path / "plan.toml").write_text('[holidays]\nwhere = "by the sea"\n')
    (tmp_path / "thesis.tex").touch()
    for fresh in (False, True):
        with pytest.raises(UsageError) as caught:
            begin(tmp_path, to_toml(LM, ComparisonOptions()), overwrite=fresh)
        assert (
            str(caught.value)
            == f"{tmp_path}: not empty and not a comparison (contains thesis.tex); choose another `output_dir`"
        )
    assert (tmp_path / "thesis.tex").exists()


def test_a_plan_that_cannot_be_read(tmp_path):
    (tmp_path / "plan.toml").write_text("seeds = ")
    with pytest.raises(ModelError, match=r"plan.toml.*TOML: .*; use `overwrite` to start the comparison over$"):
        begin(tmp_path, to_toml(LM, ComparisonOptions()), overwrite=False)
    begin(tmp_path, to_toml(LM, ComparisonOptions()), overwrite=True)


def test_runs_are_ordered_by_seed(tmp_path):
    result = plan_runs([Variant("lstm", LM), Variant("gru,lr=1/2", LM)], [3, 4], tmp_path)
    assert [item.output_dir.name for item in result] == ["lstm-3", "gru,lr=1_2-3", "lstm-4", "gru,lr=1_2-4"]
    assert [item.values["seed"] for item in result] == [3, 3, 4, 4]
    assert len(directory_name("x" * 300)) == 120
    with pytest.raises(UsageError) as caught:
        plan_runs([Variant("a/b", LM), Variant("a b", LM)], [0], tmp_path)
    assert str(caught.value) == "grid: two variants have the directory a_b; use shorter values"


def test_paths_are_resolved_relative_to_the_run_file(tmp_path):
    result = with_absolute_paths(with_option(LM, "tokenizer", {"file": "tok.json"}), base=tmp_path)
    assert result["data"]["train"] == str(tmp_path / "text.txt") and result["data"]["valid"] == 0.1
    assert result["tokenizer"] == {"file": str(tmp_path / "tok.json")}
    assert "tokenizer" not in with_absolute_paths(LM, base=tmp_path)
    started = with_absolute_paths({**LM, "train": {"init_from": "old"}}, base=tmp_path)
    assert started["train"]["init_from"] == str(tmp_path / "old")


def test_test_files_are_removed_and_fractions_stay():
    assert "test" not in tokens.without_test(with_option(LM, "data.test", "secret.txt"))["data"]
    assert tokens.without_test(with_option(LM, "data.test", 0.1))["data"]["test"] == 0.1


# ---- runs that are there


def make_run(path: Path, values: dict[str, Any]) -> Path:
    path.mkdir(parents=True)
    (path / "resolved.toml").write_text(tomli_w.dumps(resolve(values, base=BASE).to_dict()))
    return path


def small(**options: Any) -> dict[str, Any]:
    return run_file(Path("text.txt"), "lstm", **options)


def test_runs_that_differ_in_their_seed_are_one_row(tmp_path):
    paths = [
        make_run(tmp_path / "b1", small(seed=1)),
        make_run(tmp_path / "b0", small(seed=0)),
        make_run(tmp_path / "wide", small(model__hidden_size=16)),
        make_run(tmp_path / "conv", run_file(Path("text.txt"), "conv")),
    ]
    result = group_runs(open_runs([*paths, tmp_path / "b0"]))
    assert {name: [run.path.name for run in runs] for name, runs in result.items()} == {
        "lstm,hidden_size=8": ["b0", "b1"],
        "lstm,hidden_size=16": ["wide"],
        "conv": ["conv"],
    }


def test_rows_without_a_short_distinguishing_option_are_named_by_directory(tmp_path):
    paths = [make_run(tmp_path / name, small()) for name in ("first", "second")]
    assert list(group_runs(open_runs(paths))) == ["first", "second"]
    other = small(train__lr=0.5, train__weight_decay=0.25, train__max_grad_norm=3.0, train__num_validations=2)
    assert list(group_runs(open_runs([paths[0], make_run(tmp_path / "third", other)]))) == ["first", "third"]
    again = make_run(tmp_path / "again" / "first", small())
    assert list(group_runs(open_runs([paths[0], again]))) == [str(paths[0]), str(again)]


def test_runs_of_different_tasks_or_data_are_refused(tmp_path):
    first = make_run(tmp_path / "a", small())
    gaps = {**small(), "task": "masked-lm", "model": {"arch": "lstm"}}
    second = make_run(tmp_path / "b", gaps)
    with pytest.raises(UsageError) as caught:
        open_runs([first, second])
    assert str(caught.value) == (f"compare: {first} (lm) and {second} (masked-lm) have different tasks")
    other = make_run(
        tmp_path / "c", small(data={"train": "other.txt", "valid": 0.1, "read_as": "windows", "context_length": 16})
    )
    with pytest.raises(UsageError) as caught:
        open_runs([first, other])
    there = f"data.train: {Path('text.txt').absolute()} and {Path('other.txt').absolute()}"
    assert str(caught.value) == (
        f"compare: {first} and {other} have different data ({there}); set `data` to evaluate all of them on the same file"
    )
    assert len(open_runs([first, other], data=True)) == 2
    assert len(open_runs([first, make_run(tmp_path / "d", small(data__context_length=32))])) == 2  # of the same text


def test_a_comparison_is_not_a_run(tmp_path):
    assert not is_comparison(tmp_path)
    (tmp_path / "comparison.json").touch()
    assert is_comparison(tmp_path)


def test_all_architectures_read_the_same_examples_in_the_same_order(tmp_path):
    """Batch by batch, of one seed; of another the order is another."""
    text = make_text(tmp_path / "text.txt")
    values = run_file(text, "lstm", data={"train": str(text), "valid": 0.1, "read_as": "lines"})
    result = variants(values, ComparisonOptions(models=["conv", "lstm", "gpt"]), base=tmp_path).variants
    folder = RunDir(tmp_path / "run")
    folder.path.mkdir()

    def order(variant: Variant, seed: int) -> Any:
        settings = resolve({**variant.values, "seed": seed}, base=tmp_path)
        tokenizer, corpora = prepare(settings.spec, settings, folder, SilentCallback())
        shape: Any = settings.preset.estimator.network_task
        return read_training(shape, Job(settings, folder, tokenizer, corpora, SilentCallback()))[1]

    orders = [order(variant, 1) for variant in result]
    for epoch in (0, 1):
        assert len({item.batches(epoch) for item in orders}) == 1
        for index in range(orders[0].batches(epoch)):
            first, *others = (item.batch(epoch, index).tokens for item in orders)
            assert all(torch.equal(first, other) for other in others)
    first, other = orders[0].batch(0, 0).tokens, order(result[0], 2).batch(0, 0).tokens
    assert first.shape != other.shape or not torch.equal(first, other)


def test_the_tokenizer_is_trained_once(tmp_path):
    text = make_text(tmp_path / "text.txt")
    values = run_file(text, "lstm", data__test="missing.txt")  # nobody reads it
    out = tmp_path / "comparison"
    out.mkdir()
    first = tokens.train_once(out, [values], SilentCallback())
    files = {path.name for path in (out / "tokenizer").iterdir()}
    assert files == {"tokenizer.json", "bos.json", "manifest.json"}
    made = (out / "tokenizer" / "tokenizer.json").stat().st_mtime_ns
    assert tokens.train_once(out, [values], SilentCallback()).hash == first.hash
    assert (out / "tokenizer" / "tokenizer.json").stat().st_mtime_ns == made
    trained = train_here(
        {**run_file(text, "lstm", train__max_steps=1), "tokenizer": tokens.tokenizer_table(out)}, tmp_path / "run"
    )
    assert trained.tokenizer.read_bytes() == (out / "tokenizer" / "tokenizer.json").read_bytes()
