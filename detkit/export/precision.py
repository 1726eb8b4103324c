"""Write a precision into an ONNX graph by casts, so that every builder has to follow it."""

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from detkit.core.errors import UserError

LARGEST_FP16 = 65504.0


def with_precision(model: onnx.ModelProto, precision: str) -> onnx.ModelProto:
    """`model` itself for fp32; for fp16 a copy whose convolutions and everything between them are float16.

    Inputs and outputs keep float32. What follows the last convolution on every path, that is box decoding, score
    sigmoid and top-k, stays float32: pixel coordinates above 512 have steps of half a pixel in float16, and scores
    would tie. Raises UserError for weights beyond the range of float16.
    """
    if precision == "fp32":
        return model
    from onnxconverter_common import float16

    refuse_large_weights(model)
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    return float16.convert_float_to_float16(
        copied,
        keep_io_types=True,
        op_block_list=[],
        node_block_list=tail_nodes(model),
        min_positive_val=float(np.finfo(np.float16).tiny),
        max_finite_val=LARGEST_FP16,
    )


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


def refuse_large_weights(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT:
            continue
        values = numpy_helper.to_array(tensor)
        if values.size and not np.abs(values).max() <= LARGEST_FP16:
            raise UserError(
                f"weight {tensor.name} reaches {np.abs(values).max():.3g}, float16 ends at {LARGEST_FP16:g}",
                hint="detkit compile --fp32",
            )
