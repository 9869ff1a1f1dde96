"""Commands that use no network work without importing torch, which takes longer than most of them take to run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import golden_data  # noqa: E402
from golden_cases import scenes  # noqa: E402

from weft.cli.main import main  # noqa: E402
from weft.models.encoder_config import POOLINGS as CONFIG_POOLINGS  # noqa: E402
from weft.models.linear import log_sigmoid, log_softmax  # noqa: E402
from weft.nn import attention, pooling, recurrent  # noqa: E402
from weft.nn import choices as names  # noqa: E402
from weft.nn.mixers import MIXERS  # noqa: E402
from weft.runs.machine import read_machines  # noqa: E402
from weft.runs.resolve import read_config  # noqa: E402
from weft.runs.run_dir import RunDir, read_environment  # noqa: E402
from weft.tasks.lm.scoring import nll_function  # noqa: E402

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
WORDS = 'task = "word-vectors"\n[data]\ntrain = "tales.txt"\n[model]\narch = "ppmi"\nvector_size = 0\n'
SCENES = {scene.name: scene for scene in scenes()}
# a run file of each task; those of models without a network are trained, logistic regression with torch
CHECKED = ("lm-gpt", "bahdanau", "classification-bert", "tagging-lstm", "masked-transformer", "qa-transformer")
TRAINED = ("lm-ngram", "classification-naive-bayes", "classification-logistic-regression", "multilabel-logistic-regression")


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory):
    """A directory with data, run files, runs of models without networks, and a comparison of two of them."""
    folder, before = tmp_path_factory.mktemp("without-torch"), Path.cwd()
    golden_data.make(folder)
    os.chdir(folder)
    try:
        for name in (*CHECKED, *TRAINED, "pairs-logistic-regression"):
            Path(f"{name}.toml").write_text(SCENES[name].run_file, encoding="utf-8")
        Path("words.toml").write_text(WORDS, encoding="utf-8")
        Path("lines.txt").write_text("The soup was good.\n", encoding="utf-8")
        for name in TRAINED:
            assert main(["train", f"{name}.toml", "--output-dir", f"runs/{name}", "-q"]) == 0
        assert main(["compare", *COMPARE, "-q"]) == 0
    finally:
        os.chdir(before)
    return folder


COMPARE = ["runs/classification-naive-bayes", "runs/classification-logistic-regression", "--output-dir", "runs/compared"]
BAYES = ["--set", "model.arch=naive-bayes"]
TRAININGS = {
    "ngram": ["lm-ngram.toml"],
    "add-delta": ["lm-ngram.toml", "--set", "model.smoothing=add-delta"],
    "bayes": ["classification-naive-bayes.toml"],
    "bernoulli": ["classification-naive-bayes.toml", "--set", "model.event_model=bernoulli"],
    "multilabel-bayes": ["multilabel-logistic-regression.toml", *BAYES],
    "pairs-bayes": ["pairs-logistic-regression.toml", *BAYES],
    "ppmi": ["words.toml"],
}


def training(name: str, directory: str = "new") -> list[str]:
    """The command that trains one of TRAININGS in runs/DIRECTORY/NAME, with 3 threads."""
    return ["train", *TRAININGS[name], "--output-dir", f"runs/{directory}/{name}", "--threads", "3", "-q"]


COMMANDS = [
    *(["check", f"{name}.toml", "--json"] for name in (*CHECKED, *TRAINED)),
    ["check", "lm-gpt.toml", "--show-windows", "2"],
    ["init", "classification"],
    ["--help"],
    ["evaluate", "runs/lm-ngram"],
    ["score", "runs/lm-ngram", "--input", "lines.txt"],
    *(["info", f"runs/{name}"] for name in TRAINED),
    *(["predict", f"runs/{name}", "--input", "lines.txt"] for name in TRAINED[1:]),
    *(["evaluate", f"runs/{name}"] for name in TRAINED[1:]),
    ["compare", *COMPARE],
    *(training(name) for name in TRAININGS),
    training("ngram"),  # is finished
]
CHILD = """
import json, sys
from weft.cli.main import main
found = [[main(words), "torch" in sys.modules] for words in json.loads(sys.argv[1])]
print(json.dumps(found))
"""


def child(folder: Path, script: str, *words: str) -> str:
    """The last line of output of a script in a subprocess."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", script, *words], cwd=folder, capture_output=True, text=True, env=environment, check=True
    )
    return done.stdout.rstrip("\n").rpartition("\n")[2]


