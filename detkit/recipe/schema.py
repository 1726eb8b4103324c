"""Every setting of a recipe: its type, unit, range, default and one sentence."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Rgb = tuple[float, float, float]
Block = Literal["dbb", "repvgg", "qarepvgg", "orepa", "plain"]
Precision = Literal["fp32", "fp16", "bf16"]
DataFormat = Literal["auto", "coco", "voc", "yolo", "labelme", "cvat", "openimages", "masks", "shards", "scenes"]
Target = Literal["auto", "onnxruntime", "openvino", "rtx", "tensorrt"]


class Section(BaseModel):
    """A frozen group of settings that refuses names it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SceneSettings(Section):
    """Drawn scenes, used where `data.format` is `scenes`."""

    num_train: int = Field(default=400, ge=1, description="Number of drawn training pictures.")
    num_val: int = Field(default=100, ge=1, description="Number of drawn held-out pictures.")
    picture_hw: tuple[int, int] = Field(default=(240, 320), description="Height and width of a drawn picture, px.")
    max_objects: int = Field(default=8, ge=1, le=100, description="Most objects in one picture.")
    seed: int = Field(default=0, ge=0, description="Seed of the drawing; pictures depend on nothing else.")


class AugmentSettings(Section):
    """Random changes to training pictures; none is applied in evaluation."""

    flip_horizontal: Fraction = Field(default=0.5, description="Probability of mirroring left-right.")
    flip_vertical: Fraction = Field(default=0.0, description="Probability of mirroring top-bottom.")
    scale: tuple[float, float] = Field(default=(0.5, 1.5), description="Range of the random zoom factor.")
    translate: Fraction = Field(default=0.1, description="Largest random shift, as a fraction of the input side.")
    brightness: Fraction = Field(default=0.3, description="Largest relative change of brightness.")
    contrast: Fraction = Field(default=0.3, description="Largest relative change of contrast.")
    saturation: Fraction = Field(default=0.5, description="Largest relative change of saturation.")
    hue: float = Field(default=0.015, ge=0.0, le=0.5, description="Largest shift of hue, in turns of the colour circle.")
    mosaic: Fraction = Field(default=0.5, description="Probability of composing a picture from four.")
    close_last_epochs: int = Field(default=10, ge=0, description="Last epochs without mosaic and with gentle zoom.")
    min_box_px: float = Field(default=2.0, ge=0.0, description="Boxes whose side falls below this after a change are dropped, px.")
    min_visible: Fraction = Field(default=0.2, description="Boxes of which less than this area stays visible are dropped.")

    @model_validator(mode="after")
    def _scale_is_a_range(self) -> "AugmentSettings":
        low, high = self.scale
        if not 0 < low <= high:
            raise ValueError(f"scale must be 0 < low <= high, got {low}, {high}")
        return self


class DataSettings(Section):
    """Where pictures and labels are, and how they become network inputs."""

    format: DataFormat = Field(default="auto", description="Label format; auto looks at root.")
    root: str = Field(default="", description="Folder of the data set; relative paths start at the working directory.")
    train: tuple[str, ...] = Field(
        default=("train",), description="Training parts: VOC list names or COCO annotation files below root."
    )
    val: tuple[str, ...] = Field(default=("val",), description="Parts that are scored: VOC list names or COCO annotation files.")
    images: str = Field(default="", description="Folder of the pictures below root; empty means the format's usual place.")
    labels: str = Field(
        default="", description="Folder of the label files below root, or the extension of labels in shards; empty means as usual."
    )
    ignore_ids: tuple[int, ...] = Field(default=(), description="Pixel values of semantic masks that belong to no class, beside 255.")
    classes: tuple[str, ...] = Field(default=(), description="Class names in label order; empty means as found, sorted by id or name.")
    image_size_px: int = Field(default=320, ge=32, le=4096, multiple_of=32, description="Side of the square network input, px.")
    pad_value: int = Field(default=114, ge=0, le=255, description="Grey level of the letterbox border.")
    mean: Rgb = Field(default=(0.0, 0.0, 0.0), description="Mean subtracted from RGB values in [0, 1].")
    std: Rgb = Field(default=(1.0, 1.0, 1.0), description="Divisor of RGB values after the mean is subtracted.")
    on_bad: Literal["refuse", "skip", "clip"] = Field(
        default="refuse",
        description="What training does with errors in labels and pictures: refuse to start, skip them, or clip boxes where "
        "that mends them.",
    )
    outside_tolerance_px: float = Field(
        default=1.0, ge=0.0, description="How far a box may leave its picture before that is reported, px; it is clipped in any case."
    )
    verify: Literal["decode", "header", "off"] = Field(
        default="decode",
        description="How pictures are checked before training: decoded whole, by their headers, or not. Verdicts are "
        "remembered until a file changes.",
    )
    cache_mb: int = Field(
        default=2048, ge=0, description="Memory for decoded pictures, MiB, all processes together; 0 decodes every time."
    )
    workers: int = Field(default=1, ge=0, le=64, description="Loader processes per training process; 0 loads in the training process.")
    augment: AugmentSettings = AugmentSettings()
    scenes: SceneSettings = SceneSettings()


