"""Options that say how a fleet's rounds run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cyclopts import Parameter

from kellet.sdk.commands.options import LONGEST, Whole, called_by_options
from kellet.sdk.errors import UsageError
from kellet.server.commands.algorithm import AlgorithmOptions

if TYPE_CHECKING:
    from kellet.server.brokers import BrokerHandle
    from kellet.server.config import FleetConfig

__all__ = ["RoundOptions"]


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

    def config(self, fleet: str, algorithm: AlgorithmOptions, handle: BrokerHandle) -> FleetConfig:
        """The fleet's configuration over this broker. Raises ``UsageError``."""
        from kellet.server.config import FleetConfig

        most = {"deadline": LONGEST, "over_select": 1e6}
        most |= dict.fromkeys(("rounds", "target", "quorum", "min_devices"), 2**31 - 1)
        with called_by_options(min_members="min-devices"):
            for name, largest in most.items():
                value = getattr(self, name)
                if not value <= largest:
                    raise UsageError(f"{name} = {value}", why=f"it must be at most {largest:.0f}")
            return FleetConfig(
                fleet=fleet,
                algorithm=algorithm.make(),
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
            )
