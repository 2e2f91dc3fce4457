"""One library for every x86-64 processor: LLVM IR that finds the level and calls the right build.

The levels are those of the x86-64 psABI. CPUID says what the processor has,
XGETBV whether the system saves the wide registers.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["LEVELS", "suffix", "x86_dispatch"]

LEVELS = (2, 3, 4)


def _bits(*positions: int) -> int:
    return sum(1 << position for position in positions)


_V2_LEAF1_ECX = _bits(0, 9, 13, 19, 20, 23)  # SSE3 SSSE3 CMPXCHG16B SSE4.1 SSE4.2 POPCNT
_V2_EXTENDED_ECX = _bits(0)  # LAHF
_V3_LEAF1_ECX = _bits(12, 22, 27, 28, 29)  # FMA MOVBE OSXSAVE AVX F16C
_V3_EXTENDED_ECX = _bits(5)  # LZCNT
_V3_LEAF7_EBX = _bits(3, 5, 8)  # BMI1 AVX2 BMI2
_V3_XCR0 = _bits(1, 2)  # SSE and AVX registers
_V4_LEAF7_EBX = _bits(16, 17, 28, 30, 31)  # AVX512 F DQ CD BW VL
_V4_XCR0 = _bits(1, 2, 5, 6, 7)  # and the AVX-512 ones


def _require(label: str, then: str, otherwise: str, *wanted: tuple[str, int]) -> str:
    """Return a block that goes on to ``then`` where every register has all its bits."""
    lines = [f"{label}:"]
    missing = []
    for i, (register, bits) in enumerate(wanted):
        lines.append(f"  %{label}.has{i} = and i32 %{register}, {bits}")
        lines.append(f"  %{label}.lacks{i} = xor i32 %{label}.has{i}, {bits}")
        missing.append(f"%{label}.lacks{i}")
    total = missing[0]
    for i, value in enumerate(missing[1:]):
        lines.append(f"  %{label}.or{i} = or i32 {total}, {value}")
        total = f"%{label}.or{i}"
    lines.append(f"  %{label}.ok = icmp eq i32 {total}, 0")
    lines.append(f"  br i1 %{label}.ok, label %{then}, label %{otherwise}")
    return "\n".join(lines)


_CPUID = "={ax},={bx},={cx},={dx},{ax},{cx}"
_DETECT = f"""
%registers = type {{ i32, i32, i32, i32 }}

define internal %registers @cpuid(i32 %leaf) noinline {{
  %r = call %registers asm "cpuid", "{_CPUID}"(i32 %leaf, i32 0)
  ret %registers %r
}}

define internal i32 @detect() noinline {{
  %r0 = call %registers @cpuid(i32 0)
  %last = extractvalue %registers %r0, 0
  %r1 = call %registers @cpuid(i32 1)
  %ecx1 = extractvalue %registers %r1, 2
  %e0 = call %registers @cpuid(i32 2147483648)
  %last_extended = extractvalue %registers %e0, 0
  %has_extended = icmp ugt i32 %last_extended, 2147483648
  br i1 %has_extended, label %extended, label %none
extended:
  %e1 = call %registers @cpuid(i32 2147483649)
  %ecx_extended = extractvalue %registers %e1, 2
  br label %v2
{_require("v2", "wide", "none", ("ecx1", _V2_LEAF1_ECX), ("ecx_extended", _V2_EXTENDED_ECX))}
wide:
  %has_leaf7 = icmp uge i32 %last, 7
  br i1 %has_leaf7, label %v3, label %is2
{_require("v3", "leaf7", "is2", ("ecx1", _V3_LEAF1_ECX), ("ecx_extended", _V3_EXTENDED_ECX))}
leaf7:
  %r7 = call %registers @cpuid(i32 7)
  %ebx7 = extractvalue %registers %r7, 1
  %xcr = call {{ i32, i32 }} asm sideeffect "xgetbv", "={{ax}},={{dx}},{{cx}}"(i32 0)
  %xcr0 = extractvalue {{ i32, i32 }} %xcr, 0
  br label %avx2
{_require("avx2", "avx512", "is2", ("ebx7", _V3_LEAF7_EBX), ("xcr0", _V3_XCR0))}
{_require("avx512", "is4", "is3", ("ebx7", _V4_LEAF7_EBX), ("xcr0", _V4_XCR0))}
none:
  ret i32 1
is2:
  ret i32 2
is3:
  ret i32 3
is4:
  ret i32 4
}}

; 0 is not looked at yet. Two threads may both look: they find the same.
@level = internal global i32 0

define internal i32 @level_in_use() {{
  %known = load atomic i32, ptr @level monotonic, align 4
  %is_known = icmp ne i32 %known, 0
  br i1 %is_known, label %done, label %look
look:
  %found = call i32 @detect()
  store atomic i32 %found, ptr @level monotonic, align 4
  ret i32 %found
done:
  ret i32 %known
}}

define i32 @kellet_level() {{
  %level = call i32 @level_in_use()
  ret i32 %level
}}

define i32 @kellet_limit_level(i32 %highest) {{
  %found = call i32 @detect()
  %lower = icmp slt i32 %highest, %found
  %level = select i1 %lower, i32 %highest, i32 %found
  store atomic i32 %level, ptr @level monotonic, align 4
  ret i32 %level
}}
"""


def suffix(level: int) -> str:
    """Return what a level's build adds to the name of a public function."""
    return f"_v{level}"


def x86_dispatch(signatures: Mapping[str, tuple[str, str, str]]) -> str:
    """Return the IR of the public functions, each a jump to the build for this processor.

    ``signatures`` gives by name the result, the parameters and their names, in
    LLVM's notation. On a processor below level 2 ``kellet_level`` says 1 and
    no kernel may be called.
    """
    return _DETECT + "".join(_jump(name, *parts) for name, parts in signatures.items())


def _jump(name: str, result: str, parameters: str, passed: str) -> str:
    declarations, blocks = "", ""
    for level in LEVELS:
        build = name + suffix(level)
        declarations += f"declare hidden {result} @{build}({parameters})\n"
        call = f"tail call {result} @{build}({passed})"
        if result == "void":
            blocks += f"v{level}:\n  {call}\n  ret void\n"
        else:
            blocks += f"v{level}:\n  %r{level} = {call}\n  ret {result} %r{level}\n"
    return f"""
{declarations}
define {result} @{name}({parameters}) {{
  %level = call i32 @level_in_use()
  switch i32 %level, label %v2 [ i32 3, label %v3 i32 4, label %v4 ]
{blocks}}}
"""
