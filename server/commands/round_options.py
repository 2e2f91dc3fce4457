"""Options that say how a fleet's rounds run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from kellet.sdk.commands.options import Whole, called_by_options
from kellet.sdk.errors import UsageError
from kellet.sdk.personal import parse as parse_personal
from kellet.sdk.protocol.spelling import codec_of, no_share
from kellet.sdk.protocol.vectors import CODECS
from kellet.sdk.transport.checks import LONGEST
from kellet.server.commands.algorithm import AlgorithmOptions

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from kellet.sdk.plan.manifest import Manifest
    from kellet.sdk.protocol.vectors import Codec
    from kellet.server.brokers import BrokerHandle
    from kellet.server.commands.selection import SelectionOptions
    from kellet.server.config import FleetConfig
    from kellet.server.selection import Selection

__all__ = ["RoundOptions"]

_WINDOW = 1.0  # s in which devices say that they are willing, where some of them are drawn


@Parameter(name="*", group="Rounds")
@dataclass(frozen=True, kw_only=True)
class RoundOptions:
    """How rounds run."""

    rounds: Whole = 10
    """Rounds until the run is finished."""

    target: Whole = 2
    """Counted updates at which a round closes early."""

    quorum: Whole = 1
    """Counted updates without which a round is abandoned at its deadline."""

    deadline: float = 60.0
    """Seconds that a round lasts at most."""

    over_select: float = 1.25
    """Devices asked, as a multiple of the target."""

    min_devices: Whole = 1
    """Devices that must be enrolled before the first round."""

    member_ttl: float = 7 * 86400.0
    """Seconds of silence after which a device that was never counted is forgotten."""

    seed: Whole = 0
    """Orders the batches on all devices."""

    uplink: str = "f32"
    """How delta_y may travel, f32, q8 or topk:SHARE, separated by commas; the first for devices
    without a preference."""

    share: Annotated[float | None, Parameter(show=False)] = None

    feedback: bool = False
    """Add what a lossy delta_y left out to the device's next; not with a derived delta_c."""

    downlink: Literal["f32", "q8"] = "f32"
    """How model and control travel; q8 with error feedback at the aggregator."""

    scheme: str = "f32"
    """How devices may hold their weights, separated by commas, the best first: f32, w8.row,
    w8.block64, w8.row+a8. The plan must have these variants."""

    late: Literal["drop", "buffer"] = "drop"
    """What becomes of an update of an earlier announcement: drop refuses it, buffer counts it in
    the round that is open, the less the later it is."""

    buffer: Whole = 0
    """Updates at which the model moves with --late buffer, whichever announcement they are of;
    0 for the target."""

    max_stale: Whole = 4
    """Rounds that an update may be late with --late buffer."""

    personal: str | None = None
    """How each device makes a model of its own beside the fleet's, which never leaves it:
    ditto:LAMBDA (arXiv 2012.04221) or finetune:STEPS, with more settings as ,NAME=VALUE
    (docs/personalisation.md); none, unless given."""

    def selection(
        self, chosen: SelectionOptions, manifest: Manifest, samples: ArrayLike | None
    ) -> Selection:
        """Who is asked: the target times the over-selection factor. Raises ``UsageError``."""
        target, over = max(1, self.target), self.over_select
        # What is out of bounds is refused where the rest of the options are.
        size = math.ceil(target * over) if 1 <= over <= 1e6 else target
        window = min(_WINDOW, self.deadline / 4) if self.deadline > 0 else _WINDOW
        return chosen.make(
            size,
            seed=self.seed,
            enough=target,
            window=window,
            manifest=manifest,
            samples=samples,
        )

    def config(
        self,
        fleet: str,
        algorithm: AlgorithmOptions,
        handle: BrokerHandle,
        selection: Selection | None = None,
    ) -> FleetConfig:
        """The fleet's configuration over this broker. Raises ``UsageError``."""
        from kellet.server.config import FleetConfig
        from kellet.server.selection import FirstCome

        most = {"deadline": LONGEST, "over_select": 1e6}
        most |= dict.fromkeys(("rounds", "target", "quorum", "min_devices", "buffer"), 2**31 - 1)
        with called_by_options(min_members="min-devices", schemes="scheme"):
            no_share(self.share)
            codecs, share = self._uplink(algorithm.share)
            for name, largest in most.items():
                value = getattr(self, name)
                if not value <= largest:
                    raise UsageError(f"{name} = {value}", why=f"it must be at most {largest:.0f}")
            return FleetConfig(
                fleet=fleet,
                algorithm=algorithm.make(),
                server_optimizer=algorithm.optimizer(),
                schedule=algorithm.rates(),
                rounds=self.rounds,
                target=self.target,
                quorum=self.quorum,
                deadline=self.deadline,
                over_select=self.over_select,
                min_members=self.min_devices,
                member_ttl=self.member_ttl,
                seed=self.seed,
                part_size=handle.part_size,
                admission=handle.admission_bytes,
                uplink=codecs,
                share=share,
                feedback=self.feedback,
                downlink=self.downlink,
                schemes=_listed(self.scheme),
                personal=parse_personal(self.personal) if self.personal else None,
                late=self.late,
                buffer=self.buffer,
                max_stale=self.max_stale,
                selection=selection or FirstCome(),
            )

    def _uplink(self, share: float) -> tuple[tuple[Codec, ...], float]:
        """The codecs of delta_y, and the share of topk; ``share``: of delta_c, 0 for none."""
        codecs: list[Codec] = []
        for text in _listed(self.uplink):
            codec, own = codec_of("uplink", text, CODECS)
            codecs.append(codec)
            if own and share not in (0.0, own):
                raise UsageError(
                    f"uplink = {text!r}",
                    why=f"topk:{share:g} is given as well, and all vectors have one share",
                    repair="give them the same",
                )
            share = own or share
        return tuple(codecs), share


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))