class ModelSettings(Section):
    """The network."""

    size: Literal["n", "s", "m"] = Field(default="n", description="Width and depth of detkit's own network.")
    block: Block = Field(default="dbb", description="Trainable block behind every 3x3 convolution; all fuse to one convolution.")
    backbone: str = Field(default="detkit", description="detkit, or timm:NAME or torchvision:NAME with features at strides 8/16/32.")
    pretrained: str = Field(
        default="", description="Weights of a timm or torchvision backbone: a file, or `hub`; empty starts from random."
    )
    block_statistics: Literal["exact", "sampled"] = Field(
        default="exact",
        description="How a diverse-branch block normalises in training: every branch on the whole batch, or branch "
        "statistics from a quarter of the batch and one merged convolution, which is cheaper.",
    )
    max_detections: int = Field(default=100, ge=1, le=3840, description="K, rows of the fixed-shape output (K x 6).")


class TrainSettings(Section):
    """The training loop."""

    epochs: int = Field(default=100, ge=1, description="Passes over the training pictures.")
    batch: int = Field(default=16, ge=1, description="Global batch in pictures, over all processes and accumulation steps.")
    max_batch_per_device: int = Field(
        default=64, ge=1, description="Most pictures in one forward pass of one process; sets accumulation."
    )
    optimizer: Literal["adamw", "sgd"] = Field(default="adamw", description="Optimizer.")
    lr: float = Field(
        default=1e-3, gt=0, description="Peak learning rate at `lr_batch` pictures; scaled linearly to the global batch."
    )
    lr_batch: int = Field(default=16, ge=1, description="Batch at which `lr` holds.")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="SGD momentum, or AdamW's first beta.")
    weight_decay: float = Field(default=0.05, ge=0, description="Weight decay of convolution weights; norms and biases have none.")
    warmup_iterations: int = Field(default=200, ge=0, description="Iterations of linear warm-up.")
    schedule: Literal["cosine", "step"] = Field(default="cosine", description="Learning-rate schedule after warm-up.")
    steps: tuple[Fraction, ...] = Field(default=(0.67, 0.89), description="Progress at which `step` divides the rate by ten.")
    final_lr: Fraction = Field(default=0.01, description="Last learning rate of the cosine, as a fraction of the peak.")
    precision: Precision = Field(
        default="fp32", description="Arithmetic of convolutions: fp32, bf16, or fp16 with dynamic loss scale."
    )
    norm: Literal["local", "sync"] = Field(
        default="local", description="Batch normalisation by the pictures of each process, or of `norm_group` over processes."
    )
    norm_group: int = Field(
        default=0, ge=0, description="Pictures that `sync` normalises together in one forward pass; 0 for those of all processes."
    )
    channels_last: bool = Field(default=True, description="Keep activations in NHWC order.")
    ema_decay: float = Field(default=0.9998, ge=0, lt=1, description="Decay of the weight average; 0 turns it off.")
    ema_warmup_iterations: int = Field(default=2000, ge=1, description="Time constant of the decay's own warm-up, iterations.")
    clip_norm: float = Field(default=10.0, ge=0, description="Largest gradient norm; 0 turns clipping off.")
    eval_every_epochs: int = Field(default=10, ge=1, description="Epochs between validations; the last epoch is always scored.")
    checkpoint_every_epochs: int = Field(default=1, ge=1, description="Epochs between writes of last.ckpt.")
    checkpoint_every_iterations: int = Field(
        default=1000, ge=0, description="Optimizer steps between writes of last.ckpt within long epochs; 0 for none."
    )
    seed: int = Field(default=0, ge=0, description="Seed of weights, order and augmentation.")
    probe_images: int = Field(default=8, ge=1, le=256, description="Validation pictures kept in probe.npz for the parity gates.")


