"""The one way from a picture to a network input and back, used by training, scoring, calibration, prediction and bench."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from detkit.recipe.schema import DataSettings, Rgb


@dataclass(frozen=True)
class Placement:
    """Where a picture lies in the input: input = original * scale + offset, per axis; sizes in px."""

    scale_x: float
    scale_y: float
    left: int
    top: int
    width: int
    height: int


@dataclass(frozen=True)
class Geometry:
    """Letterbox: the picture keeps its shape, its long side fills the square input, grey fills the rest evenly.

    Pictures are RGB uint8 (H, W, 3), upright by EXIF (`images.read_image`). Values are normalised as
    (x / 255 - mean) / std, written as one multiplication and one addition in float32.
    """

    size_px: int
    pad_value: int = 114
    mean: Rgb = (0.0, 0.0, 0.0)
    std: Rgb = (1.0, 1.0, 1.0)

    @staticmethod
    def from_settings(settings: DataSettings) -> "Geometry":
        return Geometry(settings.image_size_px, settings.pad_value, settings.mean, settings.std)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Geometry":
        return Geometry(values["size_px"], values["pad_value"], tuple(values["mean"]), tuple(values["std"]))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for model cards and contracts."""
        return {
            "size_px": self.size_px,
            "resize": "letterbox, centred, bilinear with antialiasing",
            "pad_value": self.pad_value,
            "colour_order": "RGB",
            "exif": "transposed upright",
            "mean": list(self.mean),
            "std": list(self.std),
        }

    def place(self, original_hw: tuple[int, int]) -> Placement:
        """Placement of a picture of height and width `original_hw`."""
        height, width = original_hw
        ratio = self.size_px / max(height, width)
        new_width, new_height = max(1, round(width * ratio)), max(1, round(height * ratio))
        return Placement(
            scale_x=new_width / width,
            scale_y=new_height / height,
            left=(self.size_px - new_width) // 2,
            top=(self.size_px - new_height) // 2,
            width=new_width,
            height=new_height,
        )

    def resized(self, image: np.ndarray) -> np.ndarray:
        """The picture at the size it has inside the input, without border: (H, W, 3) uint8."""
        where = self.place(image.shape[:2])
        if image.shape[:2] == (where.height, where.width):
            return image
        picture = Image.fromarray(image).resize((where.width, where.height), Image.Resampling.BILINEAR)
        return np.asarray(picture)

    def letterbox(self, image: np.ndarray) -> np.ndarray:
        """The network input before normalisation: (size_px, size_px, 3) uint8."""
        where = self.place(image.shape[:2])
        canvas = np.full((self.size_px, self.size_px, 3), self.pad_value, np.uint8)
        canvas[where.top : where.top + where.height, where.left : where.left + where.width] = self.resized(image)
        return canvas

    def scale_and_shift(self) -> tuple[np.ndarray, np.ndarray]:
        """float32 (3,) factors of the normalisation: x * scale + shift."""
        std = np.asarray(self.std, np.float32)
        return 1.0 / (np.float32(255.0) * std), -np.asarray(self.mean, np.float32) / std

    def normalised(self, images_u8: np.ndarray) -> np.ndarray:
        """uint8 (N, H, W, 3) -> float32 (N, 3, H, W), contiguous."""
        scale, shift = self.scale_and_shift()
        return np.ascontiguousarray((images_u8.astype(np.float32) * scale + shift).transpose(0, 3, 1, 2))

    def boxes_input_from_original(self, boxes_xyxy: np.ndarray, original_hw: tuple[int, int]) -> np.ndarray:
        """Boxes (N, 4) xyxy from px of the original picture to px of the input, float32."""
        where = self.place(original_hw)
        scale = np.array([where.scale_x, where.scale_y] * 2, np.float32)
        offset = np.array([where.left, where.top] * 2, np.float32)
        return np.asarray(boxes_xyxy, np.float32).reshape(-1, 4) * scale + offset

    def boxes_original_from_input(self, boxes_xyxy: np.ndarray, original_hw: tuple[int, int]) -> np.ndarray:
        """Boxes (N, 4) xyxy from px of the input to px of the original picture, clipped to it, float32."""
        height, width = original_hw
        where = self.place(original_hw)
        scale = np.array([where.scale_x, where.scale_y] * 2, np.float32)
        offset = np.array([where.left, where.top] * 2, np.float32)
        boxes = (np.asarray(boxes_xyxy, np.float32).reshape(-1, 4) - offset) / scale
        return np.clip(boxes, 0, np.array([width, height] * 2, np.float32))
