"""Bytes of a range of a repository's file: over Xet, or over plain HTTP with Range.

Both give the same thing, so that a range begun over one is gone on with over the other.
"""

import http.client
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import IO, Any, Protocol

from .errors import HostkitError
from .model_errors import reason
from .model_hub import HubFile, TemporaryError

BUFFER = 1 << 20
HUB = "https://huggingface.co"


class WaitError(TemporaryError):
    """The server asks for patience: 429, or a 5xx with Retry-After."""

    def __init__(self, message: str, seconds: float | None) -> None:
        super().__init__(message)
        self.seconds = seconds


class Streams(Protocol):
    """Gives the bytes [start, end) of a file, in order, as they come."""

    def stream(self, file: HubFile, start: int, end: int) -> Iterator[memoryview]: ...


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to a storage host without the Hub's token: the signed URL is its permission."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Any,
        newurl: str,
    ) -> urllib.request.Request | None:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and new.host != req.host:
            new.remove_header("Authorization")
        return new


class HttpStreams:
    """Plain HTTP: one request a range; the storage URL behind a redirect is kept a file.

    The standard library's client reads into a buffer of ours at several times the speed of httpx,
    and honours HTTPS_PROXY and NO_PROXY.
    """

    def __init__(
        self, endpoint: str, repo: str, revision: str, token: str | None, timeout_s: float
    ) -> None:
        self._base = f"{endpoint}/{repo}/resolve/{revision}"
        self._host = urllib.parse.urlsplit(endpoint).netloc
        self._token = token
        self._timeout = timeout_s
        self._locations: dict[str, str] = {}
        self._lock = threading.Lock()
        context = ssl.create_default_context()
        _trust_certifi(context)
        self._opener = urllib.request.build_opener(
            _Redirects(), urllib.request.HTTPSHandler(context=context)
        )

    def stream(self, file: HubFile, start: int, end: int) -> Iterator[memoryview]:
        buffer = bytearray(BUFFER)
        view = memoryview(buffer)
        with self._open(file, start, end) as response:
            skip = start if response.status == 200 else 0  # a server that ignores Range
            left = end - start
            while left > 0:
                try:
                    count = response.readinto(view[: min(BUFFER, skip or left)])
                except http.client.HTTPException as error:
                    raise TemporaryError(f"{file.path}: {type(error).__name__}") from error
                if not count:
                    raise TemporaryError(f"{file.path}: the connection ended {left} bytes early")
                if skip:
                    skip -= count
                    continue
                left -= count
                yield view[:count]

    def _open(self, file: HubFile, start: int, end: int) -> http.client.HTTPResponse:
        kept = self._locations.get(file.path)
        try:
            return self._request(file, kept, start, end)
        except urllib.error.HTTPError as error:
            if kept is None or error.code not in (400, 401, 403, 404, 410):
                raise self._explain(file, error) from None
        with self._lock:  # a signed URL that has run out: ask the Hub for another
            self._locations.pop(file.path, None)
        try:
            return self._request(file, None, start, end)
        except urllib.error.HTTPError as error:
            raise self._explain(file, error) from None

    def _request(
        self, file: HubFile, location: str | None, start: int, end: int
    ) -> http.client.HTTPResponse:
        headers = {"Accept-Encoding": "identity", "User-Agent": "hostkit"}
        if end > start and (start or end < file.size):
            headers["Range"] = f"bytes={start}-{end - 1}"
        url = location or f"{self._base}/{urllib.parse.quote(file.path)}"
        if self._token and urllib.parse.urlsplit(url).netloc == self._host:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(url, headers=headers)
        try:
            response: http.client.HTTPResponse = self._opener.open(request, timeout=self._timeout)
        except http.client.HTTPException as error:
            raise TemporaryError(f"{file.path}: {type(error).__name__}") from error
        _check_range(file, response, start)
        if urllib.parse.urlsplit(response.url).netloc != self._host:
            self._locations[file.path] = response.url
        return response

    def _explain(self, file: HubFile, error: urllib.error.HTTPError) -> HostkitError:
        kind = error.headers.get("X-Error-Code")
        said = f"{file.path}: {reason(error.code, kind, bool(self._token))}"
        error.close()
        from_hub = urllib.parse.urlsplit(error.url).netloc == self._host
        if error.code == 429 or error.code >= 500:
            after = error.headers.get("Retry-After", "")
            return WaitError(said, float(after) if after.isdigit() else None)
        if not from_hub:
            return TemporaryError(f"{file.path}: the storage host answered {error.code}")
        return HostkitError(said)


def _check_range(file: HubFile, response: http.client.HTTPResponse, start: int) -> None:
    given = response.headers.get("Content-Range", "")
    if response.status == 206 and not given.startswith(f"bytes {start}-"):
        response.close()
        raise TemporaryError(f"{file.path}: asked for bytes from {start}, got {given or 'others'}")


def _trust_certifi(context: ssl.SSLContext) -> None:
    """Add certifi's roots: a stand-alone Python knows no system bundle on some distributions."""
    try:
        import certifi
    except ImportError:
        return
    context.load_verify_locations(certifi.where())


class XetStreams:
    """Xet storage through hf_xet; files that are not in Xet go over HTTP."""

    def __init__(
        self, endpoint: str, repo: str, revision: str, token: str | None, plain: HttpStreams
    ) -> None:
        import hf_xet  # type: ignore[import-untyped]

        self._info = hf_xet.XetFileInfo
        self._plain = plain
        self._group = hf_xet.XetSession().new_download_stream_group(
            token_refresh_url=f"{endpoint}/api/models/{repo}/xet-read-token/{revision}",
            token_refresh_headers={"Authorization": f"Bearer {token}"} if token else {},
        )

    def stream(self, file: HubFile, start: int, end: int) -> Iterator[memoryview]:
        if file.xet is None:
            yield from self._plain.stream(file, start, end)
            return
        try:
            for chunk in self._group.download_stream(self._info(file.xet, file.size), start, end):
                yield memoryview(chunk)
        except Exception as error:  # hf_xet raises many kinds; all of them are worth another way
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise TemporaryError(f"{file.path}: Xet: {first}") from error
