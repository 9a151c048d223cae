"""Errors that seqloom raises, and imports that may fail."""

from importlib import import_module, metadata
from typing import Any

TORCH = (2, 11)  # the oldest version that is supported; pyproject.toml has it too


class UserError(ValueError):
    """A mistake in what seqloom was given: an argument, a command, a file. The message says what to do.

    The command line prints it in one line and ends with exit code 2. Any other exception is a fault of seqloom and is
    shown with its traceback.
    """


class UserTypeError(UserError, TypeError):
    """An argument of the wrong type, or one that does not exist."""


class InputError(UserError, RuntimeError):
    """A tensor or number that a layer cannot take.

    Python means ValueError; torch.nn raises RuntimeError in the same places. Code that was
    written for either keeps working.
    """


class DtypeError(InputError, UserTypeError):
    """A tensor of another dtype than the weights: a TypeError in Python, a ValueError or RuntimeError in torch.nn."""


class MissingPackageError(ImportError, UserError):
    """An optional package that is not installed."""


def require(package: str, purpose: str, extra: str = "") -> Any:
    """Import an optional package.

    Args:
        package: The module to import.
        purpose: What needs it; the subject of the error message.
        extra: The extra of seqloom that installs it; the package itself by default.

    Returns:
        The module.

    Raises:
        MissingPackageError: If it is not installed. The message names the command that installs it.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "seqloom":
            raise
        command = f"pip install 'seqloom[{extra}]'" if extra else f"pip install {package.partition('.')[0]}"
        raise MissingPackageError(
            f"{purpose} needs {error.name}; install it with: {command}", name=error.name
        ) from None


def check_torch() -> None:
    """Raise where torch is missing or too old, as when another package has replaced it.

    Raises:
        MissingPackageError: With the version that was found and the command that installs a newer one.
    """
    wanted = ".".join(map(str, TORCH))
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return  # built from source, or vendored: importing it will tell
    numbers = tuple(int(part) for part in found.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < TORCH:
        raise MissingPackageError(
            f"seqloom needs torch {wanted} or newer, found {found}; install it with: pip install 'torch>={wanted}'",
            name="torch",
        )
