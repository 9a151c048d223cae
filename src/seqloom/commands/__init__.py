"""What all commands share."""

from typing import Annotated

from cyclopts import Parameter

SOME_FAILED = 3  # the exit code where some rows have a result and others an error
INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended
Json = Annotated[bool, Parameter(help="Print one JSON document in place of tables.")]
