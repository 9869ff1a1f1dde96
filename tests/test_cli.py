"""The command line from a user's view: help, training, progress, signals, generation, completion."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import typer
from command_line import expect_error, set_stdin, stream_output

from weft import __version__, files
from weft.cli import display as display_module
from weft.cli.display import Display
from weft.cli.main import ANALYSES, COMMANDS, GROUPS, app, main
from weft.cli.options import COMMON_ORDER
from weft.cli.output import finite, format_count, format_duration
from weft.cli.progress import RunningMean, TrainProgress
from weft.cli.run_file_template import render_template
from weft.cli.threads import cpus, set_threads
from weft.decode.options import GenerationConfig
from weft.metrics.labels import format_score
from weft.models.config import CONNECTIONS, NORMS
from weft.models.encoder_config import TAG_HEADS
from weft.models.seq2seq_config import BRIDGES
from weft.models.smoothing import SMOOTHINGS
from weft.nn.attention import ACTIVATIONS
from weft.nn.choices import ATTENTION_SCORES
from weft.nn.mixers import recurrent_mixers
from weft.nn.pooling import POOLINGS
from weft.runs.resolve import resolve
from weft.tasks.registry import TASKS, find_task
from weft.tasks.templates import find_template
from weft.text.table_layout import columns
from weft.text.term_counts import ANALYZERS
from weft.text.tokenizers import TYPES
from weft.training.config import BUDGETS, OPTIMIZERS
from weft.training.schedules import SCHEDULES

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
ROOT = Path(__file__).parents[1]
NAMES = ["anna", "emma", "hannah", "nora", "noah", "otto", "ada", "bob", "eve", "ava"] * 12
LOG_SECONDS = display_module.LOG_SECONDS
RUN = """
task = "lm"
recommend = false
[data]
train = "names.txt"
valid = 0.1
test = 0.1
read_as = "lines"
[model]
arch = "lstm"
num_layers = 1
hidden_size = 8
[train]
max_steps = 6
batch_tokens = 128
num_validations = 3
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a small run file, its data, and two trained runs."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "names.txt").write_text("\n".join(NAMES) + "\n")
    (folder / "run.toml").write_text(RUN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("OMP_WAIT_POLICY", "PASSIVE")
        patch.chdir(folder)
        assert main(["train", "run.toml", "--quiet"]) == 0
        running = ["--set", "data.read_as=windows", "--set", "data.context_length=16", "--set", "model.arch=transformer"]
        assert main(["train", "run.toml", "--quiet", "--output-dir", "runs/running", *running]) == 0
    return folder


@pytest.fixture
def work_dir(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def counted(work_dir):
    """One more run, fitted without steps."""
    if not (work_dir / "ngram.toml").exists():
        (work_dir / "ngram.toml").write_text(RUN[: RUN.index("[model]")] + '[model]\narch = "ngram"\norder = 3\n')
        assert main(["train", "ngram.toml", "--quiet"]) == 0
    return work_dir


@pytest.fixture(params=["run", "running", "ngram"])
def run(request):
    """Each of the three by its name."""
    request.getfixturevalue("counted" if request.param == "ngram" else "work_dir")
    return request.param


def call(capsys, *words):
    """Exit code, standard output, standard error."""
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


class Terminal(io.StringIO):
    def isatty(self):
        return True


# ---- help, version, completion


def test_version_and_help(capsys):
    assert call(capsys, "--version") == (0, f"weft {__version__}\n", "")
    code, out, err = call(capsys, "--help")
    assert (code, err) == (0, "")
    assert [name for name in COMMANDS if f"\n  {name} " not in out] == []
    assert re.findall(r"^([A-Z].*):$", out, re.MULTILINE) == [*GROUPS, "Options"]
    assert call(capsys) == (0, out, "")
    assert call(capsys, "-h")[1] == out


TITLES = [
    "Arguments",
    "Options",
    "Decoding",
    "Ensemble",
    "Neural cache",
    "Server",
    "Access",
    "Several machines",
    "Input and output",
    "Common options",
]


@pytest.mark.parametrize(
    "command", [*(name for name in COMMANDS if name != "analyze"), *(f"analyze {name}" for name in ANALYSES)]
)
def test_help_lists_the_options_of_the_command_first(command, capsys):
    """Then those of decoding, ensembles and files, and last the common ones."""
    _, out, _ = call(capsys, *command.split(), "--help")
    titles = re.findall(r"^(\S.*):$", out, re.MULTILINE)
    assert titles == [title for title in TITLES if title in titles] and titles[-1] == "Common options"
    common = re.findall(r"--[\w-]+", out.partition("Common options:")[2])
    ordered = ["--device", "--threads", "--json", "--quiet", "--debug", "--help"]
    assert common == [option for option in ordered if option in common]
    assert {"--debug", "--help"} <= set(common)


@pytest.mark.parametrize(("command", "first"), [("evaluate", "--all"), ("score", "--per-token"), ("train", "--set")])
def test_the_most_used_option_is_listed_first(command, first, capsys):
    out = call(capsys, command, "--help")[1]
    assert re.findall(r"--[\w-]+", out.partition("\nOptions:")[2])[0] == first
    assert command == "train" or "\nEnsemble:\n  --ensemble RUN " in out


def test_no_description_in_the_list_of_commands_is_truncated(capsys):
    out = call(capsys, "--help")[1]
    assert "..." not in out.partition("Getting started:")[2] and "weft init lm > run.toml" in " ".join(out.split())
    assert " ".join(call(capsys, "demo", "--help")[1].split()).count("[default: seq2seq]") == 1


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["train", "--help"], ["info", "--json"]])
def test_commands_without_a_model_import_neither_torch_nor_numpy(words):
    _imports_none_of(words, {"torch", "numpy", "tokenizers", "rich"})


