"""The recurrence of minGRU and minLSTM on a CPU, one thread: the loop over positions against chunks, in CPU milliseconds.

    python benchmarks/scan_speed.py

The smallest of 5 runs of the forward scan in float32. `weft.nn.scan` takes chunks where they are faster here.
"""

from __future__ import annotations

import time
from unittest.mock import patch

import torch

from weft.cli.threads import set_threads
from weft.nn import scan

VALUES, LENGTHS, RUNS = (64, 512, 1024, 2048, 8192, 32_768), (64, 128, 256, 1024), 5  # rows times hidden size; positions
MAX_VALUES = 1 << 23


def milliseconds(chunked: bool, a: torch.Tensor, b: torch.Tensor) -> float:
    """Of CPU time."""
    with patch.object(scan, "is_chunked", lambda length, width: chunked):
        times = []
        for _ in range(RUNS + 1):
            start = time.process_time()
            scan.linear_scan(a, b, b[:, 0])
            times.append(time.process_time() - start)
    return 1e3 * min(times[1:])


def main() -> None:
    set_threads(1)
    torch.manual_seed(0)
    print("values per position, positions: loop, chunks; loop / chunks")
    for values in VALUES:
        for length in (length for length in LENGTHS if values * length <= MAX_VALUES):
            a, b = torch.rand(1, length, values), torch.randn(1, length, values)
            loop, chunks = (milliseconds(chunked, a, b) for chunked in (False, True))
            choice = "chunks" if scan.is_chunked(length, values) else "loop"
            times = f"{loop:>8.3f} ms {chunks:>8.3f} ms; {loop / chunks:>5.2f}"
            print(f"{values:>6} {length:>5}: {times}, {choice} chosen", flush=True)


if __name__ == "__main__":
    main()
