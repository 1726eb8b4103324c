"""fuse, export, compile, bench, eval, predict and report on a small trained run, through the command line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch

from detkit.core.manifest import read_manifest
from tests.conftest import detkit

pytestmark = pytest.mark.slow


def test_a_late_command_makes_what_it_needs_and_says_why(run_copy: Path) -> None:
    shutil.rmtree(run_copy / "fuse")
    shutil.rmtree(run_copy / "export")
    done = detkit("compile", "run", "--target", "onnxruntime", "--json", cwd=run_copy.parent)
    values = json.loads(done.stdout)
    assert values["variant"] == "onnxruntime-fp32-b1" and values["results"]["io"]["images"] == ["float32", [1, 3, 96, 96]]
    for line in ("fuse: not made yet", "export: not made yet", "compile/onnxruntime-fp32-b1: not made yet"):
        assert line in done.stderr
    again = detkit("compile", "run", "--json", cwd=run_copy.parent)
    assert json.loads(again.stdout)["changed"] is False


def test_fuse_and_export_record_their_proofs(run_copy: Path) -> None:
    fuse, export = (read_manifest(run_copy / name) for name in ("fuse", "export"))
    assert fuse is not None and export is not None
    assert max(fuse.results["max_relative_difference"]["float64"].values()) <= 1e-9
    assert fuse.results["parameters"] < fuse.results["parameters_before"]
    assert fuse.results["removed"] == ["head.dense_score"]
    assert all(max(d["boxes"], d["scores"]) <= 1e-4 for d in export.results["differences"].values())
    contract = json.loads((run_copy / "export/contract.json").read_text())
    assert contract["output"]["shape"] == [1, 100, 6] and contract["classes"] == ["disc", "cross", "triangle", "ring"]


def test_damaged_weights_fail_the_gate_and_nothing_is_committed(run_copy: Path) -> None:
    """The probe holds the trained model's outputs, so other weights cannot pass for it."""
    path = run_copy / "fuse/model.safetensors"
    weights = safetensors.torch.load_file(path)
    name = next(k for k in weights if k.endswith("predict.weight"))
    before = read_manifest(run_copy / "export")
    weights[name] = weights[name] * float("nan")
    safetensors.torch.save_file(weights, path)
    # Staleness sees the edit first and makes the stage anew from what training left.
    done = detkit("export", "run", cwd=run_copy.parent)
    assert "output model.safetensors was changed after it was made" in done.stderr
    after = read_manifest(run_copy / "export")
    assert before is not None and after is not None and before.outputs["model.onnx"] == after.outputs["model.onnx"]


