"""Made-up comparison documents in the format of comparison.json, to test the report page."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Document = dict[str, Any]

TEST = "Mean over 2 seeds. CI over seeds and test items. p: difference from the best model (Welch's t-test, Holm-corrected)."
ENVIRONMENT = {
    "weft": "0.3.0",
    "python": "3.11.2",
    "torch": "2.13.0+cpu",
    "system": "Linux-6.1.0-x86_64",
    "cpus": 2,
    "threads": 1,
    "gpu": None,
}
PAIRS = [
    ("Ein Hund läuft über die Wiese.", "A dog runs across the meadow."),
    ("Zwei Männer stehen vor einem blauen Haus.", "Two men stand in front of a blue house."),
    ("Ein kleines Mädchen spielt mit einem roten Ball im Park.", "A little girl plays with a red ball in the park."),
    (
        "Eine Frau in einem grünen Kleid sitzt auf einer Bank und liest ein Buch über die Geschichte der Stadt.",
        "A woman in a green dress sits on a bench and reads a book about the history of the city.",
    ),
    (
        "Mehrere Arbeiter mit gelben Helmen reparieren die Straße, während ein Polizist den Verkehr an der Kreuzung regelt.",
        "Several workers with yellow helmets repair the street while a policeman directs the traffic at the crossing.",
    ),
]


def _score(value: float, margin: float) -> dict[str, float]:
    return {"value": value, "low": value - margin, "high": value + margin}


def _row(name: str, rank: int, score: dict[str, float], scores: dict[str, Any]) -> Document:
    return {
        "name": name,
        "runs": [f"runs/comparison/{name}-{seed}" for seed in (0, 1)],
        "seeds": [0, 1],
        "score": score,
        "scores": scores,
        "p": None,
        "best": False,
        "tied_with_best": False,
        "num_parameters": 400_000 * (rank + 2),
        "seconds": 95.5 + 61.0 * rank,
        "tokens_per_second": 31_000.0 / (rank + 1),
        "peak_memory": 310_000_000 + 90_000_000 * rank,
        "inference_rate": 410.0 / (rank + 1),
        "inference_unit": "lines/s",
        "model_bytes": 1_600_000 * (rank + 2),
    }


def _curve(name: str, seed: int, first: float, last: float, valid: tuple[float, float], scores: tuple[str, str]) -> Document:
    """Curves of a run: the training loss falls from `first` to `last`, the validation score goes from `valid[0]` to
    `valid[1]`."""
    num_points = 60
    random = np.random.default_rng([seed, len(name)])
    steps = np.arange(1, num_points + 1) * 25
    decay = np.exp(-steps / 300)
    losses = last + (first - last) * decay + random.normal(0, 0.03, num_points)
    valid_steps = steps[5::6]
    valid_scores = (
        valid[1] + (valid[0] - valid[1]) * np.exp(-valid_steps / 350) + random.normal(0, 0.01, len(valid_steps)) * abs(valid[1])
    )
    speed = 0.06 + 0.01 * len(name)

    def points_at(steps: np.ndarray, values: np.ndarray) -> list[Document]:
        return [
            {"step": int(step), "tokens": int(step) * 4096, "seconds": round(float(step) * speed, 2), "value": float(value)}
            for step, value in zip(steps, values, strict=True)
        ]

    lines = {"train": points_at(steps, losses), "valid": points_at(valid_steps, valid_scores)}
    return {"name": name, "seed": seed, **lines, "metrics": {"train": scores[0], "valid": scores[1]}}


def _run_file(arch: str, extra: str = "") -> str:
    return (
        'task = "seq2seq"\nseed = 0\n\n[data]\ntrain = ["de-en.tsv"]\nvalid = 0.05\n\n'
        f'[model]\narch = "{arch}"\nhidden_size = 128\ndropout = 0.2\n{extra}\n[train]\nmax_steps = 1500\nbatch_tokens = 4096\n'
    )


SYSTEMS = {  # BLEU on short and on long inputs: without attention, long inputs suffer
    "rnn": (27.0, 4.0),
    "lstm": (33.0, 11.0),
    "lstm,attention": (35.5, 29.0),
    "transformer": (36.5, 33.0),
}
BINS, COUNTS = ["1-5", "6-10", "11-15", "16-20", "21-30", "31+"], [112, 341, 287, 164, 71, 25]


def _translate(reference: str, rank: int, seed: int) -> str:
    """The reference with words removed or repeated, more of them the lower the rank."""
    random = np.random.default_rng([rank, seed])
    words = reference.removesuffix(".").split()
    output = []
    for index, word in enumerate(words):
        quality = random.random() + 0.25 * rank - 0.03 * index
        if quality > 0.2:
            output.append(word)
        elif quality > 0.0:
            output.append(words[max(0, index - 1)])
    return " ".join(output) + "."


def seq2seq_document(items: int = 120) -> Document:
    """Four models with two seeds each; models with attention win on long inputs."""
    rows, curves, names = [], [], list(SYSTEMS)
    values: dict[str, list[float | None]] = {}
    for rank, (name, (short, long)) in enumerate(SYSTEMS.items()):
        values[name] = [round(short + (long - short) * i / (len(BINS) - 1), 2) for i in range(len(BINS))]
        mean = float(np.average([value or 0.0 for value in values[name]], weights=COUNTS))
        rows.append(_row(name, rank, _score(mean, 1.1), {"bleu": _score(mean, 1.1), "chrf": _score(mean + 20, 0.8)}))
        metrics = ("loss", "bleu")
        curves += [_curve(name, seed, 8.5, 3.4 - 0.4 * rank, (0.5, mean + seed * 0.4), metrics) for seed in (0, 1)]
    for row, p in zip(rows, (0.0005, 0.0005, 0.08, None), strict=True):
        row["p"], row["best"], row["tied_with_best"] = p, p is None, p is None or p >= 0.05
    margins = [1.5, 1.2, 1.4, 2.0, 3.1, 5.5]
    examples = []
    for key in range(items):
        source, reference = PAIRS[key % len(PAIRS)]
        outputs = {name: _translate(reference, rank, key) for rank, name in enumerate(names)}
        words = set(reference.split())
        scores = {name: 100 * len(words & set(output.split())) / len(words) for name, output in outputs.items()}
        examples.append({"key": key, "input": source, "reference": reference, "outputs": outputs, "values": scores})
    return {
        "title": "Does attention help on long sentences?",
        "task": "seq2seq",
        "data": "de-en.test.tsv",
        "metric": {"name": "bleu", "better": "higher"},
        "test": TEST,
        "rows": rows,
        "curves": curves,
        "breakdowns": [
            {
                "by": "input length in tokens",
                "metric": {"name": "bleu", "better": "higher"},
                "unit": "items",
                "bins": BINS,
                "counts": COUNTS,
                "values": values,
                "low": {name: [v - m for v, m in zip(values[name], margins, strict=True)] for name in names},
                "high": {name: [v + m for v, m in zip(values[name], margins, strict=True)] for name in names},
                "infinite": {},
            }
        ],
        "item_metric": {"name": "chrf", "better": "higher"},
        "items": examples,
        "confusions": None,
        "samples": {},
        "configs": {
            "rnn": _run_file("rnn"),
            "lstm": _run_file("lstm"),
            "lstm,attention": _run_file("lstm", '\n[model.decoder]\nattention = "bilinear"\n'),
            "transformer": _run_file("transformer", "num_heads = 4\n"),
        },
        "environment": ENVIRONMENT,
        "command": "weft compare run.toml --models rnn,lstm,lstm-attention,transformer --seeds 2 --max-minutes 5",
    }


def lm_document() -> Document:
    """Three language models, one of which gives a word a probability of zero."""
    values = {"ngram": math.inf, "lstm": 1.92, "gpt": 1.71}
    rows, curves = [], []
    for rank, (name, value) in enumerate(values.items()):
        score = {"value": value, "low": None, "high": None} if math.isinf(value) else _score(value, 0.04)
        rows.append(_row(name, rank, score, {"bits_per_char": score, "perplexity": _score(3.0 + rank, 0.2)}))
        rows[-1]["inference_unit"] = "tokens/s"
        if name != "ngram":
            metrics = ("loss", "bits_per_char")
            curves += [_curve(name, seed, 3.2, value - 0.1, (3.0, value), metrics) for seed in (0, 1)]
    point = {"step": 0, "tokens": 1_000_000, "seconds": 1.5, "value": 2.4}
    scores = {"train": "loss", "valid": "bits_per_char"}
    curves.append({"name": "ngram", "seed": 0, "train": [], "valid": [point], "metrics": scores})
    rows[0].update({"seeds": [0], "seconds": None, "tokens_per_second": None, "peak_memory": None})
    rows[2]["best"], rows[2]["tied_with_best"], rows[0]["p"], rows[1]["p"] = True, True, None, 0.0123
    text = "The quick brown fox jumps over the lazy dog, and nobody knows why it would. " * 6
    items = [
        {
            "key": number,
            "input": text[number:],
            "reference": "",
            "outputs": {},
            "values": {"ngram": None if number == 3 else 2.5, "lstm": 1.9 + 0.02 * number, "gpt": 1.7 + 0.01 * number},
            **({"infinite": ["ngram"]} if number == 3 else {}),
        }
        for number in range(30)
    ]
    return {
        "title": "Three language models",
        "task": "lm",
        "data": "tales.txt",
        "metric": {"name": "bits_per_char", "better": "lower"},
        "test": TEST,
        "rows": rows,
        "curves": curves,
        "breakdowns": [
            {
                "by": "training frequency of the token",
                "metric": {"name": "loss", "better": "lower"},
                "unit": "tokens",
                "bins": ["never", "1-9", "10-99", "100-999", "1000+"],
                "counts": [12, 140, 900, 5200, 31000],
                "values": {
                    "ngram": [None, 9.0, 5.2, 3.0, 1.4],
                    "lstm": [14.0, 8.1, 4.8, 2.8, 1.3],
                    "gpt": [12.5, 7.6, 4.4, 2.6, 1.2],
                },
                "low": {"lstm": [12.0, 7.8, 4.7, 2.7, 1.2], "gpt": [11.0, 7.2, 4.3, 2.5, 1.1]},
                "high": {"lstm": [16.0, 8.4, 4.9, 2.9, 1.4], "gpt": [14.0, 8.0, 4.5, 2.7, 1.3]},
                "infinite": {"ngram": [0]},
            }
        ],
        "item_metric": {"name": "bits_per_char", "better": "lower"},
        "items": items,
        "confusions": None,
        "samples": {
            "ngram": ["The the of and a cat\nsat of the.", "When the king of the of"],
            "lstm": ["The king had a daughter, and the daughter had a goose.", "Once upon a time there was a miller"],
            "gpt": [
                "Once upon a time there was a king who had three sons, and the youngest was called Simpleton.\nHe set out."
            ],
        },
        "configs": {
            "ngram": 'task = "lm"\n\n[model]\narch = "ngram"\norder = 5\n',
            "lstm": 'task = "lm"\n\n[model]\narch = "lstm"\nhidden_size = 256\n',
            "gpt": 'task = "lm"\n\n[model]\narch = "gpt"\nhidden_size = 256\nnum_heads = 4\n',
        },
        "environment": ENVIRONMENT,
        "command": "weft compare run.toml --models ngram,lstm,gpt --seeds 2",
    }


def classification_document(count: int = 8) -> Document:
    """Three classifiers of names by language, with confusion matrices."""
    words = ["Arabic", "Chinese", "Czech", "Dutch", "English", "French", "German", "Greek"]
    labels = words[:count] + [f"Language {number}" for number in range(len(words), count)]
    accuracy = {"naive-bayes": 0.62, "lstm": 0.74, "transformer": 0.71}
    rows, matrices, items = [], {}, []
    random = np.random.default_rng(0)
    sizes = [int(size) for size in random.integers(20, 200, count)]
    for rank, (name, correct) in enumerate(accuracy.items()):
        noise = random.dirichlet(np.full(count, 0.3), count) * (1 - correct) + np.eye(count) * correct
        matrices[name] = [random.multinomial(size, probs).tolist() for size, probs in zip(sizes, noise, strict=True)]
        score = 100 * sum(matrices[name][i][i] for i in range(count)) / sum(sizes)
        rows.append(_row(name, rank, _score(score, 1.5), {"accuracy": _score(score, 1.5), "f1_macro": _score(score - 5, 2.0)}))
        rows[-1]["inference_unit"] = "texts/s"
    best = max(rows, key=lambda row: row["score"]["value"])
    for row in rows:
        row["best"], row["tied_with_best"], row["p"] = row is best, row is best, None if row is best else 0.04
    for number in range(40):
        gold = labels[number % count]
        outputs = {name: labels[int(random.integers(count))] if random.random() > 0.5 else gold for name in accuracy}
        values = {name: 100.0 * (output == gold) for name, output in outputs.items()}
        items.append({"key": number, "input": f"Name{number}", "reference": gold, "outputs": outputs, "values": values})
    recall = {name: [100 * matrix[i][i] / sizes[i] for i in range(count)] for name, matrix in matrices.items()}
    return {
        "title": "Where does a name come from?",
        "task": "classification",
        "data": "names.tsv",
        "metric": {"name": "accuracy", "better": "higher"},
        "test": TEST,
        "rows": rows,
        "curves": [
            _curve(name, seed, 2.6, 0.8, (20.0, 100 * correct), ("loss", "accuracy"))
            for name, correct in accuracy.items()
            for seed in (0, 1)
        ],
        "breakdowns": [
            {
                "by": "label",
                "metric": {"name": "f1", "better": "higher"},
                "unit": "items",
                "bins": labels,
                "counts": sizes,
                "values": recall,
                "low": {name: [max(0.0, value - 8.0) for value in recall[name]] for name in recall},
                "high": {name: [min(100.0, value + 8.0) for value in recall[name]] for name in recall},
            }
        ],
        "item_metric": {"name": "accuracy", "better": "higher"},
        "items": items,
        "confusions": {"labels": labels, "matrices": matrices},
        "samples": {},
        "configs": {name: f'task = "classification"\n\n[model]\narch = "{name}"\n' for name in accuracy},
        "environment": ENVIRONMENT,
        "command": "weft compare run.toml --models naive-bayes,lstm,transformer --seeds 2",
    }


def tagging_document() -> Document:
    """Two taggers, without any optional part of a document."""
    document = classification_document()
    names = ["crf", "lstm"]
    for row, name in zip(document["rows"], names, strict=False):
        row["name"] = name
    words, gold = "The dog barks at Anna .", "DT NN VBZ IN NNP ."
    outputs = {"crf": gold, "lstm": "DT NN NNS IN NNP ."}
    item = {"key": 0, "input": words, "reference": gold, "outputs": outputs, "values": {"crf": 100.0, "lstm": 500 / 6}}
    rows = document["rows"][:2]
    rows[0].update({"score": _score(97.1, 0.4), "best": True, "tied_with_best": True, "p": None})
    rows[1].update({"score": _score(96.0, 0.5), "best": False, "tied_with_best": False, "p": 0.011})
    empty: Document = {"curves": [], "breakdowns": [], "confusions": None, "samples": {}, "configs": {}}
    metric = {"name": "token_accuracy", "better": "higher"}
    header = {"title": "Two taggers", "task": "tagging", "metric": metric, "item_metric": metric}
    return {**document, **empty, **header, "rows": rows, "items": [item]}
