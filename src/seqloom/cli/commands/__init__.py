"""What all commands share."""

from typing import Annotated

from cyclopts import Parameter

SOME_FAILED = 3  # the exit code if some rows have an error in place of a result
INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended
Json = Annotated[bool, Parameter(help="Print one JSON document in place of tables.")]