class FuseSettings(Section):
    """Folding of training blocks into plain convolutions."""

    tolerance_float64: float = Field(
        default=1e-9, gt=0, description="Largest difference of raw outputs in float64, relative to their max."
    )
    tolerance_float32: float = Field(
        default=1e-4, gt=0, description="Largest difference of raw outputs in float32, relative to their max."
    )


class ExportSettings(Section):
    """torch to ONNX."""

    opset: int = Field(default=17, ge=17, le=23, description="ONNX operator set.")
    simplify: bool = Field(default=True, description="Run onnxsim in a subprocess and keep its result if it proves equal.")
    simplify_timeout_s: float = Field(default=120.0, gt=0, description="Time limit of the simplifier, s.")
    tolerance: float = Field(default=1e-4, gt=0, description="Largest difference of outputs in ONNX Runtime, relative to their max.")
    uint8_input: bool = Field(default=False, description="Take uint8 NHWC pictures and normalise inside the graph.")


class CompileSettings(Section):
    """ONNX to the artifact that ships."""

    target: Target = Field(default="auto", description="Library that runs the artifact; auto takes the best that this machine runs.")
    precision: Literal["fp32", "fp16"] = Field(
        default="fp32", description="Arithmetic written into the graph and proved after the build."
    )
    batch: int = Field(default=1, ge=1, le=1024, description="Static batch of the artifact, pictures.")
    max_ap_drop: Fraction = Field(default=0.005, description="Largest loss of AP against the exported graph, in AP (0 to 1).")
    optimization_level: int = Field(default=3, ge=0, le=5, description="TensorRT builder optimisation level.")
    workspace_mb: int = Field(default=1024, ge=16, description="TensorRT builder workspace, MiB.")
    compute_capability: str = Field(default="8.9", description="GPU generation for `rtx`, as major.minor.")


class BenchSettings(Section):
    """Measurement of a compiled artifact."""

    device: str = Field(default="cpu", description="cpu, cuda, jetson, or a device the user added.")
    duration_s: float = Field(default=5.0, gt=0, description="Length of each timed part, s.")
    warmup_s: float = Field(default=10.0, gt=0, description="Longest warm-up; it ends earlier once stable, s.")
    max_variation: Fraction = Field(default=0.05, description="Coefficient of variation of block medians that counts as stable.")
    threads: int = Field(default=0, ge=0, description="CPU threads of the engine; 0 leaves the library's default.")
    accuracy_images: int = Field(default=0, ge=0, description="Validation pictures scored through the artifact; 0 means all.")


class ExpectSettings(Section):
    """The accuracy that a recipe promises."""

    ap: float | None = Field(default=None, ge=0, le=1, description="COCO AP on the scored part, 0 to 1.")
    ap50: float | None = Field(default=None, ge=0, le=1, description="COCO AP at IoU 0.50, 0 to 1.")
    tolerance: Fraction = Field(default=0.01, description="Shortfall that still passes.")


class Recipe(Section):
    """A frozen, validated tree of settings."""

    name: str = Field(default="unnamed", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Name shown in reports.")
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    train: TrainSettings = TrainSettings()
    fuse: FuseSettings = FuseSettings()
    export: ExportSettings = ExportSettings()
    compile: CompileSettings = CompileSettings()
    bench: BenchSettings = BenchSettings()
    expect: ExpectSettings = ExpectSettings()

    def derive(self, changes: dict[str, Any]) -> "Recipe":
        """Return a new validated recipe with `changes` merged in, section by section.

        Keys are section names holding dicts, or dotted names: `{"train": {"lr": 0.01}}` or `{"train.lr": 0.01}`.
        Raises pydantic.ValidationError for unknown names and values out of range.
        """
        return Recipe.model_validate(merged(self.model_dump(), nested(changes)))


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into nested dicts: `{"a.b": 1}` becomes `{"a": {"b": 1}}`."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *sections, leaf = name.split(".")
        node: dict[str, Any] = {leaf: nested(value) if isinstance(value, dict) else value}
        for section in reversed(sections):
            node = {section: node}
        tree = merged(tree, node)
    return tree


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes` laid over it; dicts merge, everything else replaces."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result
