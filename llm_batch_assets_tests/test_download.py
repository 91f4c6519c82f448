from __future__ import annotations

import gzip
import hashlib
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_batch_assets.artifacts import open_store
from llm_batch_assets.download import Transfer, download, first_line, judge
from llm_batch_assets.errors import DownloadError, ProviderError, ResultsGone
from llm_batch_assets.providers.factory import open_provider
from llm_batch_assets.types import ResultRef
from llm_batch_assets_tests.scripted_server import ScriptedServer

DATA = b"".join(b'{"custom_id":"r-%d","response":{}}\n' % n for n in range(400))
SIZE = len(DATA)
REF = ResultRef("results", "file-1")
GZIPPED = gzip.compress(DATA)


class FileServer:
    """Serves one file; ``content`` writes the reply of each content request."""

    def __init__(self, content, *, counted: int | None = SIZE):
        self.content, self.counted, self.seen = content, counted, []

    def __call__(self, request, wire):
        if request.path == "/v1/files/file-1":
            body = {"id": "file-1", "object": "file"}
            if self.counted is not None:
                body["bytes"] = self.counted
            wire.reply(200, body)
        else:
            assert request.path == "/v1/files/file-1/content"
            self.seen.append(request)
            self.content(request, wire, len(self.seen))


def fetch(tmp_path, handler, **kw):
    store = open_store(str(tmp_path / "store"))
    waits: list[float] = []
    with ScriptedServer(handler) as server:
        env = {"OPENAI_API_KEY": "sk-1", "OPENAI_BASE_URL": f"{server.url}/v1"}
        provider = open_provider("openai", env=env, deployment="d")
        try:
            receipt = download(provider, REF, store, sleep=waits.append, rng=lambda: 0.5, **kw)
        except Exception:
            assert list(store.digests()) == [], "nothing short may ever be stored"
            assert not list((tmp_path / "store" / "tmp").iterdir())
            raise
        finally:
            provider.close()
    assert store.get(receipt.digest) == DATA
    assert receipt.whole
    return receipt, waits


def whole(request, wire, n=0):
    wire.reply(200, DATA, {"Content-Type": "application/octet-stream"})


def test_a_whole_file_comes_with_a_receipt(tmp_path):
    handler = FileServer(whole)
    receipt, waits = fetch(tmp_path, handler)
    assert receipt.digest == hashlib.sha256(DATA).hexdigest()
    assert (receipt.status, receipt.received_bytes) == (200, len(DATA))
    assert (receipt.announced_bytes, receipt.expected_bytes) == (len(DATA), len(DATA))
    assert receipt.kind == "results"
    assert receipt.ref == "file-1"
    assert waits == []
    assert handler.seen[0].headers["accept-encoding"] == "identity"
    assert "range" not in handler.seen[0].headers


def close_delimited(wire, body):
    wire.reply(200, body, length=None)


def chunked(wire, body, *, end):
    wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for at in range(0, len(body), 1000):
        piece = body[at : at + 1000]
        wire.send(b"%x\r\n%s\r\n" % (len(piece), piece))
    if end:
        wire.send(b"0\r\n\r\n")
    else:
        wire.close()


