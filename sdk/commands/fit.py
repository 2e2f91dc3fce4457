"""What `kellet plan check` says of a plan on a class of device: the planner's answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from kellet.sdk.commands.options import Whole
from kellet.sdk.errors import UsageError
from kellet.sdk.protocol.spelling import codec_of
from kellet.sdk.protocol.vectors import CODECS

if TYPE_CHECKING:
    from kellet.firmware_profiles import Profile
    from kellet.sdk.plan import Plan
    from kellet.sdk.planner import Advice, Candidate, Link

__all__ = ["FitOptions", "Verdict", "link_of"]

_UNITS = {"": 1e3, "bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_RATE = r"(\d+(?:\.\d+)?)\s*([kmg]?bit)?(?:/s|ps)?"


@Parameter(name="*", group="Where it shall run")
@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The class of device, and how it would train."""

    profile: str | None = None
    """A profile's name, or the path of its .toml file. This machine's, unless given."""

    link: str | None = None
    """The device's link, such as 250kbit, or 8mbit/1mbit (down/up), for the seconds a round."""

    batch: Whole | None = None
    """The one batch size to try."""

    samples: Whole = 0
    """Samples that a device holds in memory."""

    local_steps: Whole = 0
    """Steps of a round, where known."""

    uplink: str | None = None
    """Codec of delta_y, f32, q8 or topk:SHARE; the profile's, unless given (topk:0.01 where that
    is topk: the share is the fleet's)."""

    downlink: Literal["f32", "q8"] = "f32"
    """Codec of model and control."""

    def judge(self, plan: Plan) -> Verdict | None:
        """The planner's answer; None where this machine is of no class. Raises ``UsageError``."""
        from kellet.sdk.config import chosen_profile
        from kellet.sdk.planner import advise

        link = link_of(self.link) if self.link else None
        sent: dict[str, Any] = {}
        if self.uplink is not None:
            codec, share = codec_of("--uplink", self.uplink, CODECS)
            sent = {"uplink": codec} | ({"share": share} if share else {})
        for name, value in (("samples", self.samples), ("local-steps", self.local_steps)):
            if value < 0:
                raise UsageError(f"--{name} = {value}", why="it must be at least 0")
        try:
            profile, why = chosen_profile(self.profile, None)
        except UsageError:
            if self.profile is not None:
                raise
            return None
        advice = advise(
            plan,
            profile,
            batch=self.batch,
            samples=self.samples,
            local_steps=self.local_steps,
            link=link,
            **sent,
            downlink=self.downlink,
        )
        return Verdict(plan, profile, why, advice)


@dataclass(frozen=True)
class Verdict:
    """An answer in facts and in words."""

    plan: Plan
    profile: Profile
    why: str
    advice: Advice

    @property
    def fits(self) -> bool:
        return self.advice.chosen is not None

    def facts(self) -> dict[str, Any]:
        """For one JSON object."""
        chosen = self.advice.chosen
        return {
            "profile": self.profile.name,
            "why_profile": self.why,
            "memory_budget_mb": self.profile.memory_budget_mb,
            "storage_budget_mb": self.profile.storage_budget_mb,
            "plan_bytes": self.plan.size,
            "fits": self.fits,
            "chosen": _facts(chosen) if chosen else None,
            "control_damping": self.advice.control_damping,
            "reasons": list(self.advice.reasons),
            "refusal": self._refusal(),
            "candidates": [_facts(each) for each in self.advice.candidates],
        }

    def words(self) -> list[str]:
        """A table of the candidates, the one to take marked, and why."""
        profile = self.profile
        timed = self.advice.candidates[0].seconds is not None
        lines = [
            f"on {profile.name} ({self.why}): {profile.memory_budget_mb} MB of memory, "
            f"{profile.storage_budget_mb} MB of storage",
            f"    {'scheme':<13} {'algorithm':<9} batch  peak MB  disk MB    up kB  down kB"
            + ("  s/round" if timed else ""),
        ]
        for each in self.advice.candidates:
            mark = "->" if each is self.advice.chosen else "  "
            lines.append(
                f" {mark} {each.scheme:<13} {each.algorithm:<9} {each.batch:>5}"
                f" {each.peak_mb:>8.0f} {each.storage_mb:>8.1f}"
                f" {each.up / 1e3:>8.1f} {each.down / 1e3:>8.1f}"
                + ("" if each.seconds is None else f" {each.seconds:>8.1f}")
                + ("" if each.fits else "  too large")
            )
        lines += [f"    {reason}" for reason in self.advice.reasons]
        if not self.fits:
            lines.append(f"    {self._refusal()}")
        return lines

    def _refusal(self) -> str:
        return "" if self.fits else str(self.advice.refusal(self.plan, self.profile))


def link_of(text: str) -> Link:
    """A link's rates: ``250kbit`` both ways, ``8mbit/1mbit`` down and up; a bare number is kbit.

    Raises ``UsageError``.
    """
    from kellet.sdk.planner import Link

    found = re.fullmatch(rf"{_RATE}(?:/{_RATE})?", text.strip(), re.IGNORECASE)
    rates = []
    for number, unit in [found.group(1, 2), found.group(3, 4)] if found else []:
        if number:
            rates.append(float(number) * _UNITS[(unit or "").lower()])
    if not rates or min(rates) <= 0:
        raise UsageError(
            f"--link {text}",
            why="it is no rate in bits a second",
            repair="write 250kbit, or 8mbit/1mbit for down and up",
        )
    return Link(down=rates[0], up=rates[-1])


def _facts(each: Candidate) -> dict[str, Any]:
    return {
        "scheme": each.scheme,
        "algorithm": each.algorithm,
        "batch": each.batch,
        "peak_mb": round(each.peak_mb, 1),
        "storage_mb": round(each.storage_mb, 1),
        "up_bytes": each.up,
        "down_bytes": each.down,
        "seconds": None if each.seconds is None else round(each.seconds, 2),
        "fits": each.fits,
        "short_of": list(each.short_of),
    }
