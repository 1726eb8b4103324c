"""The layers, the start-up time of the command line and the limits of size hold."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = sorted((REPOSITORY / "detkit").rglob("*.py"))


def test_imports_point_down_and_the_runtime_half_is_free_of_torch() -> None:
    done = subprocess.run([Path(sys.executable).parent / "lint-imports"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["bench", "--help"], ["--version"]])
def test_help_loads_neither_torch_nor_numpy(arguments: list[str]) -> None:
    code = (
        f"import sys\nsys.argv = ['detkit', *{arguments!r}]\nfrom detkit.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'numpy', 'yaml', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_answers_in_a_second() -> None:
    durations_s = []
    for _ in range(3):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "detkit", "--help"], capture_output=True, check=True)
        durations_s.append(time.perf_counter() - began)
    assert min(durations_s) < 1.0


def test_runtime_modules_import_without_torch() -> None:
    modules = [
        "detkit." + ".".join(p.relative_to(REPOSITORY / "detkit").with_suffix("").parts)
        for p in SOURCES
        if p.relative_to(REPOSITORY / "detkit").parts[0] in ("core", "recipe", "data", "metrics", "deploy", "report")
        and p.name != "__init__.py"
    ]
    code = f"import importlib, sys\nfor m in {modules!r}:\n    importlib.import_module(m)\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_files_and_functions_stay_small_and_modules_open_with_a_sentence() -> None:
    found = []
    for path in SOURCES:
        text = path.read_text()
        tree = ast.parse(text)
        if len(text.splitlines()) > 400:
            found.append(f"{path}: over 400 lines")
        if tree.body and not ast.get_docstring(tree):
            found.append(f"{path}: no docstring")
        found += [
            f"{path}:{node.lineno} {node.name}: over 60 lines"
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= 60
        ]
    assert found == []
