"""Who a client is, and what it may use."""

import pytest

from seqloom.lab.web.clients import UNKNOWN, Clients, Shares

PROXIES = ["10.0.0.0/8", "::1"]


def forward(*values):
    return [(b"x-forwarded-for", value.encode()) for value in values]


@pytest.mark.parametrize(
    ("address", "headers", "client"),
    [
        ("192.0.2.1", forward("198.51.100.7"), "192.0.2.1"),  # not a proxy: its header is ignored
        ("10.0.0.1", forward("198.51.100.7"), "198.51.100.7"),
        ("10.0.0.1", forward("203.0.113.9, 198.51.100.7"), "198.51.100.7"),  # the client itself sent the first one
        ("10.0.0.1", forward("203.0.113.9", "198.51.100.7"), "198.51.100.7"),
        ("10.0.0.1", forward("198.51.100.7, 10.0.0.2"), "198.51.100.7"),
        ("10.0.0.1", forward("203.0.113.9, zanzibar, 10.0.0.2"), "10.0.0.2"),
        ("10.0.0.1", forward("zanzibar"), "10.0.0.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("::1", forward("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64"),
    ],
)
def test_only_a_trusted_proxy_names_the_client(address, headers, client):
    assert Clients(PROXIES).find(address, headers) == client


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1"])
def test_no_proxy_is_trusted_unless_it_is_named(address):
    assert Clients().find(address, forward("198.51.100.7")) == address


def test_an_ipv6_client_has_its_whole_network_and_a_mapped_address_is_ipv4():
    clients = Clients()
    assert clients.find("2001:db8::1") == clients.find("2001:db8::2") != clients.find("2001:db8:0:1::1")
    assert clients.find("::ffff:192.0.2.1") == "192.0.2.1"
    assert clients.find("fe80::1%eth0") == "fe80::/64"
    assert clients.find(None) == clients.find("testclient") == UNKNOWN


def test_shares_are_limited_for_a_client_and_in_total():
    shares = Shares(total=3, of_one=2)
    shares.take("a", 2)
    assert (shares.exceeds_client("a"), shares.exceeds_client("b", 2), shares.exceeds_total()) == (True, False, False)
    shares.take("b")
    assert shares.exceeds_total()
    shares.give_back("a", 2)
    assert (shares.used, shares.exceeds_client("a", 2), shares.exceeds_total(2)) == (1, False, False)
    shares.give_back("b")
    assert not shares._by_client