def test_init_does_not_import_torch():
    """Its run file is rendered from the task's configuration classes, whose modules import numpy and tokenizers."""
    _imports_none_of(["init", "lm"], {"torch", "rich"})


def _imports_none_of(words, heavy):
    script = (
        "import sys\nfrom weft.cli.main import main\n"
        f"code = main({words!r})\n"
        f"heavy = {heavy!r} & set(sys.modules)\n"
        "sys.exit(f'{code} {heavy}' if code or heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=_environment())
    assert (done.returncode, done.stderr) == (0, "")


def test_help_is_fast(tmp_path):
    """In CPU seconds, with compiled modules as an installed package has them, the best of five, for the machine may be busy;
    on a slow machine, in terms of what its Python needs to import typer alone, which is 0.08 s where weft's help is 0.17 s."""
    words = {"help": ["-m", "weft.cli.main", "--help"], "typer": ["-c", "import typer"]}
    environment = _environment(PYTHONDONTWRITEBYTECODE="", PYTHONPYCACHEPREFIX=str(tmp_path))
    spent = {name: [] for name in words}
    for name in list(words) * 6:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words[name]], capture_output=True, env=environment, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert any(tmp_path.rglob("main.*.pyc"))  # the first of the six compiled
    assert min(spent["help"]) < max(0.3, 3.5 * min(spent["typer"]))


def _environment(**more):
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), **more}


