"""Animations as files: GIF by Pillow, MP4 by ffmpeg."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.panels import (
    FAINT,
    INK,
    PAPER,
    TRACK,
    Panel,
    PanelLayout,
    draw_frame,
)
from rcdt_agent.tasks.cameras import COSTLY, SAFE, Picture

ENDINGS = (".gif", ".mp4")
COLORS = 64
"""Of a GIF's palette, shared by all frames."""
HOLD = 1.5
"""Seconds for which a GIF shows its last frame."""
FASTEST_GIF = 50
"""Frames a second: a GIF counts hundredths of a second, and viewers slow down 1."""


class Frames:
    """Frames that are drawn when they are asked for: only the pictures are kept."""

    def __init__(
        self, episodes: Sequence[Sequence[Panel]], layout: PanelLayout, n_frames: int
    ) -> None:
        """Show the episodes side by side; one that is over shows its last panel."""
        self._episodes, self._layout, self._n_frames = episodes, layout, n_frames

    def __len__(self) -> int:
        return self._n_frames

    def __getitem__(self, index: int) -> Picture:
        if index >= self._n_frames:
            raise IndexError(index)
        now = [panels[min(index, len(panels) - 1)] for panels in self._episodes]
        return draw_frame(now, self._layout)


def check_ending(path: str | Path) -> Path:
    """The path, if its ending says what to write.

    Raises:
        InvalidArgumentError: It ends otherwise, or MP4 needs what is not installed.
    """
    path = Path(path)
    if path.suffix.lower() not in ENDINGS:
        raise InvalidArgumentError(f"`path` must end in .gif or .mp4, got {str(path)!r}.")
    if path.suffix.lower() == ".mp4":
        _ffmpeg()
    return path


def write_gif(path: Path, frames: Sequence[Picture] | Frames, fps: float) -> None:
    """Write frames with one palette of few colours; the last one stays for a while.

    Args:
        path: File to write.
        frames: At least one.
        fps: At most 50; rounded to hundredths of a second a frame.
    """
    n = len(frames)
    samples = [frames[i] for i in sorted({round(i) for i in np.linspace(0, n - 1, min(n, 8))})]
    sheet = Image.new("RGB", (samples[0].width, sum(sample.height for sample in samples)))
    for i, sample in enumerate(samples):
        sheet.paste(sample, (0, i * sample.height))
    exact = [value for color in (PAPER, INK, FAINT, TRACK, SAFE, COSTLY) for value in color]
    found = sheet.quantize(COLORS - len(exact) // 3, Image.Quantize.MEDIANCUT).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette(exact + found)  # bars and background keep their very colours

    def reduced() -> Iterator[Picture]:
        for i in range(n):
            yield frames[i].quantize(palette=palette, dither=Image.Dither.NONE)

    images = reduced()
    duration = 10 * round(100 / fps)
    next(images).save(
        path,
        format="GIF",
        save_all=True,
        append_images=images,
        duration=[duration] * (n - 1) + [max(duration, round(1000 * HOLD))],
        loop=0,
        optimize=True,
    )


def write_mp4(path: Path, frames: Sequence[Picture] | Frames, fps: float) -> None:
    """Write frames as an H.264 video.

    Args:
        path: File to write.
        frames: At least one; width and height are even.
        fps: Frames a second.

    Raises:
        InvalidArgumentError: The extra `record` is not installed.
    """
    writer = _ffmpeg().write_frames(
        str(path), frames[0].size, fps=fps, codec="libx264", macro_block_size=2,
        output_params=["-f", "mp4"],
    )  # fmt: skip
    writer.send(None)
    try:
        for i in range(len(frames)):
            writer.send(np.ascontiguousarray(frames[i]))
    finally:
        writer.close()


def _ffmpeg() -> Any:
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise InvalidArgumentError(
            "`path` ends in .mp4, which needs the extra `record`: "
            "`pip install 'rcdt_agent[record]'` (imageio-ffmpeg). A .gif needs nothing more."
        ) from error
    return imageio_ffmpeg