CUT = DATA[: DATA.index(b"\n", 5000) + 1]  # at a line boundary: nothing looks broken
SHORT = {
    "content-length short": lambda w: w.reply(200, CUT, length=len(DATA)),
    "chunked without last chunk": lambda w: chunked(w, CUT, end=False),
    "chunked, cut, but ended": lambda w: chunked(w, CUT, end=True),
    "close-delimited, cut": lambda w: close_delimited(w, CUT),
    "gzip stream cut, length right": lambda w: w.reply(
        200, GZIPPED[: len(GZIPPED) // 2], {"Content-Encoding": "gzip"}
    ),
    "gzip stream garbled": lambda w: w.reply(
        200, GZIPPED[:40] + b"x" * 40 + GZIPPED[80:], {"Content-Encoding": "gzip"}
    ),
    "206 that nobody asked for": lambda w: w.reply(
        206, CUT, {"Content-Range": f"bytes 0-{len(CUT) - 1}/{len(DATA)}"}
    ),
    "206 without a range": lambda w: w.reply(206, CUT),
    "204": lambda w: w.reply(204, b"", length=None),
    "0 bytes": lambda w: w.reply(200, b""),
    "200 text/html": lambda w: w.reply(200, DATA, {"Content-Type": "text/html; charset=utf-8"}),
    "gzip without header": lambda w: w.reply(200, GZIPPED),
    "an encoding nobody knows": lambda w: w.reply(200, DATA, {"Content-Encoding": "br"}),
    "too long": lambda w: w.reply(200, DATA + b"{}\n"),
    "500": lambda w: w.reply(500, {"error": {"message": "no", "type": "server_error"}}),
    "429": lambda w: w.reply(429, {"error": {"message": "no", "type": "requests"}}),
    "dropped": lambda w: w.close(),
    "404 for a while": lambda w: w.reply(404, {"error": {"message": "no", "type": "x"}}),
}


@pytest.mark.parametrize("name", SHORT)
def test_a_short_download_is_fetched_again(tmp_path, name):
    def content(request, wire, n):
        if n == 1:
            SHORT[name](wire)
        else:
            whole(request, wire)

    handler = FileServer(content)
    receipt, waits = fetch(tmp_path, handler)
    assert receipt.received_bytes == len(DATA)
    assert len(handler.seen) == 2
    assert len(waits) == 1


@pytest.mark.parametrize("name", SHORT)
def test_what_stays_short_is_an_error_and_stores_nothing(tmp_path, name):
    handler = FileServer(lambda request, wire, n: SHORT[name](wire))
    error = ResultsGone if name == "404 for a while" else DownloadError
    with pytest.raises(error) as caught:
        fetch(tmp_path, handler, max_tries=3)
    assert len(handler.seen) == 3
    assert "sk-1" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "close-delimited, cut",
        "206 without a range",
        "gzip stream cut, length right",
        "gzip without header",
        "200 text/html",
        "0 bytes",
    ],
)
def test_the_silent_ones_are_seen_without_the_providers_own_count(tmp_path, name):
    handler = FileServer(lambda request, wire, n: SHORT[name](wire), counted=None)
    with pytest.raises(DownloadError):
        fetch(tmp_path, handler, max_tries=2)


@pytest.mark.parametrize(
    "send",
    [
        lambda w: w.reply(200, DATA),
        lambda w: chunked(w, DATA, end=True),
        lambda w: w.reply(200, GZIPPED, {"Content-Encoding": "gzip"}),
    ],
)
def test_a_transfer_that_proves_its_own_end_needs_no_count(tmp_path, send):
    receipt, _ = fetch(tmp_path, FileServer(lambda r, w, n: send(w), counted=None))
    assert receipt.expected_bytes is None


def test_a_declared_encoding_is_undone_and_counted_against_the_providers_own_size(tmp_path):
    handler = FileServer(lambda r, w, n: w.reply(200, GZIPPED, {"Content-Encoding": "gzip"}))
    receipt, _ = fetch(tmp_path, handler)
    assert receipt.content_encoding == "gzip"
    assert receipt.received_bytes == len(GZIPPED)
    assert receipt.expected_bytes == len(DATA)


@pytest.mark.parametrize("status", [410, 403])
def test_a_file_that_is_gone_says_so_at_once(tmp_path, status):
    message = "The file has expired." if status == 403 else "Gone."
    body = {"error": {"message": message, "type": "invalid_request_error"}}
    handler = FileServer(lambda r, w, n: w.reply(status, body))
    with pytest.raises(ResultsGone):
        fetch(tmp_path, handler)
    assert len(handler.seen) == 1


def test_a_file_object_that_is_gone_says_so(tmp_path):
    def handler(request, wire):
        wire.reply(404, {"error": {"message": "No such File", "type": "invalid_request_error"}})

    with pytest.raises(ResultsGone):
        fetch(tmp_path, handler)


def test_a_wrong_key_is_the_accounts_fault_and_no_file_is_lost(tmp_path):
    body = {"error": {"message": "Incorrect API key: sk-1", "type": "invalid_request_error"}}
    handler = FileServer(lambda r, w, n: w.reply(401, body))
    with pytest.raises(ProviderError) as caught:
        fetch(tmp_path, handler)
    assert caught.value.fault == "account"
    assert "sk-1" not in str(caught.value)


def test_the_provider_says_how_long_to_wait(tmp_path):
    def content(request, wire, n):
        if n == 1:
            body = {"error": {"message": "slow down", "type": "requests"}}
            wire.reply(429, body, {"Retry-After": "7"})
        else:
            whole(request, wire)

    _, waits = fetch(tmp_path, FileServer(content))
    assert waits == [7.0]


