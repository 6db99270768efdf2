"""The frames of an animation: one panel a budget, each with a bar of what is spent of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
from PIL import Image, ImageDraw, ImageFont

from rcdt_agent.tasks.cameras import COSTLY, SAFE, Picture

PAPER, INK, FAINT, TRACK = (255, 255, 255), (31, 41, 55), (107, 114, 128), (222, 226, 232)
OVERHEAD = 1.25
"""A bar's whole length, in budgets: what lies beyond the budget is shown up to here."""


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What an episode has spent of one budget.

    Attributes:
        name: Of the cost.
        cost: Spent so far.
        budget: What the episode may cost.
    """

    name: str
    cost: float
    budget: float

    @property
    def share(self) -> float:
        """Cost over budget; of a budget of zero, 0 or infinity."""
        if self.budget > 0:
            return self.cost / self.budget
        return float("inf") if self.cost > 0 else 0.0

    @property
    def over(self) -> bool:
        """Whether more is spent than the budget."""
        return self.cost > self.budget


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One episode at one moment.

    Attributes:
        title: Says the budget.
        picture: Of the simulator.
        spent: One entry a cost.
        episode_return: Return so far.
        step: Steps so far.
        costly: Whether the last step cost anything.
        ended: Whether the episode is over.
    """

    title: str
    picture: Picture
    spent: tuple[Spent, ...]
    episode_return: float
    step: int
    costly: bool = False
    ended: bool = False


@dataclass(frozen=True)
class PanelLayout:
    """Where the parts of panels are, in pixels from a panel's upper left corner.

    Attributes:
        width: Of a panel.
        height: Of the pictures.
        n_costs: Bars of a panel.
    """

    width: int
    height: int
    n_costs: int = 1

    @property
    def margin(self) -> int:
        """Around and between panels."""
        return max(self.width // 28, 4)

    @property
    def text_size(self) -> int:
        """Of the text, in pixels."""
        return max(self.width // 17, 9)

    @property
    def line(self) -> int:
        """Height of a line of text."""
        return round(1.5 * self.text_size)

    @property
    def bar_height(self) -> int:
        """Of a bar."""
        return max(self.width // 18, 8)

    @property
    def panel_height(self) -> int:
        """Of a whole panel."""
        bars = self.n_costs * (self.line + self.bar_height + self.margin // 2)
        return self.line + self.height + bars + self.line

    def bar(self, index: int = 0) -> tuple[int, int, int, int]:
        """Left, top, right and bottom (exclusive) of a bar."""
        top = self.line + self.height + self.line
        top += index * (self.line + self.bar_height + self.margin // 2)
        return 0, top, self.width, top + self.bar_height

    def budget_mark(self) -> int:
        """Column of a bar at which the budget ends."""
        return round(self.width / OVERHEAD)

    def frame_size(self, n_panels: int) -> tuple[int, int]:
        """Width and height of a frame, both even, as video encoders want it."""
        width = n_panels * (self.width + self.margin) + self.margin
        height = self.panel_height + 2 * self.margin
        return width + width % 2, height + height % 2

    def corner(self, index: int) -> tuple[int, int]:
        """Upper left corner of a panel in the frame."""
        return self.margin + index * (self.width + self.margin), self.margin


def draw_frame(panels: Sequence[Panel], layout: PanelLayout) -> Picture:
    """All panels side by side."""
    frame = Image.new("RGB", layout.frame_size(len(panels)), PAPER)
    for index, panel in enumerate(panels):
        frame.paste(_draw_panel(panel, layout), layout.corner(index))
    return frame


def _draw_panel(panel: Panel, layout: PanelLayout) -> Picture:
    image = Image.new("RGB", (layout.width, layout.panel_height), PAPER)
    draw = ImageDraw.Draw(image)
    plain, bold = _font(layout.text_size), _font(layout.text_size, bold=True)
    draw.text((0, 0), panel.title, INK, bold)
    image.paste(panel.picture, (0, layout.line))
    if panel.costly:
        edge = (0, layout.line, layout.width - 1, layout.line + layout.height - 1)
        draw.rectangle(edge, outline=COSTLY, width=max(layout.width // 70, 2))
    for index, spent in enumerate(panel.spent):
        _draw_bar(draw, spent, layout, index)
    _, _, _, bottom = layout.bar(len(panel.spent) - 1)
    y = bottom + layout.margin // 2
    draw.text(
        (0, y), f"return {panel.episode_return:.{_digits(panel.episode_return)}f}", INK, plain
    )
    step = f"ended, step {panel.step}" if panel.ended else f"step {panel.step}"
    draw.text((layout.width, y), step, FAINT, plain, anchor="ra")
    return image


def _draw_bar(draw: Any, spent: Spent, layout: PanelLayout, index: int) -> None:
    left, top, right, bottom = layout.bar(index)
    mark = layout.budget_mark()
    y = top - layout.line + layout.text_size // 5
    color = COSTLY if spent.over else INK
    text = f"{spent.name} {number(spent.cost)} of {number(spent.budget)}"
    draw.text((left, y), text, color, _font(layout.text_size, bold=spent.over))
    if spent.over:
        draw.text((right, y), "OVER", COSTLY, _font(layout.text_size, bold=True), anchor="ra")
    draw.rectangle([left, top, mark - 1, bottom - 1], fill=TRACK)
    inside = round(min(spent.share, 1.0) * mark)
    if inside > 0:
        draw.rectangle([left, top, inside - 1, bottom - 1], fill=SAFE)
    if spent.over:
        beyond = max(round(min(spent.share, OVERHEAD) * mark), mark + 3)
        draw.rectangle([mark, top, min(beyond, right) - 1, bottom - 1], fill=COSTLY)
    # The budget itself: a post that stands out above and below the bar.
    draw.rectangle([mark - 1, top - 2, mark, bottom + 1], fill=INK)


def number(value: float) -> str:
    """A cost as text: whole where it is, else with one digit."""
    return f"{value:.0f}" if abs(value - round(value)) < 1e-6 else f"{value:.1f}"


def _digits(value: float) -> int:
    """Digits of a return: one below a hundred."""
    return int(abs(value) < 100)


@cache
def _font(size: int, *, bold: bool = False) -> Any:
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(mpl.get_data_path()) / "fonts" / "ttf" / name), size)
