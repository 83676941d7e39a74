"""A small Hugging Face Hub: what huggingface_hub 2.4 and hostkit ask of the real one, and faults.

Speaks model info, tree (paged), paths-info, resolve with a redirect to a storage host for LFS
files, Range, ETag and the X-Linked-* and X-Repo-* headers, the Xet token, 401/403 as the Hub gives
them. Faults are put into `faults`: stall, cut, status, corrupt, slow, no_range. In a test it runs
in threads of the test's process; `python tests/models/hub_emulator.py --folder DIR` runs it alone.
"""

import argparse
import contextlib
import hashlib
import json
import random
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

PAGE = 5  # entries of a tree page; the real Hub gives 1000
CHUNK = 1 << 18
LFS_FROM = 100_000  # bytes; smaller files are ordinary git blobs


@dataclass
class Fault:
    """What goes wrong, for matching paths, `times` times. `after` counts bytes sent."""

    kind: str  # stall, cut, status, corrupt, slow, no_range
    path: str = ".*"
    times: int = 1
    after: int = 0
    code: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    rate: float = 0.0  # bytes a second of one connection, for slow


@dataclass(frozen=True)
class StoredFile:
    """A file as the Hub knows it; `sha256` is None for an ordinary git blob."""

    path: str
    disk: Path
    size: int
    blob: str
    sha256: str | None
    xet: str | None = None

    @property
    def etag(self) -> str:
        return self.sha256 or self.blob


class HubEmulator:
    """One repository served over HTTP on two ports: the Hub's and the storage's."""

    def __init__(self, folder: Path, repo: str = "lab/made-model") -> None:
        self.repo = repo
        self.files = {f.path: f for f in (_stored(p, folder) for p in _walk(folder))}
        listing = "".join(f"{f.path} {f.etag}\n" for f in self.files.values())
        self.commit = hashlib.sha1(listing.encode()).hexdigest()
        self.branches = {"main": self.commit}
        self.faults: list[Fault] = []
        self.tokens: dict[str, bool] = {}  # token -> may read; empty: open to everybody
        self.gated = False
        self.rate = 0.0  # bytes a second of each connection; 0: as fast as it goes
        self.cas_url = ""
        self.sent: Counter[str] = Counter()  # content bytes by path
        self.requests: list[str] = []
        self.leaked_to_storage: list[str] = []  # Authorization headers that storage got
        self._expired: set[str] = set()
        self._lock = threading.Lock()
        self.hub = _server(self, "hub")
        self.storage = _server(self, "storage")
        # another name for the same address, so that clients see two hosts
        self.url = f"http://127.0.0.1:{self.hub.server_port}"
        self.storage_url = f"http://localhost:{self.storage.server_port}"
        for server in (self.hub, self.storage):
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        for server in (self.hub, self.storage):
            server.shutdown()
            server.server_close()

    def __enter__(self) -> "HubEmulator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())

    def expire_signed_urls(self) -> None:
        """Storage answers 403 to every URL given so far."""
        self._expired.add(str(self.signature))
        self.signature += 1

    signature = 1

    def store_in_xet(self, folder: Path) -> None:
        """Put the LFS files into a Xet store on disk, with hf_xet itself, and say so in the API."""
        import hf_xet

        self.cas_url = f"local://{folder}"
        for file in [f for f in self.files.values() if f.sha256]:
            commit = hf_xet.XetSession().new_upload_commit(endpoint=self.cas_url)
            commit.start_upload_file(str(file.disk))
            (upload,) = commit.wait_to_finish().uploads.values()
            self.files[file.path] = replace(file, xet=upload.xet_info.hash)

    def take(self, kind: str, path: str) -> Fault | None:
        """The first fault of a kind that matches; it counts as used."""
        with self._lock:
            for fault in self.faults:
                if fault.kind == kind and fault.times > 0 and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None

    def count(self, path: str, size: int) -> None:
        with self._lock:
            self.sent[path] += size


