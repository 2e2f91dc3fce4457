"""Plans: what a device trains. Read, verified and opened here, without torch or onnx."""

from kellet.sdk.plan.checkpoint import export_model
from kellet.sdk.plan.evaluator import Evaluator, Metrics
from kellet.sdk.plan.int8_session import Int8Session
from kellet.sdk.plan.manifest import InputSpec, LabelSpec, Manifest, TensorSpec, Variant
from kellet.sdk.plan.plan import BUILTIN_PLANS, Plan
from kellet.sdk.plan.schemes import SCHEMES, Int8Layout, check_scheme, family
from kellet.sdk.plan.selftest import SelfTestResult
from kellet.sdk.plan.session import GradientSession

__all__ = [
    "BUILTIN_PLANS",
    "SCHEMES",
    "Evaluator",
    "GradientSession",
    "InputSpec",
    "Int8Layout",
    "Int8Session",
    "LabelSpec",
    "Manifest",
    "Metrics",
    "Plan",
    "SelfTestResult",
    "TensorSpec",
    "Variant",
    "check_scheme",
    "export_model",
    "family",
]
