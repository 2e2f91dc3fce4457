"""Plans: what a device trains. Read, verified and opened here, without torch or onnx."""

from kellet.sdk.plan.checkpoint import export_model
from kellet.sdk.plan.evaluator import Evaluator, Metrics
from kellet.sdk.plan.manifest import InputSpec, LabelSpec, Manifest, TensorSpec
from kellet.sdk.plan.plan import BUILTIN_PLANS, Plan
from kellet.sdk.plan.selftest import SelfTestResult
from kellet.sdk.plan.session import GradientSession

__all__ = [
    "BUILTIN_PLANS",
    "Evaluator",
    "GradientSession",
    "InputSpec",
    "LabelSpec",
    "Manifest",
    "Metrics",
    "Plan",
    "SelfTestResult",
    "TensorSpec",
    "export_model",
]
