"""Latency of a speech recognizer that reads a stream, and whether its text equals that of the whole file.

    taskset -c 0 python benchmarks/asr_streaming.py RUN FILE... --chunk-ms 40 --threads 1

The audio arrives in chunks, each complete at its last sample. The latency of a position of the encoder is the time from the
first sample that it covers to the moment when its text is known: the rest of its frames, half a window, the wait for the end of
the chunk, and the measured time of all chunks that are still to be processed. With --real-time, chunks are delivered by the
clock; without it, the same latencies are computed from the processing times, in less time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import weft
from weft.cli.threads import set_threads
from weft.runs.run import AnyRun
from weft.tasks.asr.streaming import SpeechStream

LIMIT = 0.3  # seconds after the audio


def recognize(
    stream: SpeechStream, samples: np.ndarray, rate: int, chunk: float, real_time: bool
) -> tuple[str, list[float], list[float]]:
    """The text of a file, the seconds of processing of each chunk, and the latency of each position."""
    text, seconds, latencies, finished, done = "", list[float](), list[float](), 0.0, 0
    per_position = stream.factor * stream.log_mel.log_mel.hop / rate
    size, start = max(1, round(chunk * rate)), time.perf_counter()
    for low in range(0, len(samples), size):
        arrival = min(low + size, len(samples)) / rate
        if real_time:
            time.sleep(max(0.0, start + arrival - time.perf_counter()))
        begin = time.perf_counter()
        text += stream.push(samples[low : low + size])
        seconds.append(time.perf_counter() - begin)
        finished = time.perf_counter() - start if real_time else max(arrival, finished) + seconds[-1]
        latencies += [finished - position * per_position for position in range(done, stream.num_positions)]
        done = stream.num_positions
    return text + stream.finish(), seconds, latencies


def row(name: str, values: Sequence[float]) -> str:
    median, high, most = np.median(values), np.quantile(values, 0.95), np.max(values)
    return f"{name:<34} {1000 * median:8.1f} {1000 * high:8.1f} {1000 * most:8.1f}"


def measure(run: AnyRun, files: Sequence[Path], chunk: float, real_time: bool) -> bool:
    """Print the latencies with chunks of this length; whether all texts are equal and no latency is above the limit."""
    stream, rate = SpeechStream(run), run.config.data.sample_rate
    seconds, latencies, num_equal, total = list[float](), list[float](), 0, 0.0
    stream.push(np.zeros(rate, np.int16))
    stream.finish()  # the first call of a network is slower
    for file in files:
        samples = run.predictor.read_or_raise(str(file))[0].reshape(-1)
        text, times, delays = recognize(stream, samples, rate, chunk, real_time)
        seconds, latencies, total = seconds + times, latencies + delays, total + len(samples) / rate
        num_equal += text == run.predict(str(file), beam_size=1).text
    print(f"chunks of {1000 * chunk:g} ms{' in real time' if real_time else ''}:")
    print(f"{'milliseconds':<34} {'median':>8} {'95%':>8} {'maximum':>8}")
    print(row("processing of a chunk", seconds))
    print(row("latency after the audio", latencies))
    print(f"algorithmic delay {1000 * stream.delay:.1f} ms; {sum(seconds) / total:.3f} s per second of audio")
    print(f"text equal to that of the whole file: {num_equal} of {len(files)}\n")
    return num_equal == len(files) and max(latencies) <= LIMIT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--chunk-ms", type=float, action="append", help="length of a chunk; repeatable (40 and 80)")
    parser.add_argument("--real-time", action="store_true", help="deliver chunks by the clock")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    set_threads(args.threads)
    run = weft.load(args.run, device="cpu")
    results = [measure(run, args.files, chunk / 1000, args.real_time) for chunk in args.chunk_ms or (40.0, 80.0)]
    print(f"limit {LIMIT * 1000:g} ms: {'met' if all(results) else 'MISSED'}")


if __name__ == "__main__":
    main()
