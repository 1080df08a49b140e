"""What headrace raises. Every class is an Error and also the built-in exception nearest to it, so that existing
`except` clauses work."""


class Error(Exception):
    """A call that could not do its job. `code` is its kind, as in the command line's JSON."""

    code = "internal"


class InvalidArgumentError(Error, ValueError):
    """Something was asked for that makes no sense: an unknown option, a loss of many numbers."""

    code = "invalid_argument"


class NotFoundError(Error, FileNotFoundError):
    """A file, folder or sample does not exist."""

    code = "not_found"


class CorruptDataError(Error, ValueError):
    """Bytes that were read are not what their format promises."""

    code = "corrupt_data"


class IoError(Error, OSError):
    """The operating system refused: permission, full disk."""

    code = "io"


class UnsupportedError(Error, NotImplementedError):
    """Known, but not available in this build or on this machine."""

    code = "unsupported"


class OutOfMemoryError(Error, MemoryError):
    """A budget or the machine cannot hold it."""

    code = "out_of_memory"


class NumericsError(Error, ArithmeticError):
    """A loss or gradient is not finite."""

    code = "numerics"


class CancelledError(Error, RuntimeError):
    """Stopped from outside."""

    code = "cancelled"


class InternalError(Error, RuntimeError):
    """A mistake of headrace itself."""

    code = "internal"


class_of_code = {
    cls.code: cls
    for cls in (
        InvalidArgumentError,
        NotFoundError,
        CorruptDataError,
        IoError,
        UnsupportedError,
        OutOfMemoryError,
        NumericsError,
        CancelledError,
        InternalError,
    )
}
