"""The graph of a variant on a machine that cannot write one: taken from a variant that was made where torch is."""

import shutil
from pathlib import Path
from typing import Any

from detkit.core.errors import UserError
from detkit.core.files import sha256_of_file
from detkit.core.manifest import read_manifest
from detkit.core.modules import missing_modules, require_modules

WRITERS = ("torch", "onnx", "onnxruntime")
FILES = ("model.onnx", "contract.json")


def missing_writers() -> list[str]:
    """Modules that writing a graph needs and this machine lacks."""
    return missing_modules(WRITERS)


def take_graph(compiled: Path, exported: Path, settings: Any, folder: Path) -> dict[str, Any]:
    """Copy model.onnx and contract.json of a variant with the same precision and batch into `folder`.

    `compiled` holds the variants, `exported` is the graph that they must come from, `settings` are CompileSettings.
    Any target will do: the graph differs by precision and batch alone. Returns what its manifest measured about the
    graph. Raises UserError, with the reasons, where there is none.
    """
    require_modules(("onnx",), "reading the built artifact back", hint="pip install onnx")
    wanted = f"{settings.precision}-b{settings.batch}"
    # The variant of the same target first.
    found = sorted(compiled.glob(f"[!.]*-{wanted}"), key=lambda path: (path.name != f"{settings.target}-{wanted}", path.name))
    reasons = []
    for source in found:
        manifest = read_manifest(source)
        if manifest is None:
            continue
        if manifest.inputs.get("export/model.onnx") != sha256_of_file(exported):
            reasons.append(f"{source.name} was made from another export/model.onnx")
        elif changed := [name for name in FILES if not same(source / name, manifest.outputs.get(name))]:
            reasons.append(f"{source.name}/{changed[0]} is missing or was changed")
        else:
            for name in FILES:
                shutil.copyfile(source / name, folder / name)
            results = manifest.results
            kept = {key: results[key] for key in ("graph_differences", "graph_size_bytes") if key in results}
            return kept | {"graph_from": source.name, "ap_exported": results.get("accuracy", {}).get("ap_exported")}
    why = f" ({'; '.join(reasons)})" if reasons else ""
    raise UserError(
        f"{', '.join(missing_writers())} not installed here, and the run has no {settings.precision} graph of "
        f"batch {settings.batch}{why}",
        hint=f"where torch is: detkit compile RUN --target onnxruntime --{settings.precision} --batch {settings.batch}; "
        "then copy RUN here",
    )


def same(path: Path, digest: str | None) -> bool:
    return path.is_file() and sha256_of_file(path) == digest
