"""What `detkit doctor data` prints."""

from pathlib import Path
from typing import Any

BAR = 30


def data_lines(values: dict[str, Any], sheet: Path) -> list[str]:
    """The report as text."""
    lines = [f"{values['format']} labels in {values['root']}"]
    for name, part in values["parts"].items():
        lines.append(
            f"  {name}: {part['num_pictures']} of {part['num_listed']} pictures usable, {part['num_objects']} objects "
            f"({part['num_crowds']} crowds), {part['num_background']} pictures without an object"
        )
    if any(part["num_objects"] for part in values["parts"].values()):
        lines += ["", *class_lines(values["parts"]), "", *size_lines(values)]
    lines += [*mask_lines(values["mask_shares"]), ""]
    lines += finding_lines(values["findings"])
    lines.append(f"contact sheet: {sheet}")
    return lines


def class_lines(parts: dict[str, Any]) -> list[str]:
    """Objects of each class in each part."""
    names = list(dict.fromkeys(name for part in parts.values() for name in part["classes"]))
    totals = {name: sum(part["classes"].get(name, 0) for part in parts.values()) for name in names}
    most = max([*totals.values(), 1])
    width = max([len(name) for name in names] or [0])
    lines = ["objects by class" + (f" ({', '.join(parts)})" if len(parts) > 1 else "")]
    for name in sorted(names, key=lambda n: -totals[n])[:40]:
        counts = ", ".join(str(part["classes"].get(name, 0)) for part in parts.values())
        lines.append(f"  {name:{width}}  {'#' * max(1 if totals[name] else 0, round(BAR * totals[name] / most)):{BAR}}  {counts}")
    if len(names) > 40:
        lines.append(f"  and {len(names) - 40} more, all in --json")
    absent = [name for name in names if not totals[name]]
    return [*lines, f"  without any object: {', '.join(absent[:20])}"] if absent else lines


def mask_lines(shares: dict[str, dict[str, float]]) -> list[str]:
    """Share of the labelled pixels of each class id in each part."""
    ids = sorted({i for part in shares.values() for i in part}, key=int)
    if not ids:
        return []
    lines = ["", f"share of labelled pixels by class id ({', '.join(shares)})"]
    return [*lines, *(f"  {i:>4}  {', '.join(f'{part.get(i, 0):.1%}' for part in shares.values())}" for i in ids[:40])]


def size_lines(values: dict[str, Any]) -> list[str]:
    """Box sizes at the recipe's input, and what other inputs would show."""
    rows = values["sides_px"]
    most = max([row["count"] for row in rows] or [1])
    lines = [f"shorter side of the boxes at an input of {values['image_size_px']} px"]
    for row in rows:
        span = f"{row['from_px']} to {row['to_px']} px" if row["to_px"] else f"{row['from_px']} px and more"
        lines.append(f"  {span:>16}  {'#' * max(1, round(BAR * row['count'] / most)):{BAR}}  {row['count']}")
    sizes = values["input_sizes"]
    if sizes["suggested_px"] is not None:
        shares = ", ".join(f"{size}: {share:.1%}" for size, share in sizes["share"].items())
        lines.append(f"  boxes of at least {sizes['at_least_px']:g} px by input size: {shares}")
        lines.append(f"  data.image_size_px={sizes['suggested_px']} is the smallest of these that shows 98 % of them, or the largest")
    return lines


def finding_lines(rows: list[dict[str, Any]]) -> list[str]:
    """One block a kind of fault."""
    if not rows:
        return ["no fault found", ""]
    lines = []
    for row in rows:
        lines.append(f"{row['severity'].upper()}  {row['count']} x {row['kind']}")
        lines += [f"    {first['place']}: {first['what']}" for first in row["first"]]
        if row["count"] > len(row["first"]):
            lines.append(f"    and {row['count'] - len(row['first'])} more")
        lines += [f"    training: {row['in_training']}", f"    mend: {row['remedy']}", ""]
    return lines