def ranged(cuts, *, data=DATA, etag=lambda n: '"v1"', honour=True):
    """Serves ``data`` cut after ``cuts[n]`` bytes of each reply, with or without ranges."""

    def content(request, wire, n):
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
        same = request.headers.get("if-range", etag(n)) == etag(n)
        if asked and honour and same:
            start = int(asked[1])
        headers = {"ETag": etag(n)}
        if honour:
            headers["Accept-Ranges"] = "bytes"
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        rest = data[start:]
        cut = cuts[n - 1] if n <= len(cuts) else None
        wire.reply(206 if start else 200, rest[:cut], headers, length=len(rest))

    return content


def test_a_broken_transfer_goes_on_where_it_stopped(tmp_path):
    handler = FileServer(ranged([1000, 2500, 1]))
    receipt, _ = fetch(tmp_path, handler, max_tries=2)
    assert [r.headers.get("range") for r in handler.seen] == [
        None,
        "bytes=1000-",
        "bytes=3500-",
        "bytes=3501-",
    ]
    assert [r.headers.get("if-range") for r in handler.seen] == [None] + ['"v1"'] * 3
    assert receipt.status == 206
    assert receipt.announced_bytes == receipt.received_bytes == len(DATA)


def test_a_server_without_ranges_starts_again(tmp_path):
    handler = FileServer(ranged([1000, 2500], honour=False))
    receipt, _ = fetch(tmp_path, handler)
    assert all("range" not in r.headers for r in handler.seen)
    assert (receipt.status, len(handler.seen)) == (200, 3)


def test_a_file_that_changed_between_two_pieces_starts_again(tmp_path):
    def etag(n):
        return '"old"' if n == 1 else '"new"'

    handler = FileServer(ranged([1000], etag=etag))
    receipt, _ = fetch(tmp_path, handler)
    assert handler.seen[1].headers["if-range"] == '"old"'
    assert receipt.status == 200


def test_a_server_that_breaks_off_for_ever_is_given_up(tmp_path):
    handler = FileServer(ranged([1] * 10_000))
    with pytest.raises(DownloadError):
        fetch(tmp_path, handler, max_tries=2)
    assert len(handler.seen) == 16


def test_a_range_that_is_refused_starts_again(tmp_path):
    plain = ranged([1000])

    def content(request, wire, n):
        if n == 2:
            wire.reply(416, b"", {"Content-Range": "bytes */10"})
        else:
            plain(request, wire, n)

    handler = FileServer(content)
    fetch(tmp_path, handler)
    assert "range" not in handler.seen[2].headers


def test_another_range_than_was_asked_for_is_not_glued_on(tmp_path):
    plain = ranged([1000])

    def content(request, wire, n):
        if n == 2:
            headers = {"Content-Range": f"bytes 990-{len(DATA) - 1}/{len(DATA)}"}
            wire.reply(206, DATA[990:], headers)
        else:
            plain(request, wire, n)

    fetch(tmp_path, FileServer(content))


def test_a_transfer_that_crawls_is_broken_off_and_resumed(tmp_path):
    now = [0.0]

    def clock():
        now[0] += 40.0
        return now[0]

    def content(request, wire, n):
        if n > 1:
            ranged([])(request, wire, n)
            return
        wire.send(b'HTTP/1.1 200 OK\r\nAccept-Ranges: bytes\r\nETag: "v1"\r\n')
        wire.send(b"Content-Length: %d\r\n\r\n" % SIZE)
        for at in range(3):
            wire.send(DATA[at : at + 1])
            if wire.stopped.wait(0.05):
                return
        wire.hang()

    handler = FileServer(content)
    fetch(tmp_path, handler, clock=clock)
    assert len(handler.seen) == 2
    assert handler.seen[1].headers["range"] in ("bytes=1-", "bytes=2-", "bytes=3-")


def peek(send, **kw):
    with ScriptedServer(FileServer(lambda r, w, n: send(w))) as server:
        env = {"OPENAI_API_KEY": "sk-1", "OPENAI_BASE_URL": f"{server.url}/v1"}
        provider = open_provider("openai", env=env, deployment="d")
        try:
            return first_line(provider, REF, **kw)
        finally:
            provider.close()


