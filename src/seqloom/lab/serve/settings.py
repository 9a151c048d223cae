"""The settings of a server: one flat, validated record that defines the CLI flags."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from seqloom.core.errors import UserError
from seqloom.lab.web.settings import Count, WebSettings

TOKEN_VARIABLE = "SEQLOOM_SERVE_TOKEN"
SHORTEST_TOKEN = 16  # characters; a shorter one could be guessed over the network


class ServeSettings(WebSettings):
    """Settings of `seqloom serve`.

    Example:
        >>> from seqloom.lab.serve.settings import ServeSettings
        >>> ServeSettings(port=9000).is_local
        True
    """

    token_file: Path | None = None
    """File with the bearer token that clients must send. Default: the environment variable SEQLOOM_SERVE_TOKEN."""
    batch: Count = 32
    """Most rows of several requests that the model reads in one call."""
    wait: Annotated[float, Field(ge=0, le=1000)] = 2.0
    """Longest time in milliseconds that a row waits for others to join its call."""
    max_rows: Count = 1024
    """Most rows, or steps of a stream, in one request."""
    max_steps: Count = 10_000
    """Most steps in a row, and most steps that a stream keeps if its state grows."""
    max_tokens: Count = 1000
    """Most tokens that a request may generate for a text."""
    max_streams: Count = 10_000
    """Most streams at the same time; further ones are refused with 429."""
    idle: Annotated[float, Field(gt=0)] = 300.0
    """Seconds after which an unused stream or WebSocket is dropped."""
    reload: Annotated[float, Field(ge=0)] = 2.0
    """Seconds between two looks for a new checkpoint; 0 never looks."""
    device: str = "cpu"
    """Device: cpu, cuda or cuda:1."""

    def read_token(self) -> str | None:
        """Return the bearer token; None if there is none.

        Raises:
            UserError: If the token is too short, or the address needs one and there is none.
        """
        if self.token_file is not None:
            place = str(self.token_file)
            try:
                token = self.token_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "it is not UTF-8"
                raise UserError(
                    f"--token-file {place}: cannot be read ({reason}); give a file with the token"
                ) from None
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
