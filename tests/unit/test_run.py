"""Runs and stages: which run is meant, staleness as a diff of facts, one writer, commit by rename."""

from pathlib import Path

import pytest

from detkit.core.errors import GateError, UserError
from detkit.core.manifest import Manifest, differences, read_manifest
from detkit.core.run import Run, create_run, remember_current, resolve_run
from detkit.core.stage import Stage, Work, bring_up_to_date
from detkit.recipe.schema import Recipe


def made(folder: Path) -> Run:
    return create_run(folder, "")


def counting_stage(calls: list[str], **changes: object) -> Stage:
    def function(work: Work) -> dict[str, object]:
        calls.append(work.folder.name)
        (work.folder / "out.txt").write_text(f"{len(calls)}")
        return {"calls": len(calls)}

    return Stage("demo", "demo", 1, function, params=("fuse",), inputs=("in.txt",), **changes)  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = made(tmp_path / "run")
    (run.path / "in.txt").write_text("a")
    return run


def test_run_is_named_then_environment_then_around_then_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    a, b, c, d = (made(tmp_path / name) for name in "abcd")
    with pytest.raises(UserError, match="no run was named") as caught:
        resolve_run(None)
    assert "a" in caught.value.hint
    remember_current(a)
    assert resolve_run(None)[0].path == a.path
    inside = b.path / "train"
    inside.mkdir()
    monkeypatch.chdir(inside)
    assert resolve_run(None)[0].path == b.path
    monkeypatch.setenv("DETKIT_RUN", str(c.path))
    assert resolve_run(None)[0].path == c.path
    run, reason = resolve_run(d.path)
    assert (run.path, reason) == (d.path, "named on the command line")


def test_naming_what_is_no_run_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "real")
    with pytest.raises(UserError, match="is not a run") as caught:
        resolve_run(tmp_path / "other")
    assert "real" in caught.value.hint


def test_a_folder_with_other_things_is_not_turned_into_a_run(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(UserError, match="is not a run"):
        made(tmp_path)


def test_a_stage_runs_once_and_again_only_for_a_named_reason(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    calls: list[str] = []
    recipe = Recipe()
    stage = counting_stage(calls)
    assert bring_up_to_date(stage, run, recipe)[1] is True
    assert bring_up_to_date(stage, run, recipe)[1] is False
    assert calls == [".staging-demo"]
    capfd.readouterr()
    bring_up_to_date(stage, run, recipe.derive({"fuse.tolerance_float32": 0.5}))
    assert "param fuse.tolerance_float32: 0.0001 -> 0.5" in capfd.readouterr().err
    (run.path / "in.txt").write_text("b")
    bring_up_to_date(stage, run, recipe.derive({"fuse.tolerance_float32": 0.5}))
    assert "input in.txt: ca978112 -> 3e23e816" in capfd.readouterr().err
    (run.path / "demo/out.txt").write_text("edited")
    bring_up_to_date(stage, run, recipe.derive({"fuse.tolerance_float32": 0.5}))
    assert "output out.txt was changed" in capfd.readouterr().err
    assert len(calls) == 4


def test_touching_a_file_without_changing_it_is_no_reason(run: Run) -> None:
    calls: list[str] = []
    bring_up_to_date(counting_stage(calls), run, Recipe())
    (run.path / "in.txt").write_text("a")
    assert bring_up_to_date(counting_stage(calls), run, Recipe())[1] is False


def test_a_failing_gate_keeps_the_old_result(run: Run) -> None:
    bring_up_to_date(counting_stage([]), run, Recipe())
    before = read_manifest(run.folder("demo"))

    def failing(work: Work) -> dict[str, object]:
        (work.folder / "out.txt").write_text("half")
        raise GateError("no")

    with pytest.raises(GateError):
        bring_up_to_date(Stage("demo", "demo", 2, failing, inputs=("in.txt",)), run, Recipe())
    assert read_manifest(run.folder("demo")) == before
    assert (run.path / "demo/out.txt").read_text() == "1"


def test_a_missing_input_is_named(run: Run) -> None:
    (run.path / "in.txt").unlink()
    with pytest.raises(UserError, match=r"demo needs in\.txt"):
        bring_up_to_date(counting_stage([]), run, Recipe())


def test_an_old_result_left_aside_by_a_kill_between_renames_comes_back(run: Run) -> None:
    calls: list[str] = []
    bring_up_to_date(counting_stage(calls), run, Recipe())
    run.folder("demo").rename(run.path / ".old-demo")
    (run.path / ".staging-demo").mkdir()
    assert bring_up_to_date(counting_stage(calls), run, Recipe())[1] is False
    assert not (run.path / ".old-demo").exists() and not (run.path / ".staging-demo").exists()


def test_differences_name_tools_versions_and_what_went_away() -> None:
    old = Manifest(stage="x", version=1, params={"a": 1}, inputs={}, tools={"tensorrt": "10.3"})
    new = Manifest(stage="x", version=2, params={}, inputs={}, tools={"tensorrt": "11.4"})
    assert differences(old, new) == ["stage x version: 1 -> 2", "param a: 1 -> absent", "tool tensorrt: 10.3 -> 11.4"]


def test_the_second_writer_gets_a_sentence(run: Run) -> None:
    with run.lock(), pytest.raises(UserError, match=r"is being written by process \d+ on "), Run(run.path).lock():
        pass
    with run.lock():
        pass