def test_commands_of_models_without_networks_start_without_torch(work_dir):
    """All in one process: after the first import, torch stays loaded."""
    data = json.loads(child(work_dir, CHILD, json.dumps(COMMANDS)))
    failed = [" ".join(words) for words, item in zip(COMMANDS, data, strict=True) if item != [0, False]]
    assert not failed


def test_training_without_torch_gives_the_same_files(work_dir):
    """As the fixture, which trains with torch loaded. The environment has another number of threads."""
    runs = {"ngram": "lm-ngram", "bayes": "classification-naive-bayes"}
    assert json.loads(child(work_dir, CHILD, json.dumps([training(name, "same") for name in runs]))) == [[0, False]] * 2
    for name, run in runs.items():
        old, new = work_dir / "runs" / run, work_dir / "runs/same" / name
        for file in ("model.safetensors", "metrics.jsonl"):
            assert (new / file).read_bytes() == (old / file).read_bytes()
        assert read_environment(new) == {**read_environment(old), "threads": 3}
        (before,), (after,) = read_machines(old), read_machines(new)
        assert after == before._replace(threads=3)


def test_torch_is_imported_before_the_time_of_training_is_measured(work_dir):
    """By the description of the environment, for the models that say that they need it."""
    for name in TRAINED:
        config = read_config(RunDir(work_dir / "runs" / name))
        assert config.preset.estimator.uses_torch(config) == name.endswith("logistic-regression")
    script = """
from weft.cli.main import main
from weft.tasks.classification import baselines
fit, found = baselines.Baseline.train, []
baselines.Baseline.train = lambda self, job: (found.append("torch" in sys.modules), fit(self, job))
main(json.loads(sys.argv[1]))
print(found)
"""
    words = ["train", "classification-logistic-regression.toml", "--output-dir", "runs/new/logistic-regression", "-q"]
    assert child(work_dir, f"import json, sys{script}", json.dumps(words)) == "[True]"


def test_runs_are_loaded_without_torch(work_dir):
    script = "import sys, weft\nfor name in sys.argv[1:]:\n    weft.load(f'runs/{name}').info()\nprint('torch' in sys.modules)"
    assert child(work_dir, script, *TRAINED) == "False"


def test_probabilities_match_torch():
    scores = np.random.default_rng(0).normal(scale=20, size=(2000, 7))
    scores[0], scores[1] = 0.0, [1000.0, -1000.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    exact = torch.from_numpy(scores)
    np.testing.assert_allclose(log_softmax(scores), exact.log_softmax(1).numpy(), rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(log_sigmoid(scores), torch.nn.functional.logsigmoid(exact).numpy(), rtol=1e-14, atol=1e-15)


def test_config_names_match_the_functions():
    assert tuple(recurrent.NONLINEARITIES) == names.NONLINEARITIES
    assert tuple(attention.ACTIVATIONS) == names.ACTIVATIONS
    assert tuple(pooling.POOLINGS) == names.POOLINGS == CONFIG_POOLINGS


def test_mixer_registry_names_existing_classes():
    for row in MIXERS.values():
        assert isinstance(row.factory, type) and issubclass(row.factory, torch.nn.Module)
        assert (row.bidirectional is None) == (row.bidirectional_factory is None)


def test_ngram_model_accepts_arrays_and_tensors(work_dir, monkeypatch):
    import weft

    monkeypatch.chdir(work_dir)
    model = weft.load("runs/lm-ngram").model
    rows = np.random.default_rng(0).integers(1, model.vocab_size, (3, 12))
    state = None
    for low, high in ((0, 5), (4, 9), (8, 12)):  # each chunk starts with the last token of the previous one
        piece = rows[:, low:high]
        nats, after = nll_function(model, None)(piece, state)
        tensors, expected = model.loss(
            torch.from_numpy(piece[:, :-1]), torch.from_numpy(piece[:, 1:]), None if state is None else torch.from_numpy(state)
        )
        assert nats.dtype == np.float32 and np.array_equal(nats, tensors.numpy())
        assert np.array_equal(after, expected.numpy())
        state = after
