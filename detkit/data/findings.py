"""What can be wrong with a data set: every kind of fault, how grave it is, what training does with it, and its remedy."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Fault:
    """A kind of fault. Training refuses errors unless `data.on_bad` says otherwise; `in_training` is what it does then."""

    severity: Severity
    in_training: str
    remedy: str


FAULTS = {
    # Whole data set.
    "no labels": Fault("error", "refuses", "check where the labels lie and data.format"),
    "no objects": Fault("error", "refuses", "label some objects, or check data.classes"),
    "all crowd": Fault("error", "refuses", "export with iscrowd 0; crowds are never trained on"),
    "pixel units": Fault("error", "refuses", "divide YOLO coordinates by the picture's width and height"),
    "unread label file": Fault("error", "leaves the file out", "mend the file; the finding says where"),
    "unread shard": Fault("error", "leaves the rest of the shard out", "copy the shard again, as a plain tar file"),
    "label without picture": Fault("warning", "ignores the label file", "add the picture or delete the label file"),
    "picture without label": Fault("note", "uses it as background", "nothing, if it shows no object"),
    "picture not listed": Fault("warning", "ignores the picture", "list it in the label file, or move it away"),
    "in two parts": Fault("error", "trains on what it is scored on", "remove it from one part"),
    "near copy in two parts": Fault("warning", "trains on nearly what it is scored on", "keep pictures of one scene in one part"),
    "copy in one part": Fault("note", "sees it twice as often", "remove one"),
    # A picture.
    "missing picture": Fault("error", "leaves the picture out", "copy the picture there, or take it off the list"),
    "unreadable picture": Fault("error", "leaves the picture out", "replace the file; it is damaged or no picture"),
    "picture too large": Fault("error", "leaves the picture out", "scale it down; it would need too much memory to decode"),
    "outside the root": Fault("error", "leaves the picture out", "keep pictures below data.root"),
    "wrong size": Fault("error", "leaves the picture out", "label the picture that is there; sizes must agree"),
    "duplicate picture": Fault("error", "keeps the first", "give every picture its own id and list it once"),
    "labelled before EXIF turn": Fault("warning", "reads this picture unturned", "nothing; the size in the labels decides"),
    "wrong suffix": Fault("warning", "reads it by its content", "rename the file"),
    "converted colours": Fault("note", "converts it to RGB", "nothing"),
    "transparent": Fault("warning", "lays it over white", "flatten the picture if another background was meant"),
    # An object.
    "empty box": Fault("error", "leaves the object out", "draw the box again or delete it"),
    "box not finite": Fault("error", "leaves the object out", "mend the number"),
    "no box": Fault("error", "leaves the object out", "give it a box of four numbers"),
    "box mostly outside": Fault("error", "skip: leaves the object out; clip: clips it", "check the unit and the picture of the label"),
    "box partly outside": Fault("warning", "clips it to the picture", "nothing, or clip it in the labels"),
    "negative area": Fault("error", "computes the area from the box", "delete the area or mend it"),
    "duplicate object": Fault("warning", "keeps the first", "delete the others"),
    "duplicate annotation id": Fault("warning", "numbers them anew", "give every annotation its own id"),
    "orphan annotation": Fault("error", "leaves the annotation out", "list its picture, or delete it"),
    "unknown class": Fault("error", "leaves the object out", "mend the class, or add it to the classes"),
    "unused class": Fault("note", "leaves the object out", "nothing, if data.classes leaves it out on purpose"),
    "vanishes at this size": Fault("warning", "keeps it, but it is hardly learnt", "raise data.image_size_px"),
    # A line or a mask.
    "unread line": Fault("error", "leaves the line out", "the finding says what was expected"),
    "odd polygon": Fault("error", "keeps the box, drops the mask", "a polygon is a list x1 y1 x2 y2 ... of even length"),
    "degenerate polygon": Fault("warning", "keeps the box, drops the polygon", "draw the polygon again"),
    "self-crossing polygon": Fault("warning", "fills it by the even-odd rule", "draw the polygon again"),
    "flat polygon": Fault("warning", "reads it as one polygon", "wrap it in a list: [[x1, y1, ...]]"),
    "run lengths as polygon": Fault("error", "keeps the box, drops the mask", 'write them as {"counts": [...], "size": [h, w]}'),
    "bad run lengths": Fault("error", "keeps the box, drops the mask", "counts must add up to height x width"),
    "mask without picture": Fault("warning", "ignores the mask", "add the picture or delete the mask"),
    "missing mask": Fault("error", "leaves the picture out", "draw the mask, or move the picture away"),
    "class count": Fault("warning", "goes by the names", "make nc and names agree"),
    "wrong mask": Fault("error", "leaves the picture out", "a mask is one-channel, as large as its picture, of known class ids"),
}


@dataclass(frozen=True)
class Finding:
    """One fault: `kind` is a key of FAULTS, `place` is file:line, file: annotation N or a file, `what` has the value."""

    kind: str
    place: str
    what: str

    @property
    def severity(self) -> Severity:
        return FAULTS[self.kind].severity


def errors_of(findings: Iterable[Finding]) -> list[Finding]:
    """Those that training refuses."""
    return [finding for finding in findings if finding.severity == "error"]


def summary(findings: Iterable[Finding], *, num_places: int = 3) -> list[dict[str, Any]]:
    """One row a kind, gravest and most frequent first: severity, kind, count, first places, in_training, remedy."""
    found = list(findings)
    counts = Counter(finding.kind for finding in found)
    rows = []
    for kind in sorted(counts, key=lambda k: (SEVERITIES.index(FAULTS[k].severity), -counts[k], k)):
        fault = FAULTS[kind]
        first = [f for f in found if f.kind == kind][:num_places]
        rows.append(
            {
                "severity": fault.severity,
                "kind": kind,
                "count": counts[kind],
                "first": [{"place": f.place, "what": f.what} for f in first],
                "in_training": fault.in_training,
                "remedy": fault.remedy,
            }
        )
    return rows
