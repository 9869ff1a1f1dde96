"""Toy question answering: who, where, which color or what, about passages of one sentence that may lack the answer. A small
network learns it in seconds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from weft.config import override

NAMES = ["ada", "ben", "eva", "ian", "kim", "leo", "mia", "ned", "ola", "pam", "ray", "sue", "tom", "una", "vic", "zoe"]
THINGS = ["cat", "dog", "hat", "cup", "pen", "key", "bag", "car", "map", "owl"]
PLACES = ["rome", "oslo", "lima", "cairo", "paris", "delhi"]
COLORS = ["red", "blue", "green", "black", "white", "pink"]
Row = tuple[str, str, str]  # question, passage, answer


def make_questions(count: int = 1000, *, seed: int = 0, unanswerable: float = 0.2) -> list[Row]:
    """Rows of question, passage and answer; the answer is empty if the passage has none."""
    rng, rows = random.Random(seed), []
    for _ in range(count):
        name = " ".join(rng.sample(NAMES, rng.choice([1, 1, 2])))
        answers = {
            "who has it ?": name,
            "where is it ?": rng.choice(PLACES),
            "which colour has it ?": rng.choice(COLORS),
            "what is it ?": rng.choice(THINGS),
        }
        who, where, color, what = (answer if rng.random() >= unanswerable else "" for answer in answers.values())
        passage = (
            f"{f'{who} has' if who else 'we have'} a {color or 'new'} {what or 'one'} {f'in {where}' if where else 'today'} ."
        )
        question = rng.choice(list(answers))
        rows.append((question, passage, dict(zip(answers, (who, where, color, what), strict=True))[question]))
    return rows


def write_tsv(path: Path, rows: list[Row]) -> Path:
    path.write_text("question\tpassage\tanswer\n" + "".join("\t".join(row) + "\n" for row in rows))
    return path


def squad(rows: list[Row]) -> dict[str, Any]:
    """The rows in SQuAD 2.0 format, one article per row."""
    articles = []
    for question, passage, answer in rows:
        answers = [{"text": answer, "answer_start": passage.index(answer)}] if answer else []
        qa = {"question": question, "id": str(len(articles)), "answers": answers, "is_impossible": not answer}
        articles.append({"title": "", "paragraphs": [{"context": passage, "qas": [qa]}]})
    return {"version": "v2.0", "data": articles}


def write_squad(path: Path, rows: list[Row]) -> Path:
    path.write_text(json.dumps(squad(rows)))
    return path


def qa_run_file(data: Path, arch: str = "lstm", *overrides: str) -> dict[str, Any]:
    """Run file of a QA model, with `--set` overrides."""
    values: dict[str, Any] = {
        "task": "qa",
        "recommend": False,
        "seed": 3,
        "data": {"train": str(data), "valid": 0.15, "test": 0.15, "max_length": 64, "doc_stride": 16, "max_answer_length": 4},
        "model": {"arch": arch, "hidden_size": 32, "num_layers": 1 if arch == "lstm" else 2, "dropout": 0.0},
        "train": {
            "max_steps": 150 if arch == "lstm" else 100,
            "batch_tokens": 512,
            "num_validations": 2,
            "ema_decay": 0.9,
            "device": "cpu",
        },
    }
    values["train"] |= {"lr": 0.02 if arch == "lstm" else 0.01, "warmup_ratio": 0.05}
    return override(values, overrides)
