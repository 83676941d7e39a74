"""The engine's two kinds of bad input; each message is one line: expected, found, remedy."""


class RefserverError(Exception):
    """The server can't start as asked (bad model, drafter or option)."""


class BadRequestError(Exception):
    """A request can't be served as asked; becomes HTTP 400.

    Attributes:
        param: the body's field at fault, or None.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
