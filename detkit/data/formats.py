"""Label formats: their readers, how each is recognised, which files decide what it holds, and which parts it has."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from detkit.core.errors import UserError
from detkit.data.annotation_tools import read_cvat, read_labelme, read_openimages
from detkit.data.coco import annotation_file, read_coco
from detkit.data.folders import SUFFIXES, first_few
from detkit.data.labels import Labels
from detkit.data.png_masks import read_png_masks
from detkit.data.shards import part_shards, read_shards
from detkit.data.voc import read_voc
from detkit.data.yolo import CONFIGS, NAME_FILES, configuration, read_yolo
from detkit.recipe.schema import DataSettings

Reader = Callable[[Path, Sequence[str], DataSettings], Labels]
READERS: dict[str, Reader] = {
    "coco": read_coco,
    "voc": read_voc,
    "yolo": read_yolo,
    "labelme": read_labelme,
    "cvat": read_cvat,
    "openimages": read_openimages,
    "masks": read_png_masks,
    "shards": read_shards,
}
LABEL_SUFFIXES = (".txt", ".xml", ".json", ".csv", ".yaml", ".yml", ".names")
USUAL_PARTS = ("train", "val", "valid", "test")


def found_format(root: Path, settings: DataSettings) -> str:
    """The format by what lies in `root` and `data.labels`. Raises UserError naming what was looked for."""
    base = root / settings.labels
    if (root / "Annotations").is_dir():
        return "voc"
    jsons = first_few(path for folder in (base, base / "annotations") for path in folder.glob("*.json"))
    if any(is_coco(path) for path in jsons[:50]):
        return "coco"
    if masks_there(root):
        return "masks"
    if shards_there(root) and not any(path.suffix.lower() in SUFFIXES for path in root.rglob("*")):
        # A downloaded archive often lies beside what was unpacked from it.
        return "shards"
    if not {"names", "nc"}.isdisjoint(configuration(root, settings)) or (root / "labels").is_dir():
        return "yolo"
    if any(starts_with(path, b'"shapes"') for path in jsons[:5]):
        return "labelme"
    xmls = sorted(first_few(base.glob("*.xml")))
    if any(starts_with(path, b"<annotations>") for path in xmls[:5]):
        return "cvat"
    if xmls:
        return "voc"
    if any(starts_with(path, b"ImageID") for path in first_few(base.glob("*.csv"))[:5]):
        return "openimages"
    folders = (base, *sorted(path for path in base.iterdir() if path.is_dir())[:20]) if base.is_dir() else ()
    if any(first_few(folder.glob("**/labels/*.txt"), 1) or beside_pictures(folder) for folder in folders):
        return "yolo"
    raise UserError(
        f"{base} holds none of: VOC (Annotations/), COCO (*.json), YOLO (labels/, data.yaml), LabelMe (*.json), CVAT "
        "(annotations.xml), OpenImages (*.csv), masks (masks/, *annot/), shards (*.tar)",
        hint=f"--set data.root=FOLDER, --set data.labels=FOLDER or --set data.format={'|'.join(READERS)}",
    )


def shards_there(root: Path) -> list[Path]:
    """Some tar shards in root or in its folders."""
    return first_few(path for pattern in ("*.tar", "*/*.tar") for path in root.glob(pattern))


def masks_there(root: Path) -> bool:
    """Whether folders of masks lie in root, as in `masks/` or as `train` beside `trainannot`."""
    return (root / "masks").is_dir() or any((root / f"{part}annot").is_dir() for part in USUAL_PARTS)


def beside_pictures(folder: Path) -> bool:
    """Whether pictures and text files of the same names lie in a folder."""
    there = first_few(folder.iterdir())
    texts = {path.stem for path in there if path.suffix == ".txt"}
    return any(path.suffix.lower() in SUFFIXES and path.stem in texts for path in there)


def is_coco(path: Path) -> bool:
    """Whether a JSON file looks like COCO instances, by its first and last characters."""
    return starts_with(path, b'"images"') or starts_with(path, b'"annotations"')


def starts_with(path: Path, text: bytes) -> bool:
    """Whether the first or last 64 KiB of a file hold `text`."""
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16)
            file.seek(max(0, path.stat().st_size - (1 << 16)))
            return text in head or text in file.read()
    except OSError:
        return False


def label_files(root: Path, settings: DataSettings, parts: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """The files whose content, and the pictures or shards whose names, decide what a reader returns."""
    if settings.format == "coco":
        return [annotation_file(root, part) for part in parts], []
    if settings.format == "shards":
        beside = [root / name for name in (*CONFIGS, *NAME_FILES)]
        return [path for path in beside if path.is_file()], [shard for part in parts for shard in part_shards(root, part)]
    below = sorted(path for path in root.rglob("*") if path.is_file())
    masks = settings.format == "masks"
    files = [path for path in below if path.suffix.lower() in LABEL_SUFFIXES or (masks and path.suffix.lower() == ".png")]
    return files, [path for path in below if path.suffix.lower() in SUFFIXES]


def stem_of(shard: Path) -> str:
    """What the name of a shard begins with: `train` of `train-000012.tar`."""
    return re.sub(r"[-_]\d+$", "", shard.stem)


def parts_found(root: Path, settings: DataSettings) -> dict[str, tuple[str, ...]]:
    """Parts of a data set that no recipe names, by name: what data.train would hold for each."""
    base = root / settings.labels
    if settings.format == "coco":
        files = sorted([*base.glob("*.json"), *(base / "annotations").glob("*.json")])
        return {path.stem.removeprefix("instances_"): (path.relative_to(root).as_posix(),) for path in files if is_coco(path)}
    if settings.format == "voc" and (root / "ImageSets" / "Main").is_dir():
        names = sorted(path.stem for path in (root / "ImageSets" / "Main").glob("*.txt"))
        chosen = [name for name in USUAL_PARTS if name in names] or [name for name in names if "_" not in name]
    elif settings.format == "shards":
        names = {stem_of(path) if path.parent == root else path.parent.name for path in shards_there(root)}
        chosen = [name for name in USUAL_PARTS if name in names] or sorted(names)
    elif settings.format == "openimages":
        chosen = sorted(path.stem for path in base.glob("*.csv"))
    else:
        config = configuration(root, settings)
        places = (root, root / "images", root / "labels", root / "masks", base, root / settings.images)
        folders = {path.name for place in places if place.is_dir() for path in place.iterdir() if path.is_dir()}
        chosen = [part for part in USUAL_PARTS if part in config or part in folders]
        chosen = chosen or [f"{part}2017" for part in USUAL_PARTS if f"{part}2017" in folders]
    return {name: (name,) for name in chosen or ["."]}
