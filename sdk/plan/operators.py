"""Operators that a plan may use: those that run in onnxruntime from 1.20 on.

Each is in ONNX's default domain up to opset 21, and has a CPU kernel in
onnxruntime 1.20 for the dtypes that a plan uses. Left out on purpose: loops
and branches (a plan's step ends), random operators (a step is a function of
its inputs), sequences, optionals, strings and files.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_IR_VERSION", "MAX_OPSET", "MIN_ONNXRUNTIME", "MIN_OPSET", "OPERATORS"]

MIN_ONNXRUNTIME: Final = "1.20"
MIN_OPSET: Final = 13
MAX_OPSET: Final = 21
MAX_IR_VERSION: Final = 10

_NAMES: Final = """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool
    BatchNormalization Cast CastLike Ceil Celu Clip Concat Constant ConstantOfShape
    Conv ConvInteger ConvTranspose Cos Cosh CumSum DepthToSpace DequantizeLinear Div
    DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand EyeLike Flatten Floor GRU
    Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater
    GreaterOrEqual GroupNormalization HardSigmoid HardSwish Hardmax Identity
    InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less
    LessOrEqual Log LogSoftmax LpNormalization MatMul MatMulInteger Max MaxPool Mean
    MeanVarianceNormalization Min Mish Mod Mul Neg NegativeLogLikelihoodLoss NonZero
    Not OneHot Or PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear RNN Range
    Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize Round
    ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice
    Softmax SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split Sqrt Squeeze
    Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Where Xor
"""

OPERATORS: Final = frozenset(_NAMES.split())