def test_completion(tmp_path):
    def ask(*words, **more):
        command = [sys.executable, "-m", "weft.cli.main", *words]
        return subprocess.run(command, capture_output=True, text=True, env=_environment(**more)).stdout

    for shell, mark in (("bash", "complete -o default"), ("zsh", "#compdef weft"), ("fish", "complete --command weft")):
        script = ask("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
        assert mark in script
    asked = {"_WEFT_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
    assert ask(**asked, COMP_WORDS="weft ev").split() == ["evaluate"]
    asked["COMP_CWORD"] = "4"
    assert ask(**asked, COMP_WORDS="weft init lm --arch ").split() == sorted(find_template("lm").archs)


def options_of_the_app():
    group = typer.main.get_command(app)
    for name, command in group.commands.items():
        for part in getattr(command, "commands", {"": command}).values():
            for param in part.params:
                yield name, param
    for param in group.params:
        yield "", param


def test_every_command_and_option_is_documented():
    manual = (ROOT / "docs" / "reference" / "cli.md").read_text()
    sections = {line.split()[0]: part for part in manual.split("\n## weft ")[1:] for line in [part.partition("\n")[0]]}
    shared = manual.split("## Common options")[1].split("\n## ")[0] + manual.partition("## Common options")[0]
    missing = []
    for name, param in options_of_the_app():
        place = shared if not name or param.name in COMMON_ORDER else sections.get(name, "")
        flags = [flag for flag in param.opts if flag.startswith("-")]
        missing += [f"{name} {flag}" for flag in flags if not re.search(rf"[` ]{flag}[`, ]", place)]
    assert missing == []
    documented = {flag for part in sections.values() for flag in re.findall(r"^\| `(--[a-z-]+)", part, re.MULTILINE)}
    assert documented - {flag for _, param in options_of_the_app() for flag in param.opts} == set()


def test_generate_has_a_flag_for_every_option_with_the_same_default():
    group = typer.main.get_command(app)
    flags = {param.name: param.default for param in group.commands["generate"].params}
    expected = {name: value for name, value in GenerationConfig().model_dump().items() if name != "stop"}
    assert {name: flags[name] for name in expected} == expected
    assert flags["stop"] is None


# ---- init


def uncommented(text):
    """The file with every option that is shown behind a # in force."""
    return re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)


def with_sides(text):
    """The file with the tables in force that show how the two sides can differ."""
    return re.sub(r"^#   (\[|\w+ = )", r"\1", text, flags=re.MULTILINE)


EVERY_ARCH = [(task, arch) for task in TASKS for arch in find_template(task).archs]


def unset(text):
    """The options that a template names without a value."""
    listed = re.findall(r"^# not set: ((?:.|\n# (?![\w\[ ]+(?: = |\])))*)$", text, re.MULTILINE)
    return {name.strip() for names in listed for name in re.split(r", |,?\n# ", names)}


@pytest.mark.parametrize(("task", "arch"), EVERY_ARCH)
def test_a_template_resolves_and_shows_the_defaults(task, arch):
    text = render_template(task, arch)
    values = tomllib.loads(text)
    assert values["model"] == {"arch": arch}
    config = resolve(values, base=Path("/nowhere"))
    assert resolve(tomllib.loads(uncommented(text)), base=Path("/nowhere")) == config
    assert set(tomllib.loads(uncommented(text))["data"]) == set(config.data.model_dump(exclude_none=True))
    assert set(config.spec.data.data_config.model_fields) == {*tomllib.loads(uncommented(text))["data"], *unset(text)} & {
        *config.spec.data.data_config.model_fields
    }
    assert "\n# recommend = true " in text and f"`weft init {task} --data FILE`" in text
    assert max(map(len, text.split("\n"))) <= 120


@pytest.mark.parametrize(("task", "arch"), EVERY_ARCH)
def test_every_option_of_a_template_has_its_description(task, arch):
    lines = [line for line in render_template(task, arch).split("\n") if re.match(r"(# +)?\w+ = ", line)]
    bare = [line for line in lines if "  # " not in line and 'type = "' not in line]
    assert bare == []


@pytest.mark.parametrize("arch", find_template("seq2seq").archs)
def test_a_seq2seq_template_shows_encoder_and_decoder_options(arch):
    text = render_template("seq2seq", arch)
    values = tomllib.loads(with_sides(text))
    assert values["tokenizer"] == {"source": {"type": "char"}, "target": {"type": "whitespace"}}
    assert set(values["model"]) == {"arch", "encoder", "decoder"}
    config, shown = (resolve(tomllib.loads(item), base=Path("/nowhere")) for item in (text, with_sides(text)))
    assert (shown.model, shown.train) == (config.model, config.train)
    stacks = {**config.model.encoder.model_dump(exclude_none=True), **config.model.model_dump(exclude_none=True)}
    assert [name for name in set(stacks) - {"encoder", "decoder"} if f" {name} = " not in text] == []
    assert [name for name in ("label_smoothing", "ema_decay", "num_samples") if f" {name} = " not in text] == []
    assert "monitor" in unset(text)


@pytest.mark.parametrize(("task", "arch"), [pair for pair in EVERY_ARCH if pair[0] != "seq2seq"])
def test_a_template_shows_every_option_that_applies(task, arch):
    text = render_template(task, arch)
    config, shown = (resolve(tomllib.loads(item), base=Path("/nowhere")) for item in (text, with_sides(text)))
    assert shown == config
    options = {**config.model.model_dump(exclude_none=True)}
    inner = {name for value in options.values() if isinstance(value, dict) for name in value}
    if options.get("char_encoder"):  # the other options of a character encoder are those of the tagger
        inner = {"layer_type", "num_layers", "hidden_size", "embedding_dim", "pooling"}
    if config.preset.estimator.by_steps:
        options |= config.train.model_dump(exclude_none=True)
    rare = {"layer_type", "init_strict", "lr_multipliers", *find_template(task).hidden}
    if task != "lm":  # of models that generate text
        rare |= {"num_samples", "sample_prompts", "sample_max_new_tokens"}
    tables = {"features", "char_encoder", "encoder", "decoder"}
    assert [name for name in {*options, *inner} - rare - tables if name not in _shown(text)] == []
    assert "char_encoder" not in options or "[model.char_encoder]" in text or "char_encoder = false" in text
    assert "features" not in options or "[model.features]" in text


def _shown(text):
    """The options that a template shows, behind a # or not."""
    return set(re.findall(r"\b(\w+) = ", text))


def test_templates_name_every_task_arch_and_choice():
    presets = {task: set(shared.presets) for task, shared in ((name, find_task(name)) for name in TASKS)}
    assert {task: set(find_template(task).archs) for task in TASKS} == presets
    network = [*TYPES, *CONNECTIONS, *NORMS, *SCHEDULES, *OPTIMIZERS, *BUDGETS]
    assert [name for name in [*network, *ACTIVATIONS] if name not in render_template("lm", "gpt")] == []
    assert [name for name in SMOOTHINGS if name not in render_template("lm", "ngram")] == []
    pairs = [*network, *ATTENTION_SCORES, *BRIDGES, *recurrent_mixers()]
    assert [name for name in pairs if name not in render_template("seq2seq", "lstm-input-feeding")] == []
    assert [name for name in ACTIVATIONS if name not in render_template("seq2seq", "transformer")] == []
    for task in ("classification", "tagging", "masked-lm", "qa"):
        pooled = POOLINGS if task in ("classification", "tagging") else ()
        encoders = [*network, *ACTIVATIONS, *pooled, *(TAG_HEADS if task == "tagging" else ())]
        assert [name for name in encoders if name not in render_template(task, "transformer")] == []
    assert [name for name in ANALYZERS if name not in render_template("classification", "logistic-regression")] == []


def test_a_task_is_described_before_it_is_imported():
    """Its default architecture is the first that help and completion name, and its description is in completion."""
    assert {name: find_template(name).archs[0] for name in TASKS} == {name: task.arch for name, task in TASKS.items()}
    command = [sys.executable, "-m", "weft.cli.main"]
    asked = _environment(_WEFT_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="weft init ta")
    output = subprocess.run(command, capture_output=True, text=True, env=asked).stdout
    assert '"tagging":"predict a tag for each word of a sentence"' in output


def test_init_prints_the_template(capsys):
    assert call(capsys, "init", "lm") == (0, render_template("lm", "gpt"), "")
    assert call(capsys, "init", "lm", "--arch", "ngram") == (0, render_template("lm", "ngram"), "")
    assert call(capsys, "init", "seq2seq") == (0, render_template("seq2seq", "lstm-input-feeding"), "")
    assert call(capsys, "init", "seq2seq", "--arch", "cho") == (0, render_template("seq2seq", "cho"), "")
    assert call(capsys, "init", "classification") == (0, render_template("classification", "lstm"), "")
    text = render_template("classification", "naive-bayes")
    assert call(capsys, "init", "classification", "--arch", "naive-bayes") == (0, text, "")
    assert call(capsys, "init", "tagging") == (0, render_template("tagging", "lstm"), "")
    assert call(capsys, "init", "qa") == (0, render_template("qa", "transformer"), "")


# ---- train


def test_training_prints_results_and_next_commands(work_dir, capsys):
    code, out, err = call(capsys, "train", "run.toml", "--output-dir", "runs/loud")
    assert (code, out) == (0, "")
    assert err.startswith("Data       names.txt: 120 lines") and "\n           train 80%, valid 10%, test 10%\n" in err
    assert re.search(r"^Tokenizer  char, \d+ tokens\nModel      lstm: 1 layer, hidden size 8, [\d.]+k? parameters\n", err, re.M)
    assert re.search(r"^Training   6 steps of 128 tokens, \w+, cpu float32, 1 thread\n", err, re.MULTILINE)
    assert "\n   step   epoch  train loss  valid loss    time\n" in err
    assert re.search(r"^      2     \d\.\d       \d\.\d{3}       \d\.\d{3}      \ds \*$", err, re.MULTILINE)
    assert re.search(r"^Best valid loss \d\.\d{3} at step \d\nRun saved to runs/loud \(\d+s\)\n", err, re.MULTILINE)
    assert err.endswith('Next: weft evaluate runs/loud\n      weft generate runs/loud "A prompt"\n')


def test_a_finished_run_is_not_trained_again(work_dir, capsys):
    before = files.sha256(work_dir / "runs/run/model.safetensors")
    code, out, err = call(capsys, "train", "run.toml")
    assert (code, out) == (0, "")
    assert err.startswith("runs/run is already trained (6 steps). Use --overwrite to train it again.\nBest valid loss ")
    assert files.sha256(work_dir / "runs/run/model.safetensors") == before


def test_a_damaged_finished_run_is_not_reported_as_finished(work_dir, capsys):
    shutil.copy("run.toml", "cut.toml")
    for name, size in (("model.safetensors", 100), ("tokenizer.json", 50)):
        shutil.copytree("runs/run", "runs/cut", dirs_exist_ok=True)
        os.truncate(f"runs/cut/{name}", size)
        code, line = expect_error(capsys, "train", "cut.toml")
        assert code == 4 and line.startswith(f"runs/cut/{name}: ") and line.endswith("; use --overwrite to train it again")


def test_next_commands_are_quoted_for_the_shell(work_dir, capsys):
    _, _, err = call(capsys, "train", "run.toml", "--output-dir", "runs/it's a run")
    line = err.split("\n")[-3]
    name = "'runs/it'\"'\"'s a run'"
    assert line == f"Next: weft evaluate {name}"
    assert shlex.split(line)[-1] == "runs/it's a run"


def test_a_finished_ngram_run_is_not_fitted_again(counted, capsys):
    code, out, err = call(capsys, "train", "ngram.toml", "--json")
    assert code == 0 and re.fullmatch(r"runs/ngram is already trained.*\. Use --overwrite to train it again\.\n", err)
    assert json.loads(out)["fitted"] is True


def test_overwrite_trains_again_and_json_reports_it(work_dir, capsys):
    code, out, err = call(capsys, "train", "run.toml", "--output-dir", "runs/again", "--json", "--quiet")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert (data["run"], data["done"], data["steps"], data["fitted"]) == ("runs/again", True, 6, False)
    assert data["best"]["name"] == "loss" and data["seconds"] > 0
    code, out, _ = call(capsys, "train", "run.toml", "--output-dir", "runs/again", "--json", "--quiet", "--overwrite")
    assert json.loads(out)["best"] == data["best"]


def test_two_runs_share_a_tokenizer(work_dir, capsys):
    words = ["--output-dir", "runs/shared", "--tokenizer-from", "runs/run", "--set", "train.max_steps=1", "--quiet"]
    assert call(capsys, "train", "run.toml", *words) == (0, "", "")
    hashes = {files.sha256(work_dir / "runs" / name / "tokenizer.json") for name in ("run", "shared")}
    assert len(hashes) == 1


def interrupting(monkeypatch, number, at, times=1):
    """The signal comes in the middle of training, right after a step."""
    step = TrainProgress.on_step

    def step_and_signal(self, loop, loss, seconds):
        step(self, loop, loss, seconds)
        if loop.train_state.step == at:
            for _ in range(times):
                signal.raise_signal(number)

    monkeypatch.setattr(TrainProgress, "on_step", step_and_signal)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_same_command_resumes(work_dir, capfd, monkeypatch, number, code):
    out = f"runs/stopped-{code}"
    with monkeypatch.context() as patch:
        interrupting(patch, number, at=3)
        assert main(["train", "run.toml", "--output-dir", out]) == code
    err = capfd.readouterr().err
    assert "\nSaving ... (press Ctrl-C again to quit without saving)\n" in err
    assert err.endswith(f"\nStopped at step 3. Saved to {out}. Run the same command to resume.\n")
    assert main(["train", "run.toml", "--output-dir", out]) == 0
    assert "resuming at step 3\n" in capfd.readouterr().err
    whole, resumed = (files.sha256(work_dir / path / "model.safetensors") for path in ("runs/run", out))
    assert whole == resumed


def test_a_long_search_shows_progress_and_a_signal_prints_results_so_far(work_dir, capfd, monkeypatch):
    """A mean over the tokens may rise to the last of them, so such a search goes on to --max-new-tokens."""
    search = ["generate", "runs/run", "an", "--beam-size", "3", "--length-penalty", "1", "--n-best", "2"]
    assert main([*search, "--max-new-tokens", "4"]) == 0
    expected = capfd.readouterr().out
    shown = []

    def show(self, phase, fraction, detail=""):
        shown.append((phase, detail))
        if len(shown) == 4:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Display, "show", show)
    assert main([*search, "--max-new-tokens", "1000000"]) == 130
    captured = capfd.readouterr()
    assert captured.out == expected and expected.count("\n") == 2
    assert captured.err == "\nPrinting the best so far ... (press Ctrl-C again to quit)\n"
    assert shown == [("searching", f"{done} of at most 1,000,000 tokens") for done in (1, 2, 3, 4)]


