"""What the page shows, as HTML made of the plain data of views.py; every text of a user or a model is escaped."""

import base64
import html
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_domain.exploration.views import Gates, Piece

# A single column on a phone; colors that a light and a dark page can both have.
STYLE = """
.gradio-container { overflow-wrap: anywhere }
.gradio-container main { max-width: 68rem; width: 100%; margin: 0 auto !important }
.read { max-width: 12rem }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(18rem, 100%), 1fr)); gap: 1.5rem }
.sides h4, .mistake, .note { margin: .4rem 0 }
.words .word { display: inline-flex; margin: 0 .45em 3px 0; line-height: 1.7; border-radius: 5px; overflow: hidden }
.words .piece { padding: 0 .25em; background: rgba(130, 140, 160, .16) }
.words .piece + .piece { border-left: 2px solid var(--background-fill-primary, #fff) }
.words .cut .piece { background: rgba(242, 142, 43, .38) }
.words .piece.new { background: rgba(89, 161, 79, .42) }
.bar { display: flex; gap: .5rem; margin: 3px 0; font-variant-numeric: tabular-nums }
.bar .label { flex: 1; padding: .15rem .5rem; border-radius: 4px;
  background: linear-gradient(90deg, rgba(78, 121, 167, .32) var(--share), rgba(130, 140, 160, .1) var(--share)) }
.bar .value { width: 4rem; text-align: right; padding: .15rem 0 }
.wide { overflow-x: auto; padding-bottom: .5rem }
.gates { overflow-wrap: normal; width: auto !important; border: 0 !important }
.gates { border-collapse: separate; border-spacing: 2px; font-size: .85rem; font-variant-numeric: tabular-nums }
.gates th { font-weight: 500; padding: .15rem .4rem; white-space: nowrap; text-align: left }
.gates thead th { text-align: center }
.gates tbody th { position: sticky; left: 0; background: var(--background-fill-primary, #fff) }
.gates tr, .gates th, .gates td { border: 0 !important }
.gates td { text-align: center; padding: .25rem .4rem; min-width: 2.6rem; border-radius: 4px }
.mistake { padding: .6rem .9rem; border-left: 4px solid #e15759; background: rgba(225, 87, 89, .12) }
.note { opacity: .75; font-size: .9rem }
.tag { font-size: .75em; padding: 0 .35em; margin-left: .2em; border-radius: 4px; background: rgba(78, 121, 167, .35) }
mark { color: inherit; padding: 0; border-radius: 3px }
blockquote { margin: 0 0 .5rem; padding: .5rem 1rem; border-left: 4px solid rgba(130, 140, 160, .5) }
.source { opacity: .7; font-size: .85rem }
li { margin: .8rem 0 }
.report { width: 100%; height: 85vh; border: 0; background: #fff }
"""


def format_mistake(message: str) -> str:
    """Show what a user can repair."""
    message = message[:1].upper() + message[1:]
    return f'<p class="mistake" role="alert">{html.escape(message)}</p>'


def format_note(text: str) -> str:
    """Show a remark."""
    return f'<p class="note">{html.escape(text)}</p>'


def format_sides(parts: Mapping[str, str]) -> str:
    """Put parts side by side under their names, or below each other where the page is narrow."""
    cells = (f"<div><h4>{html.escape(name)}</h4>{part}</div>" for name, part in parts.items())
    return f'<div class="sides">{"".join(cells)}</div>'


def format_words(words: Sequence[Sequence[Piece]], before: int | None = None) -> str:
    """Show a text in the pieces of a vocabulary, and count them.

    Args:
        before: Number of pieces in the old vocabulary, to compare with.
    """
    count = sum(map(len, words))
    total = f"{count} pieces for {len(words)} words"
    if before:
        total += f", {100 * (count - before) / before:+.0f} %"
    shown = []
    for word in words:
        pieces = "".join(
            f'<span class="piece{" new" * piece.is_new}">{html.escape(piece.text)}</span>' for piece in word
        )
        shown.append(f'<span class="word{" cut" * (len(word) > 1)}">{pieces}</span>')
    return f'{format_note(total)}<div class="words">{" ".join(shown)}</div>'


def format_bars(rows: Sequence[tuple[str, float]], form: str = ".1%") -> str:
    """Show values as bars behind their labels, as shares of the largest."""
    largest = max((value for _, value in rows), default=0) or 1
    lines = (
        f'<div class="bar"><span class="label" style="--share: {max(0.0, 100 * value / largest):.1f}%">'
        f'{html.escape(label)}</span><span class="value">{value:{form}}</span></div>'
        for label, value in rows
    )
    return "".join(lines)


