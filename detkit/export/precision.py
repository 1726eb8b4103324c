"""Write a precision into an ONNX graph by casts, so that every builder has to follow it."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from detkit.core.errors import UserError

LARGEST_FP16 = 65504.0
# Inputs that ONNX fixes to float32 whatever the data type: roi and scales of Resize.
ALWAYS_FLOAT = {"Resize": (1, 2)}


def with_precision(model: onnx.ModelProto, precision: str) -> onnx.ModelProto:
    """`model` itself for fp32; for fp16 a copy whose convolutions and everything between them are float16.

    Inputs and outputs keep their types. What follows the last convolution on every path, that is box decoding, score
    sigmoid and top-k, stays float32: pixel coordinates above 512 have steps of half a pixel in float16, and scores
    would tie. Raises UserError for weights beyond the range of float16.
    """
    if precision == "fp32":
        return model
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    constants_to_initializers(copied)
    writer = HalfWriter(onnx.shape_inference.infer_shapes(copied))
    nodes = [new for node in copied.graph.node for new in writer.rewritten(node)]
    nodes += writer.output_casts()
    del copied.graph.node[:]
    copied.graph.node.extend(nodes)
    copied.graph.initializer.extend(writer.initializers.values())
    drop_unused_initializers(copied)
    del copied.graph.value_info[:]
    onnx.checker.check_model(copied, full_check=True)
    return copied


class HalfWriter:
    """Rewrites nodes one by one, in topological order, and remembers which values have become float16."""

    def __init__(self, inferred: onnx.ModelProto) -> None:
        graph = inferred.graph
        self._types = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.input, *graph.output)}
        self._weights = {t.name: t for t in graph.initializer}
        self._outputs = {v.name for v in graph.output}
        self._tail = set(tail_nodes(inferred))
        self._half: set[str] = set()
        self._read_as_half: set[str] = set()
        self._cast: set[str] = set()
        self.initializers: dict[str, onnx.TensorProto] = {}

    def rewritten(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """`node` with its inputs in the right type, preceded by the casts that it is the first to need."""
        is_tail = node.name in self._tail
        casts: list[onnx.NodeProto] = []
        for index, name in enumerate(node.input):
            if index in ALWAYS_FLOAT.get(node.op_type, ()):
                continue
            node.input[index] = self._as_single(name, casts) if is_tail else self._as_half(name, casts)
        # A node without float16 inputs (ConstantOfShape, Range of integers) goes on making float32; a cast is turned.
        if not is_tail and (node.op_type == "Cast" or not self._read_as_half.isdisjoint(node.input)):
            for index, name in enumerate(node.output):
                if self._types.get(name) == TensorProto.FLOAT:
                    self._half.add(name)
                    if name in self._outputs:
                        node.output[index] = f"{name}_fp16"
            for attribute in node.attribute:
                if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                    attribute.i = TensorProto.FLOAT16
        return [*casts, node]

    def output_casts(self) -> list[onnx.NodeProto]:
        """Casts that give graph outputs their float32 back where no tail follows the last convolution."""
        names = sorted(self._half & self._outputs)
        return [cast(f"{name}_fp16", name, TensorProto.FLOAT) for name in names]

    def _as_half(self, name: str, casts: list[onnx.NodeProto]) -> str:
        kind = self._weights[name].data_type if name in self._weights else self._types.get(name)
        if kind != TensorProto.FLOAT:
            return name
        if name in self._weights:
            half_name = self._half_weight(name)
        elif name in self._half:
            half_name = f"{name}_fp16" if name in self._outputs else name
        else:
            half_name = self._casted(name, f"{name}_fp16", TensorProto.FLOAT16, casts)
        self._read_as_half.add(half_name)
        return half_name

    def _as_single(self, name: str, casts: list[onnx.NodeProto]) -> str:
        if name not in self._half or name in self._outputs:
            return name
        return self._casted(name, f"{name}_fp32", TensorProto.FLOAT, casts)

    def _half_weight(self, name: str) -> str:
        half_name = f"{name}_fp16"
        if half_name not in self.initializers:
            values = numpy_helper.to_array(self._weights[name])
            refuse_large(values, name)
            self.initializers[half_name] = numpy_helper.from_array(values.astype(np.float16), half_name)
        return half_name

    def _casted(self, name: str, new: str, kind: int, casts: list[onnx.NodeProto]) -> str:
        if new not in self._cast:
            self._cast.add(new)
            casts.append(cast(name, new, kind))
        return new


def cast(source: str, target: str, kind: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"cast/{target}", to=kind)


def tail_nodes(model: onnx.ModelProto) -> list[str]:
    """Names of nodes after the last convolution on every path: no convolution is downstream of them."""
    consumers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)
    feeds_conv: dict[str, bool] = {}
    # Nodes are in topological order, so consumers come later.
    for node in reversed(model.graph.node):
        after = [user for output in node.output for user in consumers.get(output, [])]
        feeds_conv[node.name] = node.op_type == "Conv" or any(feeds_conv[user.name] for user in after)
    return [node.name for node in model.graph.node if not feeds_conv[node.name]]


def constants_to_initializers(model: onnx.ModelProto) -> None:
    """Turn Constant nodes that hold a tensor into initializers, in place, so that weights have one form."""
    kept = []
    for node in model.graph.node:
        tensors = [a.t for a in node.attribute if a.name == "value"]
        if node.op_type == "Constant" and tensors:
            tensors[0].name = node.output[0]
            model.graph.initializer.append(tensors[0])
        else:
            kept.append(node)
    del model.graph.node[:]
    model.graph.node.extend(kept)


def drop_unused_initializers(model: onnx.ModelProto) -> None:
    used = {name for node in model.graph.node for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


def refuse_large(values: np.ndarray, name: str) -> None:
    """Raises UserError where float16 would turn a weight into infinity."""
    if values.size and not np.abs(values).max() <= LARGEST_FP16:
        raise UserError(
            f"weight {name} reaches {np.abs(values).max():.3g}, float16 ends at {LARGEST_FP16:g}",
            hint="detkit compile --fp32",
        )
