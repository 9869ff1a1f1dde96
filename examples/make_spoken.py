"""Write spoken digits of synthesized voices: python examples/make_spoken.py [--output-dir DIR] [--times N]

spoken.zip   recordings of 8 bits at 8,000 Hz, one to two digits each
spoken.tsv   path in the archive, text, speaker
spoken.wav   the last recording, of 16 bits

The last speakers are valid and test data if a run file takes fractions: no model has heard them.
"""

from __future__ import annotations

import argparse
import io
import wave
import zipfile
from pathlib import Path

import numpy as np
from _shared import DATA

from weft.cli.formant_synthesis import RATE, WORDS, speak, speaker
from weft.media.audio import write_wav

SPEAKERS, UTTERANCES = 16, 12
NOISE = (20.0, 35.0)  # dB
DIGITS = list(WORDS)[:10]


def wav(sound: np.ndarray) -> bytes:
    """A WAV file of 8 bits."""
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(RATE)
        file.writeframes(np.clip(np.rint(sound * 127 + 128), 0, 255).astype(np.uint8).tobytes())
    return data.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=DATA, help="output directory (examples/data)")
    parser.add_argument("--times", type=int, default=1, help="multiply the number of speakers (1)")
    args = parser.parse_args()
    rng, rows = np.random.default_rng(1), ["path\ttext\tspeaker\n"]
    args.output_dir.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(args.output_dir / "spoken.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for number in range(1, SPEAKERS * args.times + 1):
            who = speaker(f"s{number:02d}", rng)
            for utterance in range(1, UTTERANCES + 1):
                words = [DIGITS[index] for index in rng.integers(0, len(DIGITS), rng.integers(1, 3))]
                name = f"{who.name}-{utterance:02d}.wav"
                entry = zipfile.ZipInfo(name)  # without the time of day, so that the same data is the same file
                entry.compress_type = zipfile.ZIP_DEFLATED
                sound = speak(words, who, rng, noise=NOISE)
                archive.writestr(entry, wav(sound))
                rows.append(f"{name}\t{' '.join(words)}\t{who.name}\n")
    write_wav(args.output_dir / "spoken.wav", sound, RATE)
    (args.output_dir / "spoken.tsv").write_bytes("".join(rows).encode())


if __name__ == "__main__":
    main()
