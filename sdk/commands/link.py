"""How a command reaches the broker: options that devices and aggregators share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cyclopts import Parameter

from kellet.sdk.commands.options import Whole, called_by_options
from kellet.sdk.transport.checks import check_times

__all__ = ["LinkOptions"]


@Parameter(name="*", group="Link to the broker")
@dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """The link to the broker."""

    fleet: str = "kellet"
    """Name of the fleet; one broker may serve several."""

    keepalive: Whole = 30
    """Seconds between signs of life; one part must pass within two of them."""

    connect_timeout: float = 30.0
    """Seconds until a broker that does not answer ends the command."""

    ca_file: Path | None = None
    """PEM file of the authority to trust, for mqtts."""

    cert_file: Path | None = None
    """PEM file of our own certificate, for mqtts."""

    key_file: Path | None = None
    """PEM file of that certificate's key."""

    separate_bulk: bool = False
    """Send parts on a second connection, as the embedded broker needs it."""

    def for_link(self) -> dict[str, Any]:
        """All but the fleet, as keyword arguments of ``Device`` and ``Aggregator``.

        Raises ``UsageError``.
        """
        with called_by_options():
            check_times(keepalive=self.keepalive, connect_timeout=self.connect_timeout)
        return {name: value for name, value in vars(self).items() if name != "fleet"}
