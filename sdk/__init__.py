"""What runs on a device.

>>> from kellet.sdk import Device, Plan, algorithms
"""

from kellet.sdk import algorithms
from kellet.sdk.plan import Plan
from kellet.sdk.runner import Device

__all__ = ["Device", "Plan", "algorithms"]
