"""What the kernels are compiled for: LLVM's words for each kind of processor and system."""

from __future__ import annotations

from typing import Literal, NamedTuple

from kellet.kernels import _dispatch

__all__ = ["ANY", "TARGETS", "Build", "Target"]


ANY = "generic"  # LLVM's word for no processor in particular


class Build(NamedTuple):
    """One round of code generation: an LLVM processor name, and the suffix of its symbols."""

    cpu: str = ""
    suffix: str = ""


class Target(NamedTuple):
    """A kind of processor and system, and what is made for it.

    ``form`` is the file: ELF's shared ``library``, a WebAssembly ``module``, or
    one relocatable ``object`` to be linked into a program. Every target but one
    of several builds can also be had as an object.
    """

    triple: str
    form: Literal["library", "module", "object"]
    about: str
    builds: tuple[Build, ...] = (Build(),)
    tunings: tuple[str, ...] = (ANY,)  # processors that the code can be laid out for
    features: str = ""
    position_independent: bool = True
    doubles: bool = True  # else kernels that compute in double precision are left out
    own_conversions: bool = False  # between 64-bit integers and doubles: see _conversions

    def suffixes(self) -> tuple[str, ...]:
        """Return the file names' suffixes that may be asked for, the usual one first."""
        usual = {"library": ".so", "module": ".wasm", "object": ".o"}[self.form]
        return (usual,) if usual == ".o" or len(self.builds) > 1 else (usual, ".o")


_ARM64 = (ANY, "cortex-a53", "cortex-a72", "cortex-a76")

TARGETS = {
    "x86_64": Target(
        "x86_64-unknown-linux-gnu",
        "library",
        "Linux, any processor from x86-64-v2 up: the build for its level is chosen at load",
        tuple(Build(f"x86-64-v{level}", _dispatch.suffix(level)) for level in _dispatch.LEVELS),
    ),
    "aarch64": Target(
        "aarch64-unknown-linux-gnu",
        "library",
        "Linux, any 64-bit ARM processor: Raspberry Pi 3, 4, 5 and Zero 2 W among them",
        tunings=_ARM64,
    ),
    # NEON flushes denormals on these processors, and so would change the bits. Half of the
    # registers will do: Cortex-A5 and A9 may have no more.
    "armv7": Target(
        "armv7-unknown-linux-gnueabihf",
        "library",
        "Linux, 32-bit ARM with the hard-float ABI: scalar VFPv3-D16, correct and not fast",
        features="-neon,+vfp3d16,-d32",
        own_conversions=True,
    ),
    "android_arm64": Target(
        "aarch64-linux-android", "library", "Android on 64-bit ARM", tunings=_ARM64
    ),
    "ios_arm64": Target("arm64-apple-ios13.0", "object", "iOS 13 and later on 64-bit ARM"),
    "cortex_m4": Target(
        "thumbv7em-unknown-none-eabihf",
        "object",
        "microcontrollers with a Cortex-M4F, hard-float ABI",
        (Build("cortex-m4"),),
        position_independent=False,
        doubles=False,
    ),
    "cortex_m7": Target(
        "thumbv7em-unknown-none-eabihf",
        "object",
        "microcontrollers with a Cortex-M7 whose FPU has double precision, hard-float ABI",
        (Build("cortex-m7"),),
        position_independent=False,
        own_conversions=True,
    ),
    "wasm32": Target(
        "wasm32-unknown-unknown",
        "module",
        "WebAssembly with 128-bit vectors: browsers since 2023, Node, and other engines",
        features="+bulk-memory,+mutable-globals,+nontrapping-fptoint,+sign-ext,+simd128",
        position_independent=False,
    ),
}
