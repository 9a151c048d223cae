"""One study per file; shared parts are in support/ and data/."""
