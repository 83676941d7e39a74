"""Hands a verified model to another host: the Hub's `resolve` with Range, for one token.

`python -m hostkit.model_serve --directory DIR --token-file FILE --port-file FILE`. Serves only the
files of the folder's manifest, only with the token, and ends by itself after a time without a
request. The bytes are not secret from the network; what they must be, the other host knows from
the manifest, which came over SSH.
"""

import argparse
import contextlib
import hmac
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from .errors import HostkitError
from .verify import FileInfo, read_manifest

IDLE_S = 600.0


class ModelServer(ThreadingHTTPServer):
    """Serves one folder; `touched` is when the last request or byte went out."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], directory: Path, token: str) -> None:
        beside = directory.with_name(f"{directory.name}.manifest.json")
        self.directory = directory
        self.files: dict[str, FileInfo] = read_manifest(beside)
        self.token = token
        self.touched = time.monotonic()
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ModelServer
    timeout = 60

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.touched = time.monotonic()
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.server.token.encode()):
            self.send_error(401)
            return
        found = re.fullmatch(r"/[^/]+/[^/]+/resolve/[^/]+/(.+)", unquote(urlsplit(self.path).path))
        info = self.server.files.get(found[1]) if found else None
        if found is None or info is None:
            self.send_error(404)
            return
        start, end, code = 0, info.size, 200
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, code = min(int(asked[1]), info.size), 206
            end = min(info.size, int(asked[2]) + 1) if asked[2] else info.size
        self.send_response(code)
        if code == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{info.size}")
        self.send_header("Content-Length", str(max(0, end - start)))
        self.end_headers()
        self.wfile.flush()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
            self._send(self.server.directory / found[1], start, end)

    def _send(self, path: Path, start: int, end: int) -> None:
        with path.open("rb") as file:
            while start < end:
                size = min(64 << 20, end - start)
                self.connection.sendfile(file, start, size)
                start += size
                self.server.touched = time.monotonic()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--directory", type=Path, required=True, help="a verified model's folder")
    parser.add_argument("--token-file", type=Path, required=True, help="0600; read, then removed")
    parser.add_argument("--port-file", type=Path, required=True, help="gets the port's number")
    parser.add_argument("--address", default="0.0.0.0", help="to listen on")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--idle-s", type=float, default=IDLE_S, help="ends after so long unused")


def run(args: argparse.Namespace) -> int:
    token = args.token_file.read_text().strip()
    args.token_file.unlink()
    if not token:
        raise HostkitError(f"{args.token_file}: expected a token, found nothing")
    server = ModelServer((args.address, args.port), args.directory, token)
    threading.Thread(target=server.serve_forever, args=(0.5,), daemon=True).start()
    beside = args.port_file.with_name(f"{args.port_file.name}.new")
    beside.write_text(f"{server.server_port}\n")
    beside.replace(args.port_file)
    print(f"serving {args.directory} on port {server.server_port}", flush=True)
    while time.monotonic() - server.touched < args.idle_s:
        time.sleep(0.5)
    args.port_file.unlink(missing_ok=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="hostkit.model_serve", description=__doc__)
    add_arguments(parser)
    try:
        return run(parser.parse_args())
    except (HostkitError, OSError) as error:
        print(f"hostkit.model_serve: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