@pytest.mark.parametrize(
    "send",
    [
        lambda w: w.reply(200, b"first\nsecond\n"),
        lambda w: w.reply(200, b"\xef\xbb\xbf\r\n \n\nfirst\r\nsecond"),
        lambda w: chunked(w, b"first\n" + b"x" * 5000, end=False),
        lambda w: w.reply(200, gzip.compress(b"first\nx"), {"Content-Encoding": "gzip"}),
    ],
)
def test_the_first_line_is_read_and_nothing_more(send):
    assert peek(send) == b"first"


@pytest.mark.parametrize(
    "send",
    [
        lambda w: w.reply(200, b"first"),
        lambda w: w.reply(200, b"\n\n"),
        lambda w: w.reply(200, b"x" * 5000 + b"\n", length=9000),
        lambda w: w.reply(206, b"first\n"),
        lambda w: w.reply(204, b"", length=None),
    ],
)
def test_a_file_without_a_first_line_proves_nothing(send):
    with pytest.raises(DownloadError):
        peek(send, most=4000)


def test_progress_is_told(tmp_path):
    seen: list[int] = []
    fetch(tmp_path, FileServer(whole), progress=seen.append)
    assert seen[-1] == len(DATA)


@given(
    status=st.sampled_from([200, 204, 206]),
    received=st.integers(0, 3),
    announced=st.one_of(st.none(), st.integers(0, 3)),
    expected=st.one_of(st.none(), st.integers(0, 3)),
    resumed=st.booleans(),
    marks_end=st.booleans(),
)
def test_whole_means_that_no_known_length_disagrees(
    status, received, announced, expected, resumed, marks_end
):
    ok, reason = judge(
        Transfer(
            status=status,
            resumed=resumed,
            received=received,
            size=received,
            announced=announced,
            expected=expected,
            marks_end=marks_end,
        )
    )
    assert reason
    if ok:
        assert status == 200 or (status == 206 and resumed)
        assert announced in (None, received)
        assert expected in (None, received)
        assert announced is not None or expected is not None or marks_end


@pytest.mark.parametrize("honour", [True, False])
@pytest.mark.parametrize("size", [24_000_000, pytest.param(300_000_000, marks=pytest.mark.soak)])
def test_a_large_file_cut_at_five_points_is_fetched_in_bounded_memory(tmp_path, honour, size):
    import json
    import subprocess
    import sys

    source = tmp_path / "source"
    hasher = hashlib.sha256()
    with source.open("wb") as out:
        for _ in range(size // 1_000_000):
            block = os.urandom(1_000_000)
            hasher.update(block)
            out.write(block)
    cuts = sorted(int.from_bytes(os.urandom(4)) % size for _ in range(5))
    starts = []

    def handler(request, wire):
        if not request.path.endswith("/content"):
            wire.reply(200, {"id": "file-1", "bytes": size})
            return
        asked = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
        start = int(asked[1]) if asked and honour else 0
        stop = cuts[len(starts)] if len(starts) < 5 else size
        starts.append(start)
        lines = [f"HTTP/1.1 {206 if start else 200} X", f"Content-Length: {size - start}"]
        if honour:
            lines.append("Accept-Ranges: bytes")
        if start:
            lines.append(f"Content-Range: bytes {start}-{size - 1}/{size}")
        wire.send("\r\n".join(lines).encode() + b"\r\n\r\n")
        with source.open("rb") as file:
            file.seek(start)
            left = max(stop, start) - start
            while left:
                piece = file.read(min(1 << 18, left))
                wire.send(piece)
                left -= len(piece)
        wire.close()

    with ScriptedServer(handler) as server:
        done = subprocess.run(
            [sys.executable, "-c", _FETCHER, f"{server.url}/v1", str(tmp_path / "store")],
            capture_output=True,
            text=True,
            timeout=110,
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["digest"] == hasher.hexdigest()
    assert told["grown"] < 100_000, "kilobytes above the baseline"
    assert starts == ([0, *cuts] if honour else [0] * 6)


_FETCHER = """
import json, re, sys
from llm_batch_assets.artifacts import open_store
from llm_batch_assets.download import download
from llm_batch_assets.providers.factory import open_provider
from llm_batch_assets.types import ResultRef

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])

env = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": sys.argv[1]}
provider = open_provider("openai", env=env, deployment="d")
store = open_store(sys.argv[2])
before = peak()
ref = ResultRef("results", "file-1")
receipt = download(provider, ref, store, max_tries=6, sleep=lambda s: None)
print(json.dumps({"digest": receipt.digest, "grown": peak() - before}))
"""
