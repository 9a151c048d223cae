"""Errors that seqloom raises, and imports of optional packages."""

from collections.abc import Mapping, Sequence
from importlib import import_module, metadata
from types import ModuleType

TORCH = (2, 8)  # oldest supported version; keep equal to pyproject.toml


class UserError(ValueError):
    """A user's mistake in an argument, a command or a file. The message says what to do.

    The command line prints it on one line and exits with code 2. Any other exception is a bug in seqloom and is shown
    with its traceback.
    """


class UserTypeError(UserError, TypeError):
    """An argument of the wrong type, or an unknown keyword."""


class InputError(UserError, RuntimeError):
    """A tensor or number that a layer does not accept.

    It is a ValueError, as is usual in Python, and a RuntimeError, which torch.nn raises in the same places, so code
    that catches either works.
    """


class DtypeError(InputError, UserTypeError):
    """A tensor whose dtype differs from that of the weights; can be caught as TypeError, ValueError or RuntimeError."""


class ChoiceError(UserError):
    """An ambiguous request.

    Attributes:
        choices: The options that select each answer, by name; the command line shows them as commands.
    """

    def __init__(self, message: str, choices: Sequence[Mapping[str, str]]) -> None:
        super().__init__(message)
        self.choices = choices


class MissingPackageError(ImportError, UserError):
    """An optional package that is not installed."""


def require(package: str, purpose: str, extra: str = "") -> ModuleType:
    """Import an optional package.

    Args:
        package: The module to import.
        purpose: What needs it, such as "seqloom export"; starts the error message.
        extra: The extra of seqloom that installs it. Without one the message names the package itself.

    Returns:
        The module.

    Raises:
        MissingPackageError: If it is not installed; with the command that installs it.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == __name__.partition(".")[0]:
            raise
        command = f"pip install {package.partition('.')[0]}"
        if extra:
            command = f"pip install 'seqloom[{extra}]' (in a checkout: pip install '.[{extra}]')"
        raise MissingPackageError(
            f"{purpose} needs {error.name}; install it with: {command}", name=error.name
        ) from None


def check_torch() -> None:
    """Raise an error if the installed torch is too old, for example because another package downgraded it.

    Raises:
        MissingPackageError: With the installed version and the command that installs a newer one.
    """
    required = ".".join(map(str, TORCH))
    try:
        installed = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return  # built from source, vendored or missing: the import decides
    numbers = tuple(int(part) for part in installed.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < TORCH:
        raise MissingPackageError(
            f"seqloom needs torch {required} or newer, found {installed}; "
            f"install it with: pip install 'torch>={required}'",
            name="torch",
        )
