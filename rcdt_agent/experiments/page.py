"""Pieces of self-contained HTML pages: text, tables, pictures, and the one style sheet."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib.resources import files


def page_css() -> str:
    """The style sheet of all pages, which stands in the template of a run's report."""
    template = (files("rcdt_agent.experiments") / "report.html").read_text(encoding="utf-8")
    return template.partition("<style>")[2].partition("</style>")[0].strip()


def html_figure(title: str, caption: str, svg: str, *, level: int = 2) -> str:
    """A drawing with heading and caption, which are also its accessible name."""
    label = html.escape(f"{title}. {caption}".strip(), quote=True)
    drawing = svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    figcaption = f"<figcaption>{escape_text(caption)}</figcaption>" if caption else ""
    return f"<figure><h{level}>{escape_text(title)}</h{level}>{drawing}{figcaption}</figure>"


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of text; a cell's second line, if any, is set small."""
    top = "".join(f"<th scope=col>{escape_text(cell)}</th>" for cell in head)
    body = ""
    for row in rows:
        lines = [escape_text(cell).partition("\n") for cell in row]
        cells = (f"{main}<br><small>{rest}</small>" if rest else main for main, _, rest in lines)
        body += f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    return (
        f"<div class=scroll><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def escape_text(value: str) -> str:
    """Text for a page."""
    return html.escape(value, quote=False)


def escape_prose(value: str) -> str:
    """Escaped text with `code` in back-ticks."""
    parts = escape_text(value).split("`")
    return "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(parts))
