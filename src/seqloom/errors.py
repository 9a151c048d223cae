"""The one error that seqloom raises for tensors that do not fit."""


class InputError(ValueError, RuntimeError):
    """A tensor or number that a layer cannot take.

    Python means ValueError; torch.nn raises RuntimeError in the same places. Code that was
    written for either keeps working.
    """
