"""Recordings and pictures with their texts, generated with fixed seeds, and the scenes of the tasks that read them.

A recording has a tone per letter, a picture a color on one side. They are written without a library, so that their bytes are
the same on every machine.
"""

from __future__ import annotations

import math
import random
import struct
import wave
import zlib
from pathlib import Path

from golden_cases import Scene, case, run_cases, run_file, run_file_cases

RATE, TONE_SAMPLES = 4000, 480  # Hz; samples of a letter
TONES = {"a": 400, "b": 700, "c": 1100, "d": 1600}  # Hz
COLORS = {"red": (220, 30, 30), "green": (30, 180, 30), "blue": (30, 30, 220)}
SIDE = 16  # pixels
NUM_FILES = 24


def _write_recording(path: Path, letters: str) -> None:
    tones = {letter: [2 * math.pi * TONES[letter] * sample / RATE for sample in range(TONE_SAMPLES)] for letter in letters}
    samples = [round(9000 * math.sin(phase)) for letter in letters for phase in tones[letter]]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(struct.pack(f"<{len(samples)}h", *samples))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _write_picture(path: Path, color: str, *, is_left: bool) -> None:
    """A PNG file without compression: a white picture with half of it colored."""
    half = bytes(COLORS[color]) * (SIDE // 2), b"\xff\xff\xff" * (SIDE // 2)
    row = b"\0" + b"".join(half if is_left else half[::-1])
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(row * SIDE, 0)) + _chunk(b"IEND", b"")
    )


def make(directory: Path) -> None:
    """Write recordings.tsv and pictures.tsv, and their files, to a directory."""
    rng = random.Random(8)
    recordings, pictures = ["path\ttext"], ["path\tcaption"]
    for name in ("recordings", "pictures"):
        (directory / name).mkdir(exist_ok=True)
    for number in range(NUM_FILES):
        letters = "".join(rng.choice("abcd") for _ in range(rng.randint(2, 4)))
        _write_recording(directory / "recordings" / f"{number}.wav", letters)
        recordings.append(f"recordings/{number}.wav\t{letters}")
        color, is_left = rng.choice(list(COLORS)), rng.random() < 0.5
        _write_picture(directory / "pictures" / f"{number}.png", color, is_left=is_left)
        pictures.append(f"pictures/{number}.png\t{color} on the {'left' if is_left else 'right'}")
    (directory / "recordings.tsv").write_text("\n".join(recordings) + "\n", encoding="utf-8")
    (directory / "pictures.tsv").write_text("\n".join(pictures) + "\n", encoding="utf-8")


def _media(name: str, text: str, file: str, pairs: bytes) -> Scene:
    """The commands of a task that reads files; `pairs` are lines with a path and a text."""
    bare, lines = Scene(name, text), b"\n".join(line.partition(b"\t")[0] for line in pairs.split(b"\n"))
    cases = (
        case("predict-n-best", f"predict {bare.run} --beam-size 3 --n-best 2 --json", file),
        case("predict-greedy", f"predict {bare.run} --beam-size 1", file),
        case("predict-alignments", f"predict {bare.run} --save-alignments {name}-alignments --json", file),
        case("score-pairs-json", f"score {bare.run} --json", stdin=pairs),
    )
    return Scene(name, text, cases=(*run_file_cases(bare), *run_cases(bare, file, lines, file), *cases))


def asr(name: str, model: str) -> Scene:
    data = f'train = "recordings.tsv"; valid = 0.2; test = 0.2; sample_rate = {RATE}'
    model += "; num_layers = 1; hidden_size = 16; num_mels = 8; encoder = {subsampling = 4, subsampling_channels = 2}"
    lines = b"recordings/0.wav\tab\n\nmissing.wav\tab\npictures/0.png\ta\nrecordings/1.wav\t\n"
    return _media(name, run_file("asr", data, 'type = "char"', model), "recordings/3.wav", lines)


def captioning(name: str, model: str) -> Scene:
    data, lines = 'train = "pictures.tsv"; valid = 0.2; test = 0.2', b"pictures/0.png\tred on the left\n\nmissing.png\tred\n"
    text = run_file("captioning", data, 'type = "whitespace"', model)
    return _media(name, text, "pictures/3.png", lines + b"recordings/0.wav\tred\n")


def media_scenes() -> list[Scene]:
    """The scenes of the tasks that read files, and their comparisons."""
    small = "hidden_size = 16; max_shift = 1; encoder = {conv_channels = 4}"
    scenes = [
        asr("asr-ctc", 'arch = "lstm"; ctc_weight = 1.0'),
        asr("asr-joint", 'arch = "gru"; ctc_weight = 0.4; attention = "dot"'),
        captioning("captioning-attention", f'arch = "show-attend-tell"; {small}'),
        captioning("captioning-transformer", f'arch = "transformer"; num_layers = 1; num_heads = 2; {small}'),
    ]
    for task, names in {"asr": "asr-ctc asr-joint", "captioning": "captioning-attention captioning-transformer"}.items():
        out, runs = f"compared-{task}", " ".join(f"runs/{name}" for name in names.split())
        compare = case("compare", f"compare {runs} --output-dir {out} --json", files=(f"{out}/comparison.json",))
        ensemble = case("ensemble", f"evaluate {runs.split()[0]} --ensemble {runs.split()[1]} --json")
        scenes.append(Scene(f"compare-{task}", needs=tuple(names.split()), cases=(compare, ensemble)))
    return scenes
