"""Trained runs over HTTP: predictions, streams with kept state, and generated texts.

    settings.py       limits of runs and streams; with those of `lab.web`, the flags of `seqloom serve`
    row_format.py     what a row and a step of a run look like: checks them, describes them, gives examples
    model_version.py  a run as it was loaded: predicts rows, continues texts
    stepper.py        one step of many streams in one call of the model; running_readout.py what a readout keeps
    turns.py          whose rows run next
    batches.py        rows of several requests in one call
    runs.py           the served runs by name; loads new checkpoints
    streams.py        the kept state of each stream, by token
    bodies.py         what the bodies of requests must be
    app.py            the routes, and the server of some runs; stream_routes.py the routes of streams
    openapi.py        the description of the routes, with examples

Nothing that a user sends is logged or stored on disk.
"""