def make_model(folder: Path, shards: int = 4, shard_bytes: int = 8 << 20, seed: int = 7) -> Path:
    """Write a made-up model: random shards, a few small files, one empty, one in a sub-folder."""
    rng = random.Random(seed)
    for number in range(1, shards + 1):
        path = folder / f"model-{number:05d}-of-{shards:05d}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for begin in range(0, shard_bytes, 1 << 20):
                file.write(rng.randbytes(min(1 << 20, shard_bytes - begin)))
    for name in ("config.json", "tokenizer_config.json", "generation_config.json", "README.md"):
        (folder / name).write_text(json.dumps({"made": True, "name": name}) + "\n")
    (folder / "figures").mkdir(exist_ok=True)
    (folder / "figures" / "a b.txt").write_text("a name with a space\n")
    (folder / "empty.txt").write_text("")
    return folder


def _walk(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _stored(path: Path, folder: Path) -> StoredFile:
    size = path.stat().st_size
    name = path.relative_to(folder).as_posix()
    blob = hashlib.sha1(b"blob %d\0" % size)
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            blob.update(chunk)
            sha.update(chunk)
    return StoredFile(
        name, path, size, blob.hexdigest(), sha.hexdigest() if size >= LFS_FROM else None
    )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64


def _server(hub: HubEmulator, role: str) -> _Server:
    handler = type("Handler", (_Handler,), {"hub": hub, "role": role})
    return _Server(("127.0.0.1", 0), handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubEmulator
    role: str

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        self.hub.requests.append(f"{self.command} {self.role} {path}")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if fault := self.hub.take("status", f"{self.role}{path}"):
                self._error(fault.code, "fault", fault.headers)
            elif self.role == "storage":
                self._storage(path, parse_qs(parts.query))
            elif not self._refused():
                self._hub(path, parse_qs(parts.query))

    def _refused(self) -> bool:
        if not self.hub.tokens and not self.hub.gated:
            return False
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.hub.tokens.get(given):
            return False
        if given in self.hub.tokens:
            self._error(403, "not in the authorized list", {"X-Error-Code": "GatedRepo"})
        elif given:
            self._error(401, "Invalid credentials in Authorization header", {})
        else:
            self._error(401, "gated", {"X-Error-Code": "GatedRepo"} if self.hub.gated else {})
        return True

    def _hub(self, path: str, query: dict[str, list[str]]) -> None:
        repo = re.escape(self.hub.repo)
        if match := re.fullmatch(f"/api/models/{repo}(?:/revision/(.+))?", path):
            self._info(match[1] or "main")
        elif match := re.fullmatch(f"/api/models/{repo}/tree/([^/]+)/?", path):
            self._tree(match[1], query)
        elif match := re.fullmatch(f"/api/models/{repo}/paths-info/([^/]+)", path):
            self._paths_info(match[1])
        elif match := re.fullmatch(f"/api/models/{repo}/xet-read-token/([^/]+)", path):
            expires = int(time.time()) + 3600
            self._json({"accessToken": "xet", "exp": expires, "casUrl": self.hub.cas_url})
        elif match := re.fullmatch(f"/{repo}/resolve/([^/]+)/(.+)", path):
            self._resolve(match[1], match[2])
        else:
            self._error(404, "not found", {"X-Error-Code": "RepoNotFound"})

    def _commit(self, revision: str) -> str | None:
        commit = self.hub.branches.get(revision, revision)
        if commit == self.hub.commit:
            return commit
        self._error(404, "no such revision", {"X-Error-Code": "RevisionNotFound"})
        return None

    def _info(self, revision: str) -> None:
        if commit := self._commit(revision):
            siblings = [{"rfilename": name} for name in self.hub.files]
            found = {"id": self.hub.repo, "sha": commit, "private": False, "siblings": siblings}
            self._json({**found, "modelId": self.hub.repo, "tags": [], "downloads": 0, "likes": 0})

    def _entry(self, file: StoredFile) -> dict[str, object]:
        entry: dict[str, object] = {"type": "file", "path": file.path, "size": file.size}
        entry["oid"] = file.blob
        if file.sha256:
            entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": 134}
        if file.xet:
            entry["xetHash"] = file.xet
        return entry

    def _tree(self, revision: str, query: dict[str, list[str]]) -> None:
        if self._commit(revision) is None:
            return
        begin = int(query.get("cursor", ["0"])[0])
        listed = list(self.hub.files.values())
        headers = {}
        if begin + PAGE < len(listed):
            more = f"{self.hub.url}{urlsplit(self.path).path}?recursive=True&cursor={begin + PAGE}"
            headers["Link"] = f'<{more}>; rel="next"'
        self._json([self._entry(file) for file in listed[begin : begin + PAGE]], headers)

    def _paths_info(self, revision: str) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
        asked = json.loads(raw)["paths"] if raw.startswith("{") else parse_qs(raw)["paths"]
        if self._commit(revision):
            self._json([self._entry(self.hub.files[p]) for p in asked if p in self.hub.files])

    def _resolve(self, revision: str, name: str) -> None:
        commit = self._commit(revision)
        file = self.hub.files.get(name)
        if commit is None:
            return
        if file is None:
            self._error(404, "no such file", {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"X-Repo-Commit": commit, "ETag": f'"{file.etag}"', "Accept-Ranges": "bytes"}
        if file.sha256 is None:
            self._content(file, headers)
            return
        place = f"{self.hub.storage_url}/{quote(name)}?signature={self.hub.signature}"
        headers |= {"X-Linked-Size": str(file.size), "X-Linked-ETag": f'"{file.etag}"'}
        headers |= {"Location": place, "Content-Length": "0"}
        if file.xet:
            route = f"{self.hub.url}/api/models/{self.hub.repo}/xet-read-token/{commit}"
            headers |= {"X-Xet-Hash": file.xet, "Link": f'<{route}>; rel="xet-auth"'}
        self._head(302, headers)

    def _storage(self, path: str, query: dict[str, list[str]]) -> None:
        if given := self.headers.get("Authorization"):
            self.hub.leaked_to_storage.append(given)
        file = self.hub.files.get(path.removeprefix("/"))
        if query.get("signature", [""])[0] in self.hub._expired:
            self._error(403, "Request has expired", {})
        elif file is None:
            self._error(404, "no such key", {})
        else:
            self._content(file, {"ETag": f'"{file.etag}"', "Accept-Ranges": "bytes"})

    def _content(self, file: StoredFile, headers: dict[str, str]) -> None:
        start, end, code = 0, file.size, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and not self.hub.take("no_range", file.path):
            start, code = int(asked[1]), 206
            end = min(file.size, int(asked[2]) + 1) if asked[2] else file.size
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{file.size}"
        headers["Content-Length"] = str(end - start)
        self._head(code, headers)
        if self.command != "HEAD":
            self._send(file, start, end)

    def _send(self, file: StoredFile, start: int, end: int) -> None:
        stall = self.hub.take("stall", file.path)
        cut = None if stall else self.hub.take("cut", file.path)
        slow = self.hub.take("slow", file.path)
        corrupt = self.hub.take("corrupt", file.path)
        rate = slow.rate if slow else self.hub.rate
        limit = stall or cut
        with file.disk.open("rb") as source:
            if not (limit or rate or corrupt):
                self.connection.sendfile(source, start, end - start)
                self.hub.count(file.path, end - start)
                return
            source.seek(start)
            sent = 0
            while sent < end - start:
                size = min(CHUNK, end - start - sent)
                if limit:
                    size = min(size, limit.after - sent)
                if size <= 0:
                    break
                data = bytearray(source.read(size))
                if corrupt and sent == 0:
                    data[len(data) // 2] ^= 0xFF
                self.wfile.write(data)
                sent += size
                self.hub.count(file.path, size)
                if rate:
                    time.sleep(size / rate)
        if stall:
            self._hang()
        if limit:
            self.close_connection = True

    def _hang(self) -> None:
        """Keep the connection open and silent until the client leaves."""
        self.connection.settimeout(60)
        with contextlib.suppress(OSError):
            self.connection.recv(1)

    def _json(self, data: object, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(data).encode()
        kind = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self._head(200, {**kind, **(headers or {})})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _error(self, code: int, message: str, headers: dict[str, str]) -> None:
        body = json.dumps({"error": message}).encode()
        kind = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self._head(code, {**kind, "X-Error-Message": message, **headers})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, code: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, required=True, help="the repository's files")
    parser.add_argument("--rate", type=float, default=0.0, help="bytes a second of a connection")
    args = parser.parse_args()
    with HubEmulator(args.folder) as hub:
        hub.rate = args.rate
        print(json.dumps({"url": hub.url, "repo": hub.repo, "commit": hub.commit}), flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