def test_a_signal_during_overwrite_keeps_both_runs(work_dir, capfd, monkeypatch):
    before = (work_dir / "runs/run/model.safetensors").read_bytes()
    shutil.copytree(work_dir / "runs/run", work_dir / "runs/over")
    interrupting(monkeypatch, signal.SIGINT, at=1)
    command = ["train", "run.toml", "--output-dir", "runs/over", "--set", "train.num_validations=1"]
    assert main([*command, "--overwrite"]) == 130
    assert capfd.readouterr().err.endswith(
        "Stopped at step 1. Saved to runs/over. Run the same command without --overwrite to resume. The previous run is in "
        "runs/over/.previous until this one has weights.\n"
    )
    assert (work_dir / "runs/over/.previous/model.safetensors").read_bytes() == before
    monkeypatch.undo()
    monkeypatch.chdir(work_dir)
    assert main(command) == 0
    assert "resuming at step 1\n" in capfd.readouterr().err
    assert not (work_dir / "runs/over/.previous").exists()


def test_a_second_signal_exits_at_once(work_dir, capfd, monkeypatch):
    interrupting(monkeypatch, signal.SIGINT, at=2, times=2)
    left = []
    monkeypatch.setattr(os, "_exit", lambda code: left.append(code))
    assert main(["train", "run.toml", "--output-dir", "runs/twice"]) == 130
    assert left == [130]


