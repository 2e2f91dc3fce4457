"""A second model on each device, of its own: it never leaves it.

Beside every algorithm: the fleet's model is trained as ever, and then the device makes a model
that fits its own data, in the way that the operator announces (``Ditto``, ``FineTune``) unless
its owner has turned that off. It lies in the device's store, survives power loss, and can be
exported as ONNX. Of it the aggregator hears two numbers, measured on the device's hold-out.
"""

from kellet.sdk.personal.methods import METHODS, Ditto, FineTune, Personal, from_wire, parse

__all__ = ["METHODS", "Ditto", "FineTune", "Personal", "from_wire", "parse"]
