"""Questions about short passages that a small network answers after seconds: what is asked for is a name, a place, a colour
or a thing, and a passage may lack it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from weft.config import override

NAMES = ["ada", "ben", "eva", "ian", "kim", "leo", "mia", "ned", "ola", "pam", "ray", "sue", "tom", "una", "vic", "zoe"]
THINGS = ["cat", "dog", "hat", "cup", "pen", "key", "bag", "car", "map", "owl"]
PLACES = ["rome", "oslo", "lima", "cairo", "paris", "delhi"]
COLOURS = ["red", "blue", "green", "black", "white", "pink"]
Row = tuple[str, str, str]  # question, passage, answer


def asked(count: int = 1000, *, seed: int = 0, none: float = 0.2) -> list[Row]:
    """Questions, passages, and answers, which are empty where the passage has none."""
    chance, rows = random.Random(seed), []
    for _ in range(count):
        name = " ".join(chance.sample(NAMES, chance.choice([1, 1, 2])))
        said = {
            "who has it ?": name,
            "where is it ?": chance.choice(PLACES),
            "which colour has it ?": chance.choice(COLOURS),
            "what is it ?": chance.choice(THINGS),
        }
        who, where, colour, what = (one if chance.random() >= none else "" for one in said.values())
        passage = (
            f"{f'{who} has' if who else 'we have'} a {colour or 'new'} {what or 'one'} {f'in {where}' if where else 'today'} ."
        )
        question = chance.choice(list(said))
        rows.append((question, passage, dict(zip(said, (who, where, colour, what), strict=True))[question]))
    return rows


def write_tsv(path: Path, rows: list[Row]) -> Path:
    path.write_text("question\tpassage\tanswer\n" + "".join("\t".join(row) + "\n" for row in rows))
    return path


def squad(rows: list[Row]) -> dict[str, Any]:
    """The same as SQuAD 2.0 has it, an article for each."""
    found = []
    for question, passage, answer in rows:
        answers = [{"text": answer, "answer_start": passage.index(answer)}] if answer else []
        asked_so = {"question": question, "id": str(len(found)), "answers": answers, "is_impossible": not answer}
        found.append({"title": "", "paragraphs": [{"context": passage, "qas": [asked_so]}]})
    return {"version": "v2.0", "data": found}


def write_squad(path: Path, rows: list[Row]) -> Path:
    path.write_text(json.dumps(squad(rows)))
    return path


def span_file(data: Path, kind: str = "lstm", *settings: str) -> dict[str, Any]:
    """A run file for questions, with `--set` applied."""
    values: dict[str, Any] = {
        "task": "qa",
        "seed": 3,
        "data": {"train": str(data), "valid": 0.15, "test": 0.15, "max_length": 64, "doc_stride": 16, "max_answer_length": 4},
        "model": {"arch": kind, "hidden_size": 32, "num_layers": 1 if kind == "lstm" else 2, "dropout": 0.0},
        "train": {
            "max_steps": 150 if kind == "lstm" else 100,
            "batch_tokens": 512,
            "num_validations": 2,
            "ema_decay": 0.9,
            "device": "cpu",
        },
    }
    values["train"] |= {"lr": 0.02 if kind == "lstm" else 0.01, "warmup_ratio": 0.05}
    return override(values, settings)
