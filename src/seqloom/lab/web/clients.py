"""Identify clients, and count how much each uses of limited resources."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Sequence

UNKNOWN = "unknown"  # the client of a connection without an address
MOST_PACES = 256  # clients that are remembered before the list is cleared of those that need not wait
PREFIX_V6 = 64  # bits of an IPv6 address; a client has all addresses with the same ones

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Clients:
    """Name the client of a connection or request: its IP address, for IPv6 its network.

    Args:
        proxies: Addresses or networks of trusted reverse proxies. Only their X-Forwarded-For headers are read.

    Example:
        >>> from seqloom.lab.web.clients import Clients
        >>> headers = [(b"x-forwarded-for", b"198.51.100.7")]
        >>> Clients().find("10.0.0.1", headers), Clients(["10.0.0.0/8"]).find("10.0.0.1", headers)
        ('10.0.0.1', '198.51.100.7')
    """

    def __init__(self, proxies: Sequence[str] = ()) -> None:
        self._proxies: list[Network] = [ipaddress.ip_network(proxy, strict=False) for proxy in proxies]

    def is_proxy(self, address: str | None) -> bool:
        """Return whether an address belongs to a trusted proxy."""
        found = _read_address(address)
        return found is not None and any(found in network for network in self._proxies)

    def find(self, address: str | None, headers: Iterable[tuple[bytes, bytes]] = ()) -> str:
        """Return the client of a request that came from an address.

        Behind trusted proxies it is the last address in X-Forwarded-For that is not a proxy's: the entries before it
        were sent by the client itself.
        """
        if self._proxies and self.is_proxy(address):
            values = [value for name, value in headers if name == b"x-forwarded-for"]
            entries = b",".join(values).decode("latin-1").split(",")
            for entry in reversed(entries):
                if _read_address(entry.strip()) is None:
                    break
                address = entry.strip()
                if not self.is_proxy(address):
                    break
        found = _read_address(address)
        if found is None:
            return UNKNOWN
        if isinstance(found, ipaddress.IPv6Address):
            return str(ipaddress.ip_network((found, PREFIX_V6), strict=False))
        return str(found)


def _read_address(text: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address((text or "").partition("%")[0])  # without the zone of an IPv6 address
    except ValueError:
        return None
    mapped = getattr(found, "ipv4_mapped", None)
    return found if mapped is None else mapped


class Shares:
    """Count the use of a resource that is limited in total and per client.

    Args:
        total: Maximum for all clients together.
        of_one: Maximum per client.
    """

    def __init__(self, total: int, of_one: int) -> None:
        self.total, self.of_one = total, of_one
        self.used = 0
        self._by_client: Counter[str] = Counter()

    def exceeds_client(self, client: str, amount: int = 1) -> bool:
        """Return whether this amount would exceed the client's limit."""
        return self._by_client[client] + amount > self.of_one

    def exceeds_total(self, amount: int = 1) -> bool:
        """Return whether this amount would exceed the total limit."""
        return self.used + amount > self.total

    def is_used_by_others(self, client: str) -> bool:
        """Return whether clients other than this one use something."""
        return self.used > self._by_client[client]

    def take(self, client: str, amount: int = 1) -> None:
        self.used += amount
        self._by_client[client] += amount

    def give_back(self, client: str, amount: int = 1) -> None:
        self.used -= amount
        self._by_client[client] -= amount
        if not self._by_client[client]:
            del self._by_client[client]


class Pace:
    """Limit how much each client uses per second.

    Args:
        per_second: The amount per second.

    Example:
        >>> from seqloom.lab.web.clients import Pace
        >>> pace = Pace(per_second=10)
        >>> [pace.find_wait("client", 5, now=0.0) for _ in range(3)]
        [0.5, 1.0, 1.5]
    """

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._free_at: dict[str, float] = {}  # when a client may use more

    def find_wait(self, client: str, amount: float, now: float) -> float:
        """Record that a client uses an amount; return how many seconds it must wait before it uses more."""
        if len(self._free_at) > MOST_PACES:
            self._free_at = {name: time for name, time in self._free_at.items() if time > now}
        self._free_at[client] = max(now, self._free_at.get(client, 0.0)) + amount / self._per_second
        return self._free_at[client] - now