def test_a_signal_before_the_first_step_stops_at_once(work_dir, capsys, monkeypatch):
    monkeypatch.setattr(TrainProgress, "on_data", lambda self, summary: signal.raise_signal(signal.SIGTERM))
    code, _, err = call(capsys, "train", "run.toml", "--output-dir", "runs/early")
    assert code == 143
    assert err == "Stopped before the first step. Run the same command to start again.\n"
    before = (work_dir / "runs/run/model.safetensors").read_bytes()
    code, _, err = call(capsys, "train", "run.toml", "--overwrite")
    assert (code, err) == (143, "Stopped before the first step. runs/run is unchanged.\n")
    assert (work_dir / "runs/run/model.safetensors").read_bytes() == before
    shutil.copytree(work_dir / "runs/run", work_dir / "runs/back/.previous")
    shutil.copy(work_dir / "runs/run/resolved.toml", work_dir / "runs/back")
    (work_dir / "runs/back/resolved.toml").write_text(
        (work_dir / "runs/run/resolved.toml").read_text().replace("seed = 0", "seed = 9")
    )
    code, _, err = call(capsys, "train", "run.toml", "--output-dir", "runs/back", "--set", "seed=9")
    assert (code, err) == (143, "Stopped before the first step. The previous run is back in runs/back.\n")
    assert (work_dir / "runs/back/model.safetensors").read_bytes() == before


