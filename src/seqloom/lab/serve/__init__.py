"""Trained runs over HTTP: predictions, streams with kept state, and generated texts.

    settings.py       address and limits; defines the flags of `seqloom serve`
    row_format.py     what a row and a step of a run look like: checks them, describes them, gives examples
    model_version.py  a run as it was loaded: predicts rows, continues texts
    stepper.py        one step of many streams in one call of the model; running_readout.py what a readout keeps
    batches.py        jobs of several requests in one call
    runs.py           the served runs by name; loads new checkpoints
    streams.py        the kept state of each stream, by token
    gate.py           what every request passes: limits, token, origin, log, metrics
    app.py            the routes; stream_routes.py those of streams
    openapi.py        the description of the routes, with examples
    connections.py    idle, slow and surplus connections
    server.py         start, stop without losing a request

Nothing that a user sends is logged or stored on disk.
"""
