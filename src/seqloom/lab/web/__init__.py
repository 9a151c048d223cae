"""Shared parts of the servers of `seqloom serve` and `seqloom explore`; imports neither of them.

settings.py     address, TLS and limits
clients.py      who sends a request; how much each client uses of what is limited
problems.py     errors of requests: a status and one sentence
bodies.py       reads and checks JSON bodies
gate.py         what every request passes: origin, credentials, body, limits, cancellation, log
connections.py  idle, slow and surplus connections
logs.py         lines of JSON without user data
server.py       starts and stops without losing a request

Nothing that a user sends is logged.
"""