def test_a_real_process_stops_by_a_real_signal(work_dir):
    command = [
        sys.executable,
        "-m",
        "weft.cli.main",
        "train",
        "run.toml",
        "--output-dir",
        "runs/real",
        "--set",
        "train.max_steps=9999999",
    ]
    environment = _environment(OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
    settings = ["--set", "train.num_validations=999999"]
    with subprocess.Popen([*command, *settings], stderr=subprocess.PIPE, text=True, env=environment) as process:
        for line in process.stderr:
            if line.startswith("   step"):
                break
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(timeout=60) == 143
    assert re.search(r"Stopped at step [\d,]+\. Saved to runs/real\. Run the same command to resume\.\n$", rest)


# ---- evaluate, score, generate, info


def test_evaluate(work_dir, capsys):
    code, out, err = call(capsys, "evaluate", "runs/run")
    assert (code, err) == (0, "")
    assert re.match(
        r"test data: last 10% of names\.txt \(\d+ tokens\)\n\n +value +95% CI\nloss \(nats/token\) +\d\.\d{3} +\[", out
    )
    assert out.count("|tokens:") == 0 and "bits per token" not in out
    everything = call(capsys, "evaluate", "runs/run", "--all", "--signature")[1]
    assert "\nbits per token " in everything and re.search(r"^loss, .*: weft:.*\|tokens:", everything, re.MULTILINE)
    code, out, _ = call(capsys, "evaluate", "runs/run", "--json", "--data", "names.txt", "--context", "reset")
    data = json.loads(out)
    assert data["run"] == "runs/run" and data["data"] == ["names.txt"]
    assert list(data["scores"][0]) == ["name", "value", "low", "high", "signature"]
    assert data["scores"][0]["name"] == "loss" and "|tokens:" in data["scores"][0]["signature"]


def test_evaluate_with_stride_and_with_carry(work_dir, capsys):
    policies = [("stride", "stride:16/16"), ("stride:4", "stride:4/16")]
    for policy, signature in policies:
        code, out, _ = call(capsys, "evaluate", "runs/running", "--context", policy, "--signature")
        assert code == 0 and f"|context:{signature}|" in out


def test_an_infinite_score_is_null_with_a_reason():
    from weft.cli.commands.evaluate import as_json
    from weft.metrics.items import Score
    from weft.metrics.score_table import score_rows

    score = Score("perplexity", float("inf"), 2.0, float("inf"), "s")
    expected = {"name": "perplexity", "value": None, "low": 2.0, "high": None, "infinite": True, "signature": "s"}
    assert as_json(score) == expected
    unbounded = Score("perplexity", 3.0, None, None, "s")
    assert score_rows([score, unbounded]) == [["perplexity", "inf", "[2.00, inf]"], ["perplexity", "3.00", "-"]]


def test_score_reads_standard_input_or_files(work_dir, capsys, monkeypatch):
    set_stdin(monkeypatch, b"\xef\xbb\xbfanna\r\nbob")
    code, out, err = call(capsys, "score", "runs/run")
    assert (code, err) == (0, "")
    assert [line.split("\t")[2] for line in out.split("\n")[:-1]] == ["anna", "bob"]
    log_prob, perplexity, _ = out.split("\n")[0].split("\t")
    assert float(perplexity) == pytest.approx(2.718281828 ** (-float(log_prob) / 5), rel=1e-3)  # 4 letters and the end
    (work_dir / "two.txt").write_text("anna\nbob\n")
    assert call(capsys, "score", "runs/run", "--input", "two.txt")[1] == out


def test_token_scores_add_up_to_the_line_score(capsys, monkeypatch, run):
    set_stdin(monkeypatch, b"anna\n")
    data = json.loads(call(capsys, "score", f"runs/{run}", "--per-token", "--json")[1])
    assert "".join(token["token"] for token in data["tokens"]).removesuffix("</s>") == "anna"
    assert sum(token["surprisal"] for token in data["tokens"]) == pytest.approx(-data["log_prob"], abs=1e-4)
    set_stdin(monkeypatch, b"anna\n")
    lines = call(capsys, "score", f"runs/{run}", "--per-token")[1].split("\n")
    assert [line.split("\t")[0] for line in lines[:4]] == list("anna") and lines[-2:] == ["", ""]


def test_scores_are_streamed_before_the_input_ends(work_dir, monkeypatch):
    """A program that writes a line and waits for its score gets it."""
    counts, out = stream_output(monkeypatch, [b"anna\nbo", b"b\n", b"eve\n"], "score", "runs/run")
    assert counts == [0, 1, 2, 3]
    assert [line.split("\t")[2] for line in out.split("\n")[:-1]] == ["anna", "bob", "eve"]


def test_score_counts_tokens(work_dir, capsys, monkeypatch):
    set_stdin(monkeypatch, b"anna\n\n")
    data = [json.loads(line) for line in call(capsys, "score", "runs/run", "--json")[1].split("\n")[:-1]]
    assert [(line["text"], line["tokens"]) for line in data] == [("anna", 5), ("", 1)]


def test_progress_of_a_long_line_is_cleared_before_the_result(work_dir, capsys, monkeypatch):
    monkeypatch.setattr("weft.tasks.lm.scoring.CHUNK_TOKENS", 40)
    monkeypatch.setattr("weft.cli.display.LOG_SECONDS", 0.0)
    (work_dir / "long.txt").write_text("anna" * 30 + "\nbob\n")
    code, out, err = call(capsys, "score", "runs/run", "--input", "long.txt")
    assert code == 0 and out.count("\n") == 2
    assert [line.split("  ")[:2] for line in err.split("\n")[:-1]] == [
        ["scoring from line 1 on (35%)", "44 of 125 tokens"],
        ["scoring from line 1 on (67%)", "84 of 125 tokens"],
        ["scoring from line 1 on (99%)", "124 of 125 tokens"],
    ]
    assert call(capsys, "score", "runs/run", "--input", "long.txt", "--quiet") == (0, out, "")


@pytest.mark.parametrize("words", [["evaluate"], ["score", "--input", "names.txt"], ["generate", "ann"]])
def test_the_device_can_be_selected(work_dir, capsys, monkeypatch, words):
    command, *others = words
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert call(capsys, command, "runs/run", *others, "--device", "cpu", "--quiet") == call(
        capsys, command, "runs/run", *others, "--quiet"
    )
    assert call(capsys, command, "runs/run", *others, "--device", "cuda") == (
        2,
        "",
        "weft: error: --device: no CUDA GPU found; use 'auto' or 'cpu'\n",
    )
    assert call(capsys, command, "runs/run", *others, "--device", "gpu") == (
        2,
        "",
        "weft: error: --device: unknown device 'gpu'; did you mean 'cuda'?\n",
    )


def test_generate_is_the_same_streamed_or_not(capsys, run):
    words = ["generate", f"runs/{run}", "an", "--max-new-tokens", "8"]
    code, out, err = call(capsys, *words)
    assert (code, err) == (0, "") and out.startswith("an")
    data = json.loads(call(capsys, *words, "--json")[1])
    assert data["run"] == f"runs/{run}" and data["seed"] == 0
    assert [list(result) for result in data["results"]] == [["prompt", "continuations"]]
    assert "an" + data["results"][0]["continuations"][0]["text"] + "\n" == out
    assert call(capsys, *words, "--no-echo")[1] == out.removeprefix("an")


def test_several_continuations(work_dir, capsys, monkeypatch):
    code, out, _ = call(capsys, "generate", "runs/run", "an", "--num-samples", "3", "--max-new-tokens", "5")
    assert code == 0 and out.count("\n") == 3 and all(line.startswith("an") for line in out.split("\n")[:-1])
    out = call(capsys, "generate", "runs/running", "an", "--beam-size", "3", "--n-best", "2", "--max-new-tokens", "5")[1]
    assert out.startswith("--- 1 of 2 ---\nan") and "\n--- 2 of 2 ---\nan" in out
    set_stdin(monkeypatch, b"an\nbo\n")
    out = call(capsys, "generate", "runs/running", "--greedy", "--max-new-tokens", "2")[1]
    assert out.startswith("--- prompt 1, 1 of 1 ---\nan") and "\n--- prompt 2, 1 of 1 ---\nbo" in out


def test_several_temperatures_in_one_command(work_dir, capsys, monkeypatch, run):
    words = ["generate", f"runs/{run}", "an", "--max-new-tokens", "6"]
    code, out, err = call(capsys, *words, "--temperature", "0.5,0,1.5")
    assert (code, err) == (0, "")
    alone = [call(capsys, *words, "--temperature", item)[1] for item in ("0.5", "0", "1.5")]
    assert out == "".join(f"=== temperature {item} ===\n{text}" for item, text in zip(("0.5", "0", "1.5"), alone, strict=True))
    assert alone[1] == call(capsys, *words, "--greedy")[1] and (run == "ngram" or len(set(alone)) > 1)
    data = json.loads(call(capsys, *words, "--temperature", "0.5,1.0", "--num-samples", "2", "--json")[1])
    assert [list(item) for item in data["results"]] == [["temperature", "prompt", "continuations"]] * 2
    assert [(item["temperature"], item["prompt"], len(item["continuations"])) for item in data["results"]] == [
        (0.5, "an", 2),
        (1.0, "an", 2),
    ]
    assert "an" + data["results"][0]["continuations"][0]["text"] + "\n" == alone[0]
    set_stdin(monkeypatch, b"an\nx\xff\nbo\n")
    code, out, err = call(capsys, "generate", f"runs/{run}", "--temperature", "0.5,2", "--max-new-tokens", "3")
    assert (code, err) == (3, "weft: warning: standard input:2: invalid utf-8 (byte 0xff); convert it first; skipped\n")
    assert out.count("=== temperature") == 2 and out.count("an") >= 2


def test_generate_warns_about_unknown_characters(work_dir, capsys, monkeypatch):
    assert call(capsys, "generate", "runs/run", "anna", "--max-new-tokens", "3")[2] == ""
    code, out, err = call(capsys, "generate", "runs/run", "日本an日", "--max-new-tokens", "3")
    assert (code, err) == (0, "weft: warning: 3 tokens are not in the vocabulary, read as <unk>: 日, 本\n") and out.startswith(
        "日本an日"
    )
    assert call(capsys, "generate", "runs/run", "日", "--max-new-tokens", "3", "--quiet")[2] == ""
    set_stdin(monkeypatch, "an\n本\n".encode())
    err = call(capsys, "generate", "runs/run", "--max-new-tokens", "3")[2]
    assert err == "weft: warning: 1 token is not in the vocabulary, read as <unk>: 本\n"


def test_prompts_from_standard_input_a_file_or_none(work_dir, capsys, monkeypatch):
    (work_dir / "prompts.txt").write_text("an\nbo\n")
    set_stdin(monkeypatch, b"an\nbo\n")
    piped = call(capsys, "generate", "runs/run", "-", "--max-new-tokens", "4")[1]
    assert call(capsys, "generate", "runs/run", "--input", "prompts.txt", "--max-new-tokens", "4")[1] == piped
    set_stdin(monkeypatch, b"")
    nothing = call(capsys, "generate", "runs/run", "--max-new-tokens", "4")[1]
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert call(capsys, "generate", "runs/run", "--max-new-tokens", "4")[1] == nothing
    assert call(capsys, "generate", "runs/run", "", "--max-new-tokens", "4")[1] == nothing


def test_an_invalid_prompt_does_not_affect_others(work_dir, capsys, monkeypatch):
    set_stdin(monkeypatch, b"an\nx\nbo\n")
    whole = call(capsys, "generate", "runs/run", "--num-samples", "2", "--max-new-tokens", "4")[1].split("\n")
    set_stdin(monkeypatch, b"an\nx\xff\nbo\n")
    code, out, err = call(capsys, "generate", "runs/run", "--num-samples", "2", "--max-new-tokens", "4")
    assert (code, err) == (3, "weft: warning: standard input:2: invalid utf-8 (byte 0xff); convert it first; skipped\n")
    assert out.split("\n") == [*whole[:2], "", "", *whole[4:]]
    set_stdin(monkeypatch, b"an\n\0\nbo\n")
    code, out, _ = call(capsys, "generate", "runs/run", "--json", "--beam-size", "2", "--max-new-tokens", "4")
    results = json.loads(out)["results"]
    assert code == 3 and [result["prompt"] for result in results] == ["an", None, "bo"]
    assert results[1] == {
        "prompt": None,
        "continuations": [],
        "error": "standard input:2: NUL character; is this binary data?",
    }
    assert len(results[2]["continuations"]) == 1
    (work_dir / "prompts.txt").write_bytes(b"\0\n")
    code, out, err = call(capsys, "generate", "runs/running", "--input", "prompts.txt", "--max-new-tokens", "4")
    assert (code, out, err) == (3, "", "weft: warning: prompts.txt:1: NUL character; is this binary data?; skipped\n")


def test_a_finished_run_replaces_the_previous_one(work_dir, capsys):
    shutil.copytree(work_dir / "runs/run", work_dir / "runs/replaced")
    shutil.copytree(
        work_dir / "runs/run", work_dir / "runs/replaced/.previous"
    )  # killed between its weights and the end of that one
    assert call(capsys, "train", "run.toml", "--output-dir", "runs/replaced")[0] == 0
    assert not (work_dir / "runs/replaced/.previous").exists()


def test_info_of_a_run(work_dir, capsys):
    code, out, err = call(capsys, "info", "runs/run")
    assert (code, err) == (0, "")
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in out.split("\n")[:-1])
    assert rows["Run"] == "runs/run (finished)" and rows["Task"] == "lm"
    assert rows["Data"] == f"train {work_dir / 'names.txt'} (80%), valid 10%, test 10%, read as lines"
    assert re.fullmatch(r"lstm, [\d,]+ parameters", rows["Model"])
    assert re.fullmatch(r"6 of 6 steps, [\d,]+ tokens, \d+s", rows["Training"])
    assert re.fullmatch(r"valid loss \d\.\d{3} at step \d", rows["Best"])
    data = json.loads(call(capsys, "info", "runs/run", "--json")[1])
    assert data["budget"] == {"max_steps": 6} and data["config"]["model"]["hidden_size"] == 8
    assert set(data["bytes"]) >= {"model.safetensors", "checkpoints", "resolved.toml"}


