"""What the Hub's refusals mean for the person who deploys. Pure; used on the controller too."""

from collections.abc import Mapping


def reason(status: int | None, code: str | None, with_token: bool) -> str | None:
    """One line for an HTTP status and the Hub's X-Error-Code; None where there is no status.

    401 says who are you, 403 says you may not: a fine-grained token without the permission for
    gated repositories gets 403 although `whoami` works (huggingface_hub issue 2844).
    """
    if status is None:
        return None
    if status == 401 and with_token:
        return "the token was refused (401): it is mistyped, expired or revoked; make a new one"
    if status == 401 and code == "GatedRepo":
        return "gated repository and no token (401): accept its terms on the Hub and set HF_TOKEN"
    if status == 401:
        return "not found or private, and no token (401): check the name, or set HF_TOKEN"
    if status == 403:
        return (
            "the token may not read this repository (403): accept the terms on its page; a "
            "fine-grained token also needs 'Read access to contents of all public gated repos'"
        )
    if status == 404 and code == "RevisionNotFound":
        return "no such revision (404): check what stands after the @"
    if status == 404:
        return "not found, or private to this token (404): check the name"
    if status == 429:
        return "rate limit of the Hub (429): set HF_TOKEN (its limit is higher) or wait 5 minutes"
    return f"the Hub answered {status}: try again later"


def status_of(error: BaseException) -> tuple[int | None, str | None]:
    """HTTP status and X-Error-Code of a huggingface_hub error, or of the error behind it."""
    seen: BaseException | None = error
    while seen is not None:
        response = getattr(seen, "response", None)
        status = getattr(response, "status_code", None)
        if isinstance(status, int):
            headers: Mapping[str, str] = getattr(response, "headers", {})
            return status, headers.get("X-Error-Code")
        seen = seen.__cause__
    return None, None
