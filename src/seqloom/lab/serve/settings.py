"""The settings of a server: one flat, validated record that defines the CLI flags."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from seqloom.core.errors import UserError

TOKEN_VARIABLE = "SEQLOOM_SERVE_TOKEN"
SHORTEST_TOKEN = 16  # characters; a shorter one could be guessed over the network
LOOPBACK_NAMES = ("localhost", "ip6-localhost")

Count = Annotated[int, Field(ge=1)]


class ServeSettings(BaseModel):
    """Settings of `seqloom serve`.

    Example:
        >>> from seqloom.lab.serve.settings import ServeSettings
        >>> ServeSettings(port=9000).is_local
        True
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address to listen on. Any other than a loopback address needs a bearer token."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8000
    """Port to listen on; 0 takes a free one."""
    token_file: Path | None = None
    """File with the bearer token that clients must send. Default: the environment variable SEQLOOM_SERVE_TOKEN."""
    batch: Count = 32
    """Most rows of several requests that the model reads in one call."""
    wait: Annotated[float, Field(ge=0, le=1000)] = 2.0
    """Longest time in milliseconds that a row waits for others to join its call."""
    max_body: Count = 4 * 2**20
    """Largest request body in bytes."""
    max_rows: Count = 1024
    """Most rows, or steps of a stream, in one request."""
    max_steps: Count = 10_000
    """Most steps in a row, and most steps that a stream keeps if its state grows."""
    max_tokens: Count = 1000
    """Most tokens that a request may generate for a text."""
    max_seconds: Annotated[float, Field(gt=0)] = 30.0
    """Longest time in seconds for a request, from its first byte to the answer."""
    max_requests: Count = 256
    """Most requests at the same time; further ones are refused with 503."""
    max_streams: Count = 10_000
    """Most streams at the same time; further ones are refused with 429."""
    max_connections: Count = 4096
    """Most open connections; a further one closes the connection that has been idle longest."""
    idle: Annotated[float, Field(gt=0)] = 300.0
    """Seconds after which an unused stream or WebSocket is dropped."""
    reload: Annotated[float, Field(ge=0)] = 2.0
    """Seconds between two looks for a new checkpoint; 0 never looks."""
    grace: Annotated[float, Field(ge=0)] = 1.0
    """Seconds after SIGTERM in which requests on open connections are still taken."""
    device: str = "cpu"
    """Device: cpu, cuda or cuda:1."""

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        if self.host in LOOPBACK_NAMES:
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def read_token(self) -> str | None:
        """Return the bearer token; None if there is none.

        Raises:
            UserError: If the token is too short, or the address needs one and there is none.
        """
        if self.token_file is not None:
            token, place = self.token_file.read_text(encoding="utf-8").strip(), str(self.token_file)
        else:
            token, place = os.environ.get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE
        if not token and (self.token_file is not None or not self.is_local):
            hint = (
                f"--host {self.host} can be reached from other machines" if self.token_file is None else "it is empty"
            )
            raise UserError(
                f"{hint}, so clients need a bearer token; write one to a file and give --token-file FILE, or set "
                f"{TOKEN_VARIABLE}"
            )
        if token and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
            raise UserError(
                f"the token in {place} must have at least {SHORTEST_TOKEN} printable ASCII characters; make one with "
                "`openssl rand -hex 32`"
            )
        return token or None