def test_info_of_an_ngram_run_and_of_an_untrained_run(counted, capsys, monkeypatch):
    out = call(capsys, "info", "runs/ngram")[1]
    assert re.search(r"^Training +fitted to \d+ tokens$", out, re.MULTILINE)
    assert re.search(r"^Best +valid loss \d\.\d{3}$", out, re.MULTILINE)
    assert re.search(r"^Model +ngram, [\d,]+ n-grams$", out, re.MULTILINE)
    monkeypatch.setattr(TrainProgress, "on_step", lambda self, loop, loss, seconds: signal.raise_signal(signal.SIGINT))
    assert main(["train", "run.toml", "--output-dir", "runs/new", "--quiet"]) == 130
    out = call(capsys, "info", "runs/new")[1]
    assert "lstm, not trained yet\n" in out and "runs/new (not finished)\n" in out and " 0 of 6 steps\n" in out


def test_info_of_the_system(capsys):
    data = json.loads(call(capsys, "info", "--json")[1])
    assert data["weft"] == __version__ and data["libraries"]["torch"] == torch.__version__
    assert data["cpus"] >= 1 and data["free_memory"] > 0
    assert call(capsys, "info")[1].startswith(f"weft {__version__}\nPython ")


# ---- output


def test_a_closed_output_pipe_is_not_an_error(work_dir):
    source = "anna\n" * 20000
    command = f"{sys.executable} -m weft.cli.main score runs/run | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], input=source.encode(), capture_output=True, env=_environment())
    assert (done.returncode, done.stderr) == (141, b"") and done.stdout.endswith(b"anna\n")


