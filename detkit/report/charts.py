"""Small charts as inline SVG, coloured by the page's style sheet."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, MARGIN = 420, 200, 50


def line_chart(title: str, series: Mapping[str, Sequence[tuple[float, float]]], *, x_name: str = "epoch") -> str:
    """Lines over `x_name`; series without points are left out. Empty text where none has two points."""
    drawn = {name: points for name, points in series.items() if len(points) > 1}
    if not drawn:
        return ""
    xs = [x for points in drawn.values() for x, _ in points]
    ys = [y for points in drawn.values() for _, y in points]
    low, high = min(0.0, *ys), max(ys) or 1.0
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{escape(title)}</title>']
    for value in (low, (low + high) / 2, high):
        y = scaled(value, low, high, HEIGHT - MARGIN, 14)
        parts.append(f'<line class="grid" x1="{MARGIN}" x2="{WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{MARGIN - 5}" y="{y + 3:.1f}" text-anchor="end">{value:.2g}</text>')
    for index, (name, points) in enumerate(drawn.items()):
        path = " ".join(
            f"{scaled(x, min(xs), max(xs), MARGIN, WIDTH - 8):.1f},{scaled(y, low, high, HEIGHT - MARGIN, 14):.1f}" for x, y in points
        )
        parts.append(f'<polyline class="s{index}" points="{path}"/>')
        left = MARGIN + index * 110
        parts.append(f'<rect class="f{index}" x="{left}" y="{HEIGHT - 12}" width="9" height="9"/>')
        parts.append(f'<text x="{left + 13}" y="{HEIGHT - 4}">{escape(name)}</text>')
    parts.append(f'<text x="{WIDTH - 8}" y="{HEIGHT - 22}" text-anchor="end">{escape(x_name)} {max(xs):g}</text></svg>')
    return f"<figure><figcaption>{escape(title)}</figcaption>{''.join(parts)}</figure>"


def stacked_bar(parts_ms: dict[str, float]) -> str:
    """One horizontal bar cut into steps, with a legend in ms."""
    total = sum(parts_ms.values()) or 1.0
    cells, legend, left = [], [], 0.0
    for index, (name, value) in enumerate(parts_ms.items()):
        width = value / total * 100
        cells.append(f'<rect class="f{index}" x="{left:.2f}%" y="0" width="{width:.2f}%" height="18"/>')
        legend.append(f'<span class="key"><i class="b{index}"></i>{escape(name)} {value:.2f} ms</span>')
        left += width
    return f'<svg class="bar" width="100%" height="18">{"".join(cells)}</svg><p class="legend">{"".join(legend)}</p>'


def scaled(value: float, low: float, high: float, start: float, end: float) -> float:
    """`value` from [low, high] to [start, end]."""
    return start + (value - low) / ((high - low) or 1.0) * (end - start)