def format_masks(masks: Sequence[Sequence[tuple[str, float]]]) -> str:
    """Show the tokens that fill each mask."""
    if len(masks) == 1:
        return format_bars(masks[0])
    return "".join(format_note(f"mask {number}") + format_bars(mask) for number, mask in enumerate(masks, 1))


def format_gates(found: Sequence[Gates]) -> str:
    """Show shares as colored cells, a table for each group of gates."""
    tables = []
    for gates in found:
        head = "".join(f"<th>{html.escape(column)}</th>" for column in gates.columns)
        rows = "".join(
            f"<tr><th>{html.escape(name)}</th>"
            + "".join(f'<td style="background: rgba(242, 142, 43, {share:.2f})">{share:.2f}</td>' for share in row)
            + "</tr>"
            for name, row in gates.rows.items()
        )
        table = f'<table class="gates"><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>'
        tables.append(f'<h4>{html.escape(gates.title)}</h4><div class="wide">{table}</div>')
    return "".join(tables)


def format_losses(losses: Mapping[str, Sequence[tuple[str, float]]]) -> str:
    """Show the mean loss of each model as a bar, and below, each token shaded by what it lost since the first model."""
    (start, base), *others = [(name, statistics.mean(loss for _, loss in own)) for name, own in losses.items()]
    bars = format_bars([(start, base), *((f"{name} ({mean - base:+.3f})", mean) for name, mean in others)], ".3f")
    if not others:
        return bars
    first, *_, last = losses.values()
    changes = [(token, after - before) for (token, before), (_, after) in zip(first, last, strict=True)]
    shown = " ".join(
        f'<span class="word"><span class="piece" title="{change:+.2f}" style="background: rgba('
        f'{"225, 87, 89" if change > 0 else "89, 161, 79"}, {min(abs(change) / 3, 1):.2f})">{html.escape(token)}'
        "</span></span>"
        for token, change in changes
    )
    note = "Red tokens became harder from the first model to the last, green ones easier."
    return f'{bars}{format_note(note)}<div class="words">{shown}</div>'


def format_labels(row: Mapping[str, Any]) -> str:
    """Show a prediction of `hf_domain.predict`: labels or a value, the tags of words, or an answer in its text."""
    prediction, probabilities = row["prediction"], row.get("probabilities")
    if isinstance(probabilities, dict):
        several = prediction if isinstance(prediction, list) else []
        # Of several labels, each has its own threshold; those above it come first.
        ranked = sorted(probabilities.items(), key=lambda item: (item[0] not in several, -item[1]))
        return format_bars([(f"{label} (predicted)" if label in several else label, value) for label, value in ranked])
    if "tokens" in row:
        words = zip(row["tokens"], prediction, strict=True)
        return '<div class="words">{}</div>'.format(
            " ".join(
                html.escape(word)
                if tag in (None, "O")
                else f'<b>{html.escape(word)}<span class="tag">{html.escape(tag)}</span></b>'
                for word, tag in words
            )
        )
    if probabilities is None:
        return f"<p><b>{html.escape(f'{prediction:.3f}' if isinstance(prediction, float) else str(prediction))}</b></p>"
    return format_bars([(prediction or "no answer", probabilities)])


def format_report(page: str) -> str:
    """Show a whole page in the page; its scripts see nothing around it."""
    return f'<iframe class="report" sandbox="allow-scripts" srcdoc="{html.escape(page)}"></iframe>'


def split_figures(text: str, folder: Path) -> list[str | tuple[Path, str]]:
    """Split Markdown at its figures, which are files in its folder, and return texts and figures with their titles."""
    parts: list[str | tuple[Path, str]] = []
    for number, part in enumerate(re.split(r"^!\[(.*)\]\((\w+\.png)\)$", text, flags=re.MULTILINE)):
        if number % 3 == 2:
            file = folder / part
            title = str(parts.pop())
            parts += [(file, title)] if file.is_file() else []
        elif part.strip() or number % 3 == 1:
            parts.append(part)
    return parts


def format_figure(file: Path, title: str) -> str:
    """Show a PNG, which the page then holds."""
    data = base64.b64encode(file.read_bytes()).decode()
    return f'<img style="max-width: 100%" alt="{html.escape(title)}" src="data:image/png;base64,{data}">'