def test_numbers_and_tables():
    assert [format_duration(seconds) for seconds in (0.2, 75.2, 3700, 7500)] == ["0s", "1m15s", "1h02m", "2h05m"]
    assert [format_count(count) for count in (999, 11_700, 3_178_281, 2.16e10)] == ["999", "11.7k", "3.18M", "21.60B"]
    values = {"percent": 88.8889, "loss": 0.23456, "perplexity": 12.3456}
    assert [format_score(value, style) for style, value in values.items()] == ["88.9", "0.235", "12.3"]
    assert [format_score(value, "perplexity") for value in (1.256, 123.4, 12345.678, float("inf"))] == [
        "1.26",
        "123",
        "12,346",
        "inf",
    ]
    assert format_score(None, "loss") == "-"
    assert [finite(value) for value in (1.0, None, float("nan"), float("inf"))] == [1.0, None, None, None]
    assert columns([["a", "1"], ["bb", "22"]]) == "a    1\nbb  22\n"


def test_the_displayed_loss_is_a_mean_from_the_first_step():
    smooth = RunningMean()
    assert smooth.add(4.0) == 4.0
    assert smooth.add(2.0) == pytest.approx((0.95 * 4 + 2) / 1.95)


def shown(stream, shares):
    """What a display writes when a share is reported each second."""
    now = [0.0]
    display = Display(stream=stream, clock=lambda: now[0])
    with display:
        for share in shares:
            display.show("reading", share, "detail")
            now[0] += 1.0
        display.line("a note")
    return stream.getvalue()


def test_without_a_terminal_a_plain_line_is_printed_every_ten_seconds(monkeypatch):
    monkeypatch.setattr(display_module, "LOG_SECONDS", LOG_SECONDS)
    text = shown(io.StringIO(), [second / 100 for second in range(25)])
    assert text == "reading (10%)  detail  ETA 1m30s\nreading (20%)  detail  ETA 1m20s\na note\n"


def test_on_a_terminal_the_line_is_redrawn_and_the_cursor_restored(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    text = shown(Terminal(), [0.0, 0.25, 0.5])
    assert " 50%  reading  detail  ETA 2s" in text and "a note" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[38" not in shown(Terminal(), [0.0, 0.25, 0.5])


def test_a_dumb_terminal_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in shown(Terminal(), [0.1] * 12)
    assert not display_module.is_live(Terminal())


def test_quiet_prints_nothing():
    stream = io.StringIO()
    display = Display(quiet=True, stream=stream)
    display.show("reading", 0.5)
    display.line("a note")
    assert stream.getvalue() == ""


# ---- threads


def test_threads(monkeypatch, capsys, tmp_path):
    before = torch.get_num_threads()
    try:
        assert json.loads(call(capsys, "info", "--json", "--threads", "3")[1])["threads"] == 3
        assert os.environ["OMP_NUM_THREADS"] == "3"
    finally:
        torch.set_num_threads(before)
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.delenv("OMP_WAIT_POLICY")
    set_threads(None)
    assert (os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"]) == (str(cpus()), "PASSIVE")


@pytest.mark.parametrize(("text", "share"), [("50000 100000", 1), ("max 100000", None), ("100000 100000", 1)])
def test_cpu_limits_of_a_container_are_respected(monkeypatch, tmp_path, text, share):
    path = tmp_path / "cpu.max"
    path.write_text(text)
    monkeypatch.setattr("weft.cli.threads.QUOTA", path)
    assert cpus() == (share or len(os.sched_getaffinity(0)))
