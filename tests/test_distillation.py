"""Knowledge distillation: the loss equals its equation, resumed and ordinary training are unchanged, wrong teachers are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from command_line import expect_error
from label_runs import KEYS, LabelRuns, classification_run_file, single_label_rows, write_tsv
from seq2seq_runs import Seq2SeqRuns, seq2seq_run_file
from small_runs import SilentCallback, flip_bit, make_text, run_file, run_hashes, train_here

import weft
from weft.cli.main import main
from weft.config import override
from weft.errors import ConfigError, TrainingInterrupted, UsageError
from weft.runs.job import with_tokenizer_from
from weft.runs.load import load
from weft.tasks.registry import TASKS
from weft.tensors import read_tensors
from weft.training.distillation import DistillationObjective, MeanTeacher, kl_divergence, smoothed_nll
from weft.training.loop import Loop
from weft.training.objective import Loss

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
WEIGHT, TEMPERATURE, SMOOTHING = 0.3, 2.0, 0.1


class Runs:
    """Teachers of each task, each trained on first use."""

    def __init__(self, directory: Path) -> None:
        self.seq2seq = Seq2SeqRuns(self._subdirectory(directory, "seq2seq"))
        self.labels = LabelRuns(self._subdirectory(directory, "labels"))
        self.directory = self._subdirectory(directory, "lm")
        self.text = make_text(self.directory / "text.txt")

    def _subdirectory(self, directory: Path, name: str) -> Path:
        (directory / name).mkdir()
        return directory / name

    def teachers(self, name: str) -> list[Path]:
        """Two runs that differ in their seed."""
        task, _, kind = name.partition(":")
        return [self._teacher(task, kind, seed) for seed in (3, 5)]

    def _teacher(self, task: str, kind: str, seed: int) -> Path:
        if task == "seq2seq":
            return self.seq2seq.run_dir(kind if seed == 3 else f"{kind}-seed{seed}", f"seed={seed}", "train.max_steps=6")
        out = (self.directory if task == "lm" else self.labels.directory) / f"{kind}-seed{seed}"
        if not out.exists():
            train_here(self.values(f"{task}:{kind}", f"seed={seed}", "train.max_steps=6"), out)
        return out

    def values(self, name: str, *overrides: str) -> dict[str, Any]:
        """The run file of a task, without teachers."""
        task, _, kind = name.partition(":")
        if task == "seq2seq":
            return override(seq2seq_run_file(self.seq2seq.pairs, kind), overrides)
        if task == "lm":
            return override(run_file(self.text, "lstm", data__read_as=kind), overrides)
        return self.labels.values(kind, *overrides)

    def student(self, name: str, *overrides: str) -> dict[str, Any]:
        """The run file of a student of two teachers."""
        paths = json.dumps([str(path) for path in self.teachers(name)])
        distill = [f"train.distill_from={paths}", f"train.distill_weight={WEIGHT}", f"train.distill_temperature={TEMPERATURE}"]
        return override(self.values(name), [*distill, "train.max_steps=4", "train.num_validations=1", *overrides])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


NAMES = ["seq2seq:lstm", "seq2seq:joint", "lm:windows", "lm:lines", "lm:stream", "labels:labels-lstm", "labels:several-lstm"]
NAMES += ["labels:speech-lstm", "labels:spans-lstm"]
# the others are run by `make test-all`
SOME = [
    pytest.param(name, marks=[] if name in ("seq2seq:lstm", "lm:stream", "labels:spans-lstm") else pytest.mark.slow)
    for name in NAMES
]


# ---- the loss


def expected_loss(loop: Loop, teachers: list[Any]) -> float:
    """The loss of the next batch by its equation, with probabilities in float64 and loops over the positions."""
    objective: Any = loop.loss_module.objective.objective  # type: ignore[attr-defined]
    batch = loop.next_batch()
    outputs = objective.outputs(loop.loss_module.model, batch, None)
    if batch._fields[-1] == "soft_labels":
        teacher = batch.soft_labels.double().exp()
    else:
        teacher = sum(objective.outputs(model, batch, None).log_probs.double().exp() for model in teachers) / len(teachers)
    student = outputs.log_probs.double().exp()
    mask = torch.ones(student.shape[:-1], dtype=torch.bool) if outputs.mask is None else outputs.mask
    divergence = 0.0
    for p, q in zip(teacher[mask].flatten(0, -2), student[mask].flatten(0, -2), strict=True):
        p, q = (row ** (1 / TEMPERATURE) / (row ** (1 / TEMPERATURE)).sum() for row in (p, q))
        divergence += sum(float(x * (x / y).log()) for x, y in zip(p, q, strict=True) if x > 0)
    cross_entropy = objective.loss(loop.loss_module.model, batch, None).total
    return (1 - WEIGHT) * float(cross_entropy) + WEIGHT * TEMPERATURE**2 * divergence


@pytest.mark.parametrize("name", SOME)
def test_the_loss_equals_its_equation(runs: Runs, tmp_path: Path, name: str) -> None:
    """For each task, with label smoothing, padding and two teachers."""
    smoothing = [] if "speech" in name or "spans" in name else [f"train.label_smoothing={SMOOTHING}"]
    values, actual = runs.student(name, *smoothing, "train.batch_tokens=80"), list[tuple[float, float]]()
    teachers = [load(path, device="cpu").model for path in runs.teachers(name)]

    def compare(loop: Loop) -> None:
        loop.loss_module.model.eval()  # without dropout, so that both passes are equal
        with torch.no_grad():
            loss = loop.loss_module(loop.next_batch(), None)
            actual.append((float(loss.to_minimize()), expected_loss(loop, teachers)))
        loop.loss_module.model.train()

    train_here(values, tmp_path / "run", SilentCallback(inspect=compare))
    assert len(actual) == 4
    np.testing.assert_allclose(*zip(*actual, strict=True), rtol=2e-5)


def test_cross_entropy_of_log_probs_equals_that_of_torch() -> None:
    logits, targets = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0)), torch.tensor([[0, 1, 6], [2, 2, 5]])
    for smoothing in (0.0, 0.2):
        expected = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), targets, reduction="none", label_smoothing=smoothing
        )
        torch.testing.assert_close(smoothed_nll(logits.log_softmax(-1), targets, smoothing), expected)


def test_the_divergence_of_an_impossible_token_is_finite() -> None:
    teacher = torch.tensor([[0.5, 0.5, 0.0]]).log()
    student = torch.tensor([[0.2, 0.3, 0.5]]).log().requires_grad_()
    divergence = kl_divergence(teacher, student)
    divergence.sum().backward()
    assert divergence.item() == pytest.approx(0.5 * np.log(2.5) + 0.5 * np.log(5 / 3))
    assert torch.allclose(student.grad, torch.tensor([[-0.5, -0.5, 0.0]]))  # type: ignore[arg-type]


class FixedOutputs:
    """An objective whose models are their own log-probabilities."""

    unit, monitors, inner_steps, prepare, augment = "token", (), 0, None, None

    def outputs(self, model: Any, batch: Any, carry: Any) -> Any:
        return model, Loss(torch.zeros(()), torch.ones(()), carry), None


def test_the_teacher_is_the_mean_of_probabilities() -> None:
    probs = torch.tensor([[[0.9, 0.1]], [[0.5, 0.5]], [[0.1, 0.9]]])
    objective: Any = FixedOutputs()
    mean, carry = MeanTeacher(objective, list(probs.log()))(None, None)  # type: ignore[arg-type]
    torch.testing.assert_close(mean.exp(), probs.mean(0))
    assert carry is None


def test_teachers_carry_their_state_over_to_the_next_batch(runs: Runs, tmp_path: Path) -> None:
    """Of two consecutive batches of a stream, the teacher predicts the second as it predicts both at once."""
    model, actual = load(runs.teachers("lm:stream")[0], device="cpu").model, list[torch.Tensor]()

    def compare(loop: Loop) -> None:
        objective: Any = loop.loss_module.objective
        first, second = (loop.batch_sampler.batch(0, index) for index in (0, 1))
        _, carry = objective.teacher(first, None)
        log_probs, _ = objective.teacher(second, carry)
        both = torch.cat([first.tokens, second.tokens[:, 1:]], 1)
        with torch.no_grad():
            expected = model.head(model(both[:, :-1])[0])[:, first.tokens.size(1) - 1 :]
        actual.append(torch.dist(log_probs, expected))
        assert torch.dist(objective.teacher(second, None)[0], expected) > 1e-3

    values = runs.student("lm:stream", f'train.distill_from=["{runs.teachers("lm:stream")[0]}"]', "train.max_steps=1")
    train_here(values, tmp_path / "run", SilentCallback(inspect=compare))
    assert len(actual) == 1 and actual[0] < 1e-4


def test_the_state_of_teachers_is_part_of_the_carried_state(runs: Runs, tmp_path: Path) -> None:
    differences = list[float]()

    def compare(loop: Loop) -> None:
        loop.loss_module.model.eval()
        student, teachers = loop.carry
        batch = loop.next_batch()
        with torch.no_grad():
            with_state, without = (loop.loss_module(batch, (student, state)).penalty for state in (teachers, None))
        differences.append(abs(float(with_state - without)))
        loop.loss_module.model.train()

    train_here(runs.student("lm:stream"), tmp_path / "run", SilentCallback(inspect=compare))
    assert len(differences) == 4 and min(differences) > 1e-5


def test_teachers_are_in_eval_mode_and_get_no_gradients(runs: Runs, tmp_path: Path) -> None:
    teachers = list[Any]()

    def collect(loop: Loop) -> None:
        objective = loop.loss_module.objective
        assert isinstance(objective, DistillationObjective) and isinstance(objective.teacher, MeanTeacher)
        teachers.extend(objective.teacher.models)
        weights = {id(weight) for weight in loop.loss_module.parameters()}
        assert not weights & {id(weight) for model in teachers for weight in model.parameters()}

    train_here(runs.student("seq2seq:lstm"), tmp_path / "run", SilentCallback(inspect=collect))
    assert teachers and not any(model.training for model in teachers)
    assert all(weight.grad is None for model in teachers for weight in model.parameters())
    assert all(weight.requires_grad for weight in load(tmp_path / "run").model.parameters())


@pytest.mark.parametrize("name", ["seq2seq:lstm", "lm:lines", "lm:stream", "labels:labels-lstm", "labels:spans-lstm"])
def test_micro_batches_give_the_same_gradient(runs: Runs, tmp_path: Path, name: str) -> None:
    gradients = list[list[torch.Tensor]]()
    still = ["train.lr=1e-30", "train.weight_decay=0", "train.max_grad_norm=0"]
    no_dropout = ["model.dropout=0"] if name.startswith(("seq2seq", "lm")) else []

    def collect(loop: Loop) -> None:
        if loop.train_state.step == 1:
            loop.summed_gradients(loop.next_batch())
            gradients.append([weight.grad.clone() for weight in loop.optimizers.weights if weight.grad is not None])
            loop.optimizers.zero_grad()

    for count in (1, 3):
        values = runs.student(name, f"train.micro_batches={count}", *still, *no_dropout, "train.batch_tokens=160")
        train_here(values, tmp_path / f"run{count}", SilentCallback(inspect=collect))
    assert len(gradients[0]) == len(gradients[1]) > 3
    for one, several in zip(*gradients, strict=True):
        torch.testing.assert_close(one, several, rtol=1e-4, atol=1e-6)


def test_bfloat16_changes_the_loss_only_slightly(runs: Runs, tmp_path: Path) -> None:
    losses = []
    for precision in ("float32", "bfloat16"):
        callback = SilentCallback()
        train_here(runs.student("seq2seq:lstm", f"train.precision={precision}"), tmp_path / precision, callback)
        losses.append(callback.losses)
    np.testing.assert_allclose(*losses, rtol=0.02)
    assert losses[0] != losses[1]


# ---- training


def tensors_of(run: Path) -> dict[str, torch.Tensor]:
    return read_tensors(run / "model.safetensors")[0]


@pytest.mark.parametrize("name", ["seq2seq:lstm", "labels:labels-lstm"])
def test_weight_0_is_ordinary_training(runs: Runs, tmp_path: Path, name: str) -> None:
    short = ["train.max_steps=4", "train.num_validations=1"]
    train_here(runs.values(name, *short), tmp_path / "plain")
    train_here(runs.student(name, "train.distill_weight=0"), tmp_path / "zero")
    train_here(runs.student(name), tmp_path / "distilled")
    plain, zero, distilled = (tensors_of(tmp_path / run) for run in ("plain", "zero", "distilled"))
    assert all(torch.equal(plain[name], zero[name]) for name in plain)
    assert not all(torch.equal(plain[name], distilled[name]) for name in plain)
    assert not (tmp_path / "zero" / "teachers.json").exists()


@pytest.mark.parametrize("name", ["seq2seq:lstm", "lm:stream", "labels:labels-lstm"])
def test_a_resumed_run_equals_an_uninterrupted_one(runs: Runs, tmp_path: Path, name: str) -> None:
    values = runs.student(name, "train.max_steps=6")
    train_here(values, tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        train_here(values, tmp_path / "cut", SilentCallback(stop_at=3))
    train_here(values, tmp_path / "cut")
    assert run_hashes(tmp_path / "cut") == run_hashes(tmp_path / "whole")


@pytest.mark.slow
def test_a_student_learns_the_distribution_of_its_teacher(runs: Runs, tmp_path: Path) -> None:
    """With weight 1, the student is as uncertain as a teacher that was trained on noisy labels; an ordinary run is not."""
    names, clean = list(KEYS), single_label_rows()
    rows = [(names[(index + index // 3 % 2) % 3], text) for index, (_, text) in enumerate(clean)]  # half of them are wrong
    teacher = tmp_path / "teacher"
    train_here(classification_run_file(write_tsv(tmp_path / "noisy.tsv", rows), "naive-bayes"), teacher)
    steps = ["train.max_steps=60", "train.ema_decay=0"]
    distill = [f'train.distill_from=["{teacher}"]', "train.distill_weight=1.0"]
    train_here(runs.values("labels:labels-lstm", *steps), tmp_path / "plain")
    train_here(runs.values("labels:labels-lstm", *steps, *distill), tmp_path / "student")
    texts = _texts(runs.labels.data["labels"])

    def probabilities(path: Path) -> np.ndarray:
        run = load(path, device="cpu")
        return np.array([[prediction.probabilities[label] for label in run.labels] for prediction in run.predict(texts)])

    expected = probabilities(teacher)
    distances = [np.abs(probabilities(tmp_path / run) - expected).mean() for run in ("plain", "student")]
    assert distances[1] < distances[0] / 2


def test_a_baseline_and_a_network_teach_together(runs: Runs, tmp_path: Path) -> None:
    """The soft labels are the mean of the calibrated probabilities, which `ensemble` predicts."""
    teachers = [runs.labels.run_dir("labels-logistic-regression"), runs.labels.run_dir("labels-lstm")]
    paths = json.dumps([str(path) for path in teachers])
    seen = list[tuple[torch.Tensor, torch.Tensor]]()

    def collect(loop: Loop) -> None:
        batch = loop.next_batch()
        seen.append((batch.tokens, batch.soft_labels))  # type: ignore[attr-defined]

    values = runs.values("labels:labels-gru", f"train.distill_from={paths}", "train.max_steps=2")
    train_here(values, tmp_path / "run", SilentCallback(inspect=collect))
    student, mean = load(tmp_path / "run", device="cpu"), weft.ensemble(teachers, device="cpu")
    tokens, soft_labels = seen[0]
    texts = {tuple(student.vocabulary.tokenizer.encode(text)): text for text in _texts(runs.labels.data["labels"])}
    checked = 0
    for row, log_probs in zip(tokens.tolist(), soft_labels, strict=True):
        ids = tuple(row[1 : row.index(student.vocabulary.tokenizer.eos_id)])
        if student.vocabulary.tokenizer.unk_id not in ids:
            prediction = mean.predict(texts[ids])
            expected = [prediction.probabilities[label] for label in student.labels]
            np.testing.assert_allclose(log_probs.exp(), expected, rtol=1e-4)
            checked += 1
    assert checked > 3


def _texts(path: Path) -> list[str]:
    return [line.split("\t")[1] for line in path.read_text().split("\n")[1:] if line]


# ---- teachers


def teacher_error(values: dict[str, Any], out: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        train_here(values, out)
    return str(caught.value)


def test_a_finished_run_does_not_need_its_teachers(runs: Runs, tmp_path: Path) -> None:
    teacher = tmp_path / "teacher"
    shutil.copytree(runs.teachers("seq2seq:lstm")[0], teacher)
    values = with_tokenizer_from(runs.student("seq2seq:lstm", f'train.distill_from=["{teacher}"]'), teacher)
    train_here(values, tmp_path / "run")
    shutil.rmtree(teacher)
    assert load(tmp_path / "run").predict("abc").text is not None
    assert weft.train(values, output_dir=tmp_path / "run").evaluate()["exact_match"] is not None


def test_resuming_needs_the_teachers(runs: Runs, tmp_path: Path) -> None:
    teacher = tmp_path / "teacher"
    shutil.copytree(runs.teachers("seq2seq:lstm")[0], teacher)
    values = runs.student("seq2seq:lstm", f'train.distill_from=["{teacher}"]', "train.max_steps=6")
    with pytest.raises(TrainingInterrupted):
        train_here(values, tmp_path / "run", SilentCallback(stop_at=3))
    other = runs.teachers("seq2seq:lstm")[1]
    shutil.copy(other / "model.safetensors", teacher / "model.safetensors")
    shutil.copy(other / "resolved.toml", teacher / "resolved.toml")
    shutil.rmtree(teacher / "checkpoints")
    assert "teacher has changed since this run started; restore its model.safetensors" in teacher_error(
        values, tmp_path / "run"
    )
    shutil.rmtree(teacher)
    expected = f"train.distill_from: {teacher}: run directory not found; a run needs its teachers until it is trained"
    assert teacher_error(values, tmp_path / "run").startswith(expected)


def test_damaged_teachers_are_refused(runs: Runs, tmp_path: Path) -> None:
    teacher = tmp_path / "teacher"
    shutil.copytree(runs.teachers("seq2seq:lstm")[0], teacher)
    flip_bit(teacher / "model.safetensors")
    values = runs.student("seq2seq:lstm", f'train.distill_from=["{teacher}"]')
    assert f"train.distill_from: {teacher}/model.safetensors: " in teacher_error(values, tmp_path / "run")
    assert not (tmp_path / "run" / "data").exists()  # before the data was read


def test_teachers_of_another_task_are_refused(runs: Runs, tmp_path: Path) -> None:
    teacher = runs.teachers("lm:lines")[0]
    values = runs.student("seq2seq:lstm", f'train.distill_from=["{teacher}"]')
    assert teacher_error(values, tmp_path / "run") == (
        f"train.distill_from: {teacher} has task 'lm', this run has task 'seq2seq'; use runs of one task"
    )


def test_other_tokenizers_are_refused(runs: Runs, tmp_path: Path) -> None:
    teacher = runs.teachers("seq2seq:lstm")[0]
    values = runs.student("seq2seq:lstm", "tokenizer.target.type=char")
    assert teacher_error(values, tmp_path / "run") == (
        f"train.distill_from: this run and {teacher} do not have the same target tokenizer; "
        "use the tokenizer of the teacher (`tokenizer_from`)"
    )


def test_other_labels_and_tags_are_refused(runs: Runs, tmp_path: Path) -> None:
    for name, other in (("labels-lstm", "several-lstm"), ("speech-lstm", "spans-lstm")):
        teacher = runs.teachers(f"labels:{other}")[0]
        values = runs.values(f"labels:{name}", f'train.distill_from=["{teacher}"]')
        message = teacher_error(values, tmp_path / name)
        assert message.startswith("train.distill_from: ") and str(teacher) in message


def test_language_models_that_read_otherwise_are_refused(runs: Runs, tmp_path: Path) -> None:
    teacher = runs.teachers("lm:lines")[0]
    values = with_tokenizer_from(runs.values("lm:windows", f'train.distill_from=["{teacher}"]'), teacher)
    assert teacher_error(values, tmp_path / "run") == (
        f"train.distill_from: {teacher} reads lines, this run reads running text; set the same data.read_as"
    )


def test_models_without_a_network_cannot_teach_token_models(runs: Runs, tmp_path: Path) -> None:
    teacher = tmp_path / "ngram"
    train_here({**runs.values("lm:lines"), "model": {"arch": "ngram"}, "train": {}}, teacher)
    values = with_tokenizer_from(runs.values("lm:lines", f'train.distill_from=["{teacher}"]'), teacher)
    expected = f"train.distill_from: {teacher} has no network (model.arch = 'ngram'); remove it"
    assert teacher_error(values, tmp_path / "run") == expected


def test_teachers_with_fewer_positions_are_refused(runs: Runs, tmp_path: Path) -> None:
    teacher = runs.seq2seq.run_dir("learned")
    values = override(seq2seq_run_file(runs.seq2seq.pairs), [f'train.distill_from=["{teacher}"]', "data.max_length=20"])
    message = teacher_error(with_tokenizer_from(values, teacher), tmp_path / "run")
    assert message == f"train.distill_from: {teacher} reads at most 16 tokens; set data.max_length = 16"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("labels:labels-naive-bayes", [], "train.distill_from: naive-bayes cannot learn from teachers; use a network"),
        ("lm:lines", ["model={arch='ngram'}"], "train.distill_from: n-gram models cannot learn from teachers; use a network"),
        ("lm:lines", ["task=masked-lm"], "train.distill_from: not available for task 'masked-lm'"),
    ],
)
def test_students_that_cannot_be_distilled(runs: Runs, tmp_path: Path, name: str, options: list[str], message: str) -> None:
    values = override(runs.values(name), ['train.distill_from=["x"]'])
    for option in options:
        key, _, value = option.partition("=")
        values[key] = {"arch": "ngram"} if key == "model" else value
    assert teacher_error(values, tmp_path / "run").startswith(message)


def test_options_need_teachers(runs: Runs, tmp_path: Path) -> None:
    for option in ("distill_weight=0.5", "distill_temperature=2"):
        message = teacher_error(runs.values("seq2seq:lstm", f"train.{option}"), tmp_path / "run")
        assert "not used without distill_from" in message
    assert "distill_from" in teacher_error(runs.values("seq2seq:lstm", "train.distill_from=[]"), tmp_path / "run")


def test_a_teacher_is_not_overwritten(runs: Runs) -> None:
    teacher = runs.teachers("seq2seq:lstm")[0]
    with pytest.raises(UsageError, match="which this run needs"):
        train_here(runs.student("seq2seq:lstm"), teacher, overwrite=True)


# ---- weft distill


def test_the_command_trains_a_student_like_the_first_teacher(runs: Runs, tmp_path: Path, capsys: Any) -> None:
    teachers = [str(path) for path in runs.teachers("seq2seq:lstm")]
    out = str(tmp_path / "student")
    assert main(["distill", *teachers, "-o", out, "--set", "train.max_steps=4", "-q"]) == 0
    student, teacher = load(out, device="cpu"), load(teachers[0], device="cpu")
    assert student.config.train.distill_from == teachers and student.config.train.max_steps == 4
    assert student.config.model == teacher.config.model and student.config.data == teacher.config.data
    assert student.vocabulary.hash == teacher.vocabulary.hash
    assert main(["distill", *teachers, "-o", out, "--set", "train.max_steps=4"]) == 0  # the same command finds it finished
    assert "is already trained" in capsys.readouterr().err
    assert main(["info", out]) == 0
    assert f"Teachers   {', '.join(teachers)}" in capsys.readouterr().out
    assert main(["train", f"{out}/run.toml", "-o", out]) == 0
    assert "is already trained" in capsys.readouterr().err


def test_a_student_of_another_architecture(runs: Runs, tmp_path: Path) -> None:
    teachers = runs.teachers("seq2seq:lstm")
    settings = ["train.max_steps=2", "train.device=cpu", "model.hidden_size=16", "model.num_heads=2"]
    student = weft.distill(teachers, tmp_path / "student", arch="transformer", overrides=settings)
    assert student.arch == "transformer" and student.vocabulary.hash == load(teachers[0]).vocabulary.hash
    assert (student.config.train.distill_weight, student.config.train.distill_temperature) == (0.9, 1.0)


def test_a_student_of_baselines_has_the_default_architecture(runs: Runs, tmp_path: Path) -> None:
    teacher = runs.labels.run_dir("labels-logistic-regression")
    settings = {"train.max_steps": 2, "train": {"device": "cpu"}}
    student = weft.distill([teacher], tmp_path / "student", overrides=settings)
    assert student.arch == TASKS["classification"].arch and student.labels == load(teacher).labels


def test_wrong_arguments(runs: Runs, tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(UsageError, match="got one path"):
        weft.distill(str(runs.teachers("seq2seq:lstm")[0]), tmp_path / "student")
    with pytest.raises(UsageError, match="no runs"):
        weft.distill([], tmp_path / "student")
    code, message = expect_error(capsys, "distill", str(tmp_path / "missing"), "-o", str(tmp_path / "student"))
    assert code == 4 and "run directory not found" in message and not (tmp_path / "student").exists()


@pytest.mark.slow
def test_a_comparison_of_students_and_baselines(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of teachers are relative to the run file; baselines do not use them."""
    monkeypatch.chdir(tmp_path)
    teacher = runs.teachers("labels:labels-lstm")[0]
    values = runs.values("labels:labels-lstm", "train.max_steps=2", f'train.distill_from=["{teacher.name}"]')
    path = teacher.parent / "student.toml"
    path.write_text(tomli_w.dumps(values))
    assert main(["compare", str(path), "--models", "lstm,naive-bayes", "--seeds", "1", "-q", "-o", "comparison"]) == 0
    (student,) = (tmp_path / "comparison").glob("lstm-*")
    assert load(student).config.train.distill_from == [str(teacher)]
