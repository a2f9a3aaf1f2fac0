"""Small SVG figures: mean lines with a band over seeds, and points. No library, the same bytes for the same numbers."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 64, 220, 44, 48
_FONT = 'font-family="sans-serif" font-size="12"'
HUES = ("#0b6e99", "#c2410c", "#3f7d20", "#7c3aed")


@dataclass(frozen=True, slots=True)
class Series:
    """One variant: `seeds` runs of equal length. hue: index of its colour."""

    name: str
    seeds: list[list[float]]
    dashed: bool = False
    hue: int = 0


def _scale(low: float, high: float, start: float, stop: float) -> tuple[float, float]:
    slope = (stop - start) / ((high - low) or 1.0)
    return slope, start - slope * low


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers in [low, high]."""
    span = (high - low) or 1.0
    step = 10.0 ** len(str(int(span))) / 10 if span >= 1 else 0.1
    while span / step > 6:
        step *= 2 if span / step < 12 else 5
    while span / step < 3:
        step /= 2
    first = -(-low // step) * step
    return [round(first + k * step, 6) for k in range(int((high - first) / step + 1e-9) + 1)]


def _frame(title: str, across: str, up: str, x: tuple[float, float], y: tuple[float, float]) -> list[str]:
    ax, bx = _scale(*x, LEFT, WIDTH - RIGHT)
    ay, by = _scale(*y, HEIGHT - BOTTOM, TOP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {_FONT}>',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" fill="#111">{escape(title)}</text>',
    ]
    for tick in _ticks(*y):
        at = ay * tick + by
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e5e5e5"/>')
        out.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end" fill="#444">{tick:g}</text>')
    for tick in _ticks(*x):
        at = ax * tick + bx
        out.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#444">{tick:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    out.append(f'<text x="{middle:.0f}" y="{HEIGHT - 10}" text-anchor="middle" fill="#111">{escape(across)}</text>')
    centre = (TOP + HEIGHT - BOTTOM) // 2
    turn = f'transform="rotate(-90 16 {centre})"'
    out.append(f'<text x="16" y="{centre}" text-anchor="middle" fill="#111" {turn}>{escape(up)}</text>')
    return out


def _label(at: int, name: str, hue: str, dash: str) -> list[str]:
    x, y = WIDTH - RIGHT + 16, TOP + 12 + 22 * at
    line = f'<line x1="{x}" x2="{x + 24}" y1="{y}" y2="{y}" stroke="{hue}" stroke-width="2.5"{dash}/>'
    return [line, f'<text x="{x + 30}" y="{y + 4}" fill="#111">{escape(name)}</text>']


def _smooth(values: list[float], window: int) -> list[float]:
    return [statistics.fmean(values[max(0, k - window + 1) : k + 1]) for k in range(len(values))]


def lines(series: list[Series], *, title: str, across: str, up: str, window: int = 10) -> str:
    """Mean over seeds of each series (running mean over `window` steps), band from the smallest to the largest seed."""
    smooth = [[_smooth(seed, window) for seed in one.seeds] for one in series]
    top = max(value for one in smooth for seed in one for value in seed)
    x, y = (0.0, float(len(smooth[0][0]) - 1)), (0.0, top * 1.05)
    out = _frame(title, across, up, x, y)
    ax, bx = _scale(*x, LEFT, WIDTH - RIGHT)
    ay, by = _scale(*y, HEIGHT - BOTTOM, TOP)

    def path(values: list[float]) -> str:
        return " ".join(f"{ax * k + bx:.1f},{ay * value + by:.1f}" for k, value in enumerate(values))

    for at, (one, seeds) in enumerate(zip(series, smooth, strict=True)):
        hue, dash = HUES[one.hue % len(HUES)], ' stroke-dasharray="6 4"' if one.dashed else ""
        steps = list(zip(*seeds, strict=True))
        low, high = path([min(step) for step in steps]), path([max(step) for step in steps])
        back = " ".join(reversed(low.split(" ")))
        out.append(f'<polygon points="{high} {back}" fill="{hue}" fill-opacity="0.15"/>')
        mean = path([statistics.fmean(step) for step in steps])
        out.append(f'<polyline points="{mean}" fill="none" stroke="{hue}" stroke-width="2.2"{dash}/>')
        out += _label(at, one.name, hue, dash)
    return "\n".join([*out, "</svg>", ""])


def points(series: dict[str, list[tuple[float, float]]], title: str, across: str, up: str) -> str:
    """One dot per pair."""
    every = [pair for pairs in series.values() for pair in pairs]
    x, y = (0.0, max(pair[0] for pair in every) * 1.05), (0.0, max(pair[1] for pair in every) * 1.1)
    out = _frame(title, across, up, x, y)
    ax, bx = _scale(*x, LEFT, WIDTH - RIGHT)
    ay, by = _scale(*y, HEIGHT - BOTTOM, TOP)
    for at, (name, pairs) in enumerate(series.items()):
        hue = HUES[at % len(HUES)]
        for across_value, up_value in pairs:
            place = f'cx="{ax * across_value + bx:.1f}" cy="{ay * up_value + by:.1f}"'
            out.append(f'<circle {place} r="4" fill="{hue}" fill-opacity="0.7"/>')
        out += _label(at, name, hue, "")
    return "\n".join([*out, "</svg>", ""])
