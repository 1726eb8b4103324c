"""The README's commands exist, and those that are cheap run."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from detkit.cli.commands import app
from tests.conftest import REPOSITORY, detkit

README = (REPOSITORY / "README.md").read_text()
LINES = sorted(
    {
        part.strip()
        for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
        for line in block.splitlines()
        for part in line.split("#")[0].split("&&")
        if part.strip()
    }
)
CHEAP = ("detkit show", "detkit doctor", "detkit --help", "detkit runs")


def test_the_readme_opens_with_the_three_lines_of_the_design() -> None:
    head = README.split("## ")[0]
    for line in ("detkit train recipes/megdet.yaml", "detkit fuse run/ && detkit compile --fp16", "detkit bench --device jetson"):
        assert line in head


@pytest.mark.parametrize("line", LINES)
def test_commands_of_the_readme_exist_with_their_options(line: str) -> None:
    words = shlex.split(line)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
        return
    if words[0] != "detkit":
        assert words[:2] in (["pip", "install"], ["git", "clone"], ["cd", "detkit"])
        return
    command = [w for w in words[1:3] if not w.startswith("-") and w.isalpha()]
    command = command[: 2 if command[:1] == ["doctor"] else 1]
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert shown.exit_code == 0, line
    for option in (w.split("=")[0] for w in words if w.startswith("--")):
        assert option in shown.output, f"{line}: {option}"


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in LINES if line.startswith(CHEAP)])
def test_cheap_commands_of_the_readme_run(line: str) -> None:
    detkit(*shlex.split(line)[1:], cwd=REPOSITORY)


def test_the_three_lines_work_or_say_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "recipes").symlink_to(REPOSITORY / "recipes")
    train = detkit("train", "recipes/megdet.yaml", cwd=tmp_path, check=False)
    assert train.returncode == 1 and "there is no recipe recipes/megdet.yaml" in train.stderr and "bccd.yaml" in train.stderr
    fuse = detkit("fuse", "run/", cwd=tmp_path, check=False)
    assert fuse.returncode == 1 and "is not a run" in fuse.stderr
    bench = detkit("bench", "--device", "jetson", cwd=tmp_path, check=False)
    assert bench.returncode == 1 and "Traceback" not in bench.stderr


def test_recipe_page_is_what_the_schema_says() -> None:
    from detkit.report.schema_page import page

    assert (REPOSITORY / "docs/recipe.md").read_text() == page(), "make docs writes it"
