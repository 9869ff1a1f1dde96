"""The demo of speech recognition: spoken numbers, with a network that reads forward and one that reads in both directions.

The recordings are synthesized (`formant_synthesis`), one file per speaker, and cut by the manifest. The speakers of the test
data are not in the training data. Words such as "fifteen" and "fifty" differ at their end: one of the networks knows it when it
writes the first letters.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.cli.output import format_count, format_duration, status, write, write_json, write_styled
from weft.text.table_layout import align, columns

if TYPE_CHECKING:
    import numpy as np

    from weft.cli.formant_synthesis import Speaker
    from weft.comparison.results import RunResults
    from weft.explain.speech_alignment import SpeechAlignment

TITLE, METRIC = "Which number was said?", "wer"
INTRO = "Learning to recognize spoken numbers, of synthesized voices: GRUs with CTC that read forward, or in both directions"
SPLITS = {"train": (30, 36), "valid": (6, 10), "test": (10, 20)}  # speakers, and utterances of each
MAX_WORDS = 4  # per utterance
EXAMPLE = "example"  # a test utterance as a file, and the pictures of it
COMMON: dict[str, Any] = {
    "recommend": False,  # the models are trained in a minute each
    "task": "asr",
    "data": {"train": "train.jsonl", "valid": "valid.jsonl", "test": "test.jsonl", "sample_rate": 8000},
    "tokenizer": {"type": "char"},
    "train": {"max_steps": 1000, "batch_tokens": 1024, "lr": 5e-3, "ema_decay": 0.97, "num_validations": 3},
}
MODEL: dict[str, Any] = {
    "arch": "gru",
    "num_layers": 2,
    "hidden_size": 128,
    "dropout": 0.0,
    "num_mels": 40,
    # the synthesizer varies more than augmentation would, and short trainings learn less with it
    "num_freq_masks": 0,
    "num_time_masks": 0,
    "speed_perturbation": [1.0],
}
MODELS: dict[str, dict[str, Any]] = {
    "forward": {"model": {**MODEL, "encoder": {"bidirectional": False, "subsampling_channels": 16}}},
    "bidirectional": {"model": {**MODEL, "encoder": {"bidirectional": True, "subsampling_channels": 16}}},
}

# ---- recordings


def _record(who: Speaker, count: int, rng: np.random.Generator) -> tuple[list[np.ndarray], list[str]]:
    """The utterances of a speaker and their texts."""
    from weft.cli.formant_synthesis import WORDS, speak

    names, sounds, texts = list(WORDS), list[Any](), list[str]()
    for _ in range(count):
        words = [names[index] for index in rng.integers(0, len(names), rng.integers(1, MAX_WORDS + 1))]
        sounds.append(speak(words, who, rng))
        texts.append(" ".join(words))
    return sounds, texts


def write_data(output_dir: Path) -> None:
    """Write a recording for each speaker and the manifests, unless they exist."""
    import numpy as np

    from weft import files
    from weft.cli.formant_synthesis import RATE, speaker
    from weft.media.audio import write_wav
    from weft.runs.run_dir import make_directory

    if all((output_dir / f"{name}.jsonl").exists() for name in SPLITS):
        return
    make_directory(output_dir / "audio")
    for seed, (split, (num_speakers, count)) in enumerate(SPLITS.items()):
        rng, rows = np.random.default_rng(seed), list[str]()
        for number in range(1, num_speakers + 1):
            who = speaker(f"{split}-{number:02d}", rng)
            sounds, texts = _record(who, count, rng)
            path, start = f"audio/{who.name}.wav", 0
            write_wav(output_dir / path, np.concatenate(sounds), RATE)
            for sound, text in zip(sounds, texts, strict=True):
                place = {"audio_filepath": path, "offset": start / RATE, "duration": len(sound) / RATE}
                rows.append(json.dumps({**place, "text": text, "speaker": who.name}) + "\n")
                start += len(sound)
            if split == "test" and number == 1:
                longest = max(range(count), key=lambda index: len(texts[index].split()))
                write_wav(output_dir / f"{EXAMPLE}.wav", sounds[longest], RATE)
                files.write_text(output_dir / f"{EXAMPLE}.txt", texts[longest] + "\n")
        files.write_text(output_dir / f"{split}.jsonl", "".join(rows))


def run_files() -> dict[str, dict[str, Any]]:
    return {name: {**COMMON, **values} for name, values in MODELS.items()}


def compared() -> list[str]:
    return list(run_files())


# ---- results


class Row(NamedTuple):
    """One model of the table; error rates in percent."""

    model: str
    num_parameters: int
    wer: float
    cer: float
    can_stream: bool
    seconds: float  # of training
    output: str  # for the example

    def cells(self, is_best: bool) -> list[str]:
        rates = [f"{rate:.1f}%" for rate in (self.wer, self.cer)]
        streams, seconds = "yes" if self.can_stream else "no", format_duration(self.seconds)
        return [f"{' *' if is_best else '  '} {self.model}", format_count(self.num_parameters), *rates, streams, seconds]


HEAD = ["   model", "params", "word error rate", "character error rate", "streams", "train time"]


def _recognize(output_dir: Path, name: str) -> tuple[str, SpeechAlignment, Path]:
    """The output of a run for the example, when its words were said, and the file with the picture."""
    from weft import files
    from weft.runs.load import load
    from weft.tasks.asr.task import ASR

    prediction = load(output_dir / name, ASR).predict(str(output_dir / f"{EXAMPLE}.wav"), return_alignments=True)
    alignment: SpeechAlignment = prediction.alignment
    path = output_dir / f"{EXAMPLE}-{name}.svg"
    files.write_text(path, alignment.to_svg(f"{name}: {prediction.text}"))
    return prediction.text, alignment, path


def to_row(name: str, results: RunResults, output: str) -> Row:
    """The row of a trained model."""
    scores = {score.name: score.value for score in results.scores}
    can_stream = not MODELS[name]["model"]["encoder"]["bidirectional"]
    cost = results.cost
    return Row(name, cost.num_parameters, scores["wer"], scores["cer"], can_stream, cost.seconds or 0.0, output)


def _times(alignment: SpeechAlignment) -> str:
    return "  ".join(f"{word.word} {word.start:.2f}-{word.end:.2f}" for word in alignment.words)


def show(output_dir: Path, results: Mapping[str, RunResults], *, json: bool, quiet: bool) -> None:
    """Print a table of the models, and the words of a test utterance with their times."""
    outputs = {name: _recognize(output_dir, name) for name in results}
    rows = [to_row(name, run, outputs[name][0]) for name, run in results.items()]
    reference, report = (output_dir / f"{EXAMPLE}.txt").read_text(encoding="utf-8").strip(), output_dir / "report.html"
    if json:
        pictures = {name: str(path) for name, (_, _, path) in outputs.items()}
        example = {"file": str(output_dir / f"{EXAMPLE}.wav"), "text": reference, "pictures": pictures}
        models = [row._asdict() for row in rows]
        write_json({"models": models, "example": example, "data": str(output_dir), "report": str(report)})
        return
    best = min(rows, key=lambda row: row.wer)
    head, *lines = align([HEAD, *(row.cells(row is best) for row in rows)])
    write_styled([("", ""), (head, "bold"), *((line, "") for line in lines), ("", "")])
    speakers, count = SPLITS["test"]
    write(f" * best model on {speakers * count:,} utterances of {speakers} speakers that no model has heard\n")
    answers = [["  said", reference], *([f"  {row.model}", row.output] for row in rows)]
    write(f"\nA test utterance ({output_dir / EXAMPLE}.wav):\n" + columns(answers, left=2))
    times = [[f"  {name}", _times(alignment)] for name, (_, alignment, _) in outputs.items()]
    write("\nWhen its words were recognized, in seconds (a network that reads forward needs to hear a word first):\n")
    write(columns(times, left=2))
    paths = "".join(f"  {path}\n" for _, _, path in outputs.values())
    write(f"\nPictures: the spectrogram, the words, and what the network predicts at each moment:\n{paths}")
    forward, sound = shlex.quote(str(output_dir / "forward")), shlex.quote(f"{output_dir / EXAMPLE}.wav")
    status(
        f"\nReport: {report}\nNext: weft predict {forward} --stream < {sound}\n      weft init asr > run.toml",
        quiet=quiet,
    )
