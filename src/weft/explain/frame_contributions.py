"""Contributions of parts of an image, a clip or features to the words of an output, and their picture.

Shapes: N words, T frames or positions, H height, W width, h and w the height and width of the grid of cells of a frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.plots.diverging_heatmap import diverging_heatmap
from weft.plots.frames import clip_attribution, image_attribution


@dataclass(frozen=True)
class FrameContributions:
    """The words of an output, and how much each part of the input raised or lowered their scores, in nats."""

    words: list[str]
    values: np.ndarray  # (N, T, h, w)
    frames: np.ndarray | None  # uint8 (T, H, W, C); None for features

    def to_svg(self, title: str) -> str:
        """The image once per word, a row of frames per word, or a heat map of features."""
        if self.frames is None:
            by_position = self.values.sum((2, 3))
            columns = [str(position + 1) for position in range(by_position.shape[1])]
            axes = ("output", "position")
            return diverging_heatmap(by_position, rows=self.words, columns=columns, name="contribution", title=title, axes=axes)
        if len(self.frames) == 1:
            return image_attribution(self.frames[0], self.words, self.values[:, 0], title=title)
        return clip_attribution(self.frames, self.words, self.values, title=title)
