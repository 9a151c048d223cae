"""The settings of every server: address, TLS and limits."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator

LOOPBACK_NAMES = ("localhost", "ip6-localhost")

Count = Annotated[int, Field(ge=1)]


class WebSettings(BaseModel):
    """Address, TLS and limits of a server.

    Example:
        >>> from seqloom.lab.web.settings import WebSettings
        >>> WebSettings(port=9000).is_local
        True
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address to listen on. Any other than a loopback address needs a bearer token."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8000
    """Port to listen on; 0 takes a free one."""
    tls_cert: Path | None = None
    """PEM file with the certificate, and those that link it to its authority, to serve https."""
    tls_key: Path | None = None
    """PEM file with the private key of --tls-cert, if that file does not have it; without a password."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of reverse proxies, separated by commas, whose X-Forwarded-For header names the client.
    Default: the header is ignored."""
    client_share: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Largest share of the connections, requests, body bytes and streams that one client (an IP address) may use."""
    max_body: Count = 4 * 2**20
    """Largest request body in bytes."""
    max_receiving: Count = 256 * 2**20
    """Most bytes of all bodies that are being received at the same time."""
    max_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Longest time in seconds for an answer, from the end of the request's body."""
    max_requests: Count = 256
    """Most requests that are answered at the same time; further ones are refused with 503."""
    max_connections: Count = 4096
    """Most open connections; a further one closes an idle connection of the client that has most."""
    grace: Annotated[float, Field(ge=0)] = 1.0
    """Seconds after SIGTERM in which requests on open connections are still taken."""

    @field_validator("trusted_proxies", mode="before")
    @classmethod
    def _split_proxies(cls, value: object) -> object:
        """Read "10.0.0.1,10.1.0.0/16", and check each network."""
        parts = value.split(",") if isinstance(value, str) else value
        if isinstance(parts, (list, tuple)):
            parts = tuple(part.strip() for text in parts for part in str(text).split(","))
            for part in parts:
                ipaddress.ip_network(part, strict=False)
        return parts

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        if self.host in LOOPBACK_NAMES:
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def limit_client(self, total: int) -> int:
        """Return how much of a total one client may use, at least 1."""
        return max(1, int(self.client_share * total))