def test_a_fuse_that_changes_the_function_exits_3_naming_output_and_layer(run_copy: Path) -> None:
    before = read_manifest(run_copy / "fuse")
    done = detkit("fuse", "run", "--set", "fuse.tolerance_float64=1e-30", cwd=run_copy.parent, check=False)
    assert done.returncode == 3
    assert "differ in scores_BAC" in done.stderr and "the first layer that diverges is backbone.stem.block" in done.stderr
    assert read_manifest(run_copy / "fuse") == before


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "rtx"])
def test_float16_asked_for_and_float32_found_exits_3(target: str, run_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip({"onnxruntime": "onnxruntime", "openvino": "openvino", "rtx": "tensorrt_rtx"}[target])
    from detkit import pipeline
    from detkit.core.errors import GateError
    from detkit.core.run import Run
    from detkit.export import variant
    from detkit.recipe.load import load

    monkeypatch.setattr(variant, "with_precision", lambda model, precision: model)
    run = Run(run_copy)
    recipe = load(run.recipe_path).derive({"compile.target": target, "compile.precision": "fp16"})
    with pytest.raises(GateError, match="in fp16, found float32") as caught:
        pipeline.update(run, recipe, "compile")
    assert caught.value.exit_code == 3 and not (run_copy / f"compile/{target}-fp16-b1").exists()


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_rtx_engines_are_built_and_proved_without_a_gpu(precision: str, run_copy: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    detkit("compile", "run", "--target", "rtx", f"--{precision}", cwd=run_copy.parent)
    manifest = read_manifest(run_copy / f"compile/rtx-{precision}-b1")
    assert manifest is not None
    wanted = {"fp16": "float16", "fp32": "float32"}[precision]
    assert manifest.results["execution_precision"] == wanted
    assert manifest.results["graph"]["conv_share"] == {wanted: 1.0}
    assert manifest.results["size_bytes"] > 100_000 and manifest.results["io"]["detections"] == ["float32", [1, 100, 6]]
    assert (run_copy / f"compile/rtx-{precision}-b1/build.log").stat().st_size > 0


def test_every_artifact_that_runs_here_gives_the_same_detections(run_copy: Path) -> None:
    for target in ("onnxruntime", "openvino"):
        detkit("compile", "run", "--target", target, "--fp32", cwd=run_copy.parent)
    scores = json.loads(detkit("eval", "run", "--json", cwd=run_copy.parent).stdout)["scores"]
    assert set(scores) == {"train", "fuse", "onnx-unsimplified", "onnx", "onnxruntime-fp32-b1", "openvino-fp32-b1"}
    reference = np.array([r["score"] for r in json.loads((run_copy / "eval/train/detections.json").read_text())])
    for name in scores:
        assert abs(scores[name]["ap"] - scores["train"]["ap"]) <= 0.001, name
        found = np.array([r["score"] for r in json.loads((run_copy / f"eval/{name}/detections.json").read_text())])
        np.testing.assert_allclose(found, reference, atol=1e-4, err_msg=name)


def test_bench_measures_the_split_and_accuracy_of_the_same_artifact(run_copy: Path) -> None:
    done = detkit("bench", "run", "--target", "onnxruntime", "--device", "cpu", "--batch", "2", "--json", cwd=run_copy.parent)
    results = json.loads(done.stdout)["results"]
    latency = json.loads((run_copy / "bench/cpu/onnxruntime-fp32-b2/latency.json").read_text())
    ordered = sorted(latency["engine_samples_ms"])
    assert results["engine"]["latency_ms_p50"] == pytest.approx(ordered[-(-len(ordered) // 2) - 1], abs=1e-4)
    assert results["engine"]["latency_ms_p50"] <= results["engine"]["latency_ms_p90"] <= results["engine"]["latency_ms_p99"]
    assert set(results["split_ms"]) == {"decode", "letterbox", "normalise", "infer", "postprocess"}
    assert sum(results["split_ms"].values()) == pytest.approx(results["file_to_boxes"]["latency_ms_p50"], rel=0.5)
    assert results["accuracy"]["num_images"] == 8 and 0 <= results["accuracy"]["ap"] <= 1


def test_flags_stick_and_training_settings_do_not_change(run_copy: Path) -> None:
    done = detkit("export", "run", "--set", "export.tolerance=2e-4", cwd=run_copy.parent)
    assert "recipe: param export.tolerance: 0.0001 -> 0.0002" in done.stderr
    assert "tolerance: 0.0002" in (run_copy / "recipe.yaml").read_text()
    refused = detkit("export", "run", "--set", "train.lr=1", cwd=run_copy.parent, check=False)
    assert refused.returncode == 1 and "so this is fixed: param train.lr" in refused.stderr


def test_predict_draws_boxes_and_skips_what_it_cannot_read(run_copy: Path, tmp_path: Path) -> None:
    from PIL import Image

    folder = tmp_path / "in"
    folder.mkdir()
    Image.new("RGB", (50, 80), (120, 30, 60)).save(folder / "good.png")
    (folder / "bad.jpg").write_bytes(b"no picture")
    detkit("predict", folder, "--run", "run", "--target", "onnxruntime", "--out", "out", cwd=run_copy.parent)
    rows = [json.loads(line) for line in (run_copy.parent / "out/detections.jsonl").read_text().splitlines()]
    assert [Path(row["file"]).name for row in rows] == ["good.png"]
    assert Image.open(run_copy.parent / "out/good.boxes.png").size == (50, 80)
    (folder / "good.png").unlink()
    done = detkit("predict", folder, "--run", "run", cwd=run_copy.parent, check=False)
    assert done.returncode == 1 and "none of the 1 pictures could be read" in done.stderr


def test_report_is_one_page_that_needs_no_network(run_copy: Path) -> None:
    detkit("eval", "run", "--artifact", "onnx", cwd=run_copy.parent)
    detkit("report", "run", cwd=run_copy.parent)
    page = (run_copy / "report.html").read_text()
    assert "http" not in page.replace("http-equiv", "") and "<script" not in page
    assert page.count("data:image/jpeg;base64,") == 12
    assert "not measured" in page and "detkit bench" in page
    assert "simplified ONNX" in page and "float64" in page
    assert "precision at IoU 0.5" in page and "<td>background</td>" in page


def test_curves_and_confusion_of_an_artifact_agree_with_its_scores(run_copy: Path) -> None:
    detkit("eval", "run", "--artifact", "onnx", cwd=run_copy.parent)
    scores, details = (json.loads((run_copy / f"eval/onnx/{name}.json").read_text()) for name in ("accuracy", "details"))
    precision = details["precision_recall"]["precision"]
    assert scores["ap50"] == pytest.approx(np.mean([np.mean(curve) for curve in precision.values()]), abs=1e-12)
    counts = np.array(details["confusion"]["counts"])
    assert counts[:-1].sum() > 0
    assert len(details["confusion"]["classes"]) == len(counts) - 1


def test_status_names_what_is_stale_and_why(run_copy: Path) -> None:
    rows = json.loads(detkit("status", "run", "--json", cwd=run_copy.parent).stdout)["stages"]
    assert {row["folder"]: row["state"] for row in rows} == dict.fromkeys(("train", "fuse", "export"), "up to date")
    text = (run_copy / "recipe.yaml").read_text().replace("opset: 17", "opset: 18")
    (run_copy / "recipe.yaml").write_text(text)
    rows = json.loads(detkit("status", "run", "--json", cwd=run_copy.parent).stdout)["stages"]
    assert rows[2] == {"folder": "export", "state": "stale", "why": ["param export.opset: 17 -> 18"]}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["bench", "run", "--device", "jetson"], 1, "is not a Jetson"),
        (["bench", "run", "--device", "toaster"], 1, "there is no device 'toaster'"),
        (["compile", "run", "--fp16", "--fp32"], 1, "exclude each other"),
        (["compile", "run", "--target", "abacus"], 2, "compile.target = 'abacus'"),
        (["eval", "run", "--artifact", "soup"], 1, "there is no artifact 'soup'"),
        (["fuse", "elsewhere"], 1, "is not a run"),
        (["train", "nothing.yaml"], 1, "there is no recipe nothing.yaml"),
        (["predict", "nothing.png", "--run", "run"], 1, "there is no nothing.png"),
        (["fuse", "run", "--set", "fuse.tolerance_float65=1"], 2, "did you mean fuse.tolerance_float64?"),
    ],
)
def test_bad_input_gets_a_sentence_and_its_exit_code(arguments: list[str], code: int, message: str, run_copy: Path) -> None:
    done = detkit(*arguments, cwd=run_copy.parent, check=False)
    assert done.returncode == code and message in done.stderr and "Traceback" not in done.stderr
    assert "jetson" not in (run_copy / "recipe.yaml").read_text()


def test_another_recipe_does_not_touch_a_run_that_is_there(run_copy: Path) -> None:
    from tests.conftest import REPOSITORY

    before = (run_copy / "recipe.yaml").read_text()
    done = detkit("train", REPOSITORY / "recipes/smoke.yaml", cwd=run_copy.parent, check=False)
    assert done.returncode == 1 and "is a run of other settings" in done.stderr and "--run run-2" in done.stderr
    assert (run_copy / "recipe.yaml").read_text() == before


def test_a_finished_training_is_up_to_date(run_copy: Path) -> None:
    done = detkit("train", "run", "--run", "run", "--json", cwd=run_copy.parent)
    assert json.loads(done.stdout)["changed"] is False


def test_doctor_env_says_why_not() -> None:
    values = json.loads(detkit("doctor", "env", "--json", cwd=Path.cwd()).stdout)
    abilities = {row["ability"]: row for row in values["abilities"]}
    assert abilities["train"]["able"] and abilities["export to ONNX"]["able"]
    assert all(row["why"] for row in values["abilities"])
