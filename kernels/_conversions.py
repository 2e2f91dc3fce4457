"""Conversions between 64-bit integers and doubles, for 32-bit ARM processors without them.

LLVM calls the run-time library there. These bear the names and the calling
convention that ARM's run-time ABI gives, and are to be local to the object:
then it needs no library and clashes with none.
"""

from __future__ import annotations

__all__ = ["ARM_CONVERSIONS"]


def _to_double(name: str, convert: str) -> str:
    """Both halves are exact as doubles, and their sum is rounded once."""
    return f"""
define arm_aapcscc double @{name}(i64 %q) {{
  %shifted = lshr i64 %q, 32
  %high = trunc i64 %shifted to i32
  %low = trunc i64 %q to i32
  %high_double = {convert} i32 %high to double
  %above = fmul double %high_double, 4294967296.0
  %low_double = uitofp i32 %low to double
  %result = fadd double %above, %low_double
  ret double %result
}}
"""


# Toward zero, for magnitudes below 2**63; every step is exact. The hexadecimal number is 2**-32.
_TO_INTEGER = """
declare double @llvm.fabs.f64(double)

define arm_aapcscc i64 @__aeabi_d2lz(double %v) {
  %magnitude = call double @llvm.fabs.f64(double %v)
  %scaled = fmul double %magnitude, 0x3DF0000000000000
  %high = fptoui double %scaled to i32
  %high_double = uitofp i32 %high to double
  %above = fmul double %high_double, 4294967296.0
  %rest = fsub double %magnitude, %above
  %low = fptoui double %rest to i32
  %high_wide = zext i32 %high to i64
  %shifted = shl i64 %high_wide, 32
  %low_wide = zext i32 %low to i64
  %whole = or i64 %shifted, %low_wide
  %negated = sub i64 0, %whole
  %is_negative = fcmp olt double %v, 0.0
  %result = select i1 %is_negative, i64 %negated, i64 %whole
  ret i64 %result
}
"""

ARM_CONVERSIONS = (
    _TO_INTEGER + _to_double("__aeabi_l2d", "sitofp") + _to_double("__aeabi_ul2d", "uitofp")
)
