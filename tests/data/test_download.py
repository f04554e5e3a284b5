"""Downloading from a server that breaks off, lies, ignores ranges, or is not there."""

import hashlib
import socket
import threading
import urllib.error
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from esupcon.data import download as module
from esupcon.data.download import DownloadFailed, download

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server:
    """Serves CONTENT; `plan` holds what to do with the next requests, plain service when it is empty."""

    def __init__(self):
        self.plan = []
        self.ranges = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *arguments):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/file.tar.gz"
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def answer(self, request):
        asked = request.headers.get("Range")
        self.ranges.append(asked)
        step = self.plan.pop(0) if self.plan else "serve"
        if isinstance(step, int):
            request.send_error(step)
            return
        body = b"<html>please log in</html>" if step == "portal" else CONTENT
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and step != "no ranges" else 0
        if start and start >= len(body):
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(body)}")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if step != "no length":
            request.send_header("Content-Length", str(len(body) - start))
        request.end_headers()
        part = body[start:]
        request.wfile.write(part[: len(part) // 2] if step == "break off" else part)


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "root" / "file.tar.gz"


def fetch(server, target, **options):
    lines = []
    download(server.url, target, MD5, lines.append, timeout=10, pause=0, **options)
    return lines


def test_the_file_arrives_whole_and_alone(server, target):
    lines = fetch(server, target)
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == [target.name]
    assert server.url in lines[0]


def test_a_broken_connection_is_taken_up_where_it_broke(server, target):
    server.plan = ["break off", "break off"]
    fetch(server, target)
    assert target.read_bytes() == CONTENT
    half = len(CONTENT) // 2
    assert server.ranges == [None, f"bytes={half}-", f"bytes={half + half // 2}-"]


def test_a_later_run_takes_up_what_an_earlier_one_left(server, target):
    server.plan = ["break off"]
    with pytest.raises(DownloadFailed, match="broke off at"):
        fetch(server, target, attempts=1)
    assert not target.exists()
    assert target.with_name(target.name + ".part").stat().st_size == len(CONTENT) // 2
    fetch(server, target)
    assert target.read_bytes() == CONTENT
    assert server.ranges[1] == f"bytes={len(CONTENT) // 2}-"


def test_a_server_without_ranges_begins_again(server, target):
    server.plan = ["break off", "no ranges"]
    fetch(server, target)
    assert target.read_bytes() == CONTENT


def test_a_server_that_does_not_say_how_long(server, target):
    server.plan = ["no length"]
    fetch(server, target)
    assert target.read_bytes() == CONTENT


def test_a_beginning_that_is_already_whole(server, target):
    target.parent.mkdir()
    target.with_name(target.name + ".part").write_bytes(CONTENT)
    fetch(server, target)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("beginning", [b"other content", CONTENT + b"too much", b"x" * len(CONTENT)])
def test_a_beginning_of_something_else_is_thrown_away(server, target, beginning):
    target.parent.mkdir()
    target.with_name(target.name + ".part").write_bytes(beginning)
    fetch(server, target)
    assert target.read_bytes() == CONTENT


def test_passing_trouble_is_waited_out(server, target):
    server.plan = [503, 500, 429]
    fetch(server, target)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_is_final(server, target, status):
    server.plan = [status] * 9
    with pytest.raises(DownloadFailed, match=f"answered {status}"):
        fetch(server, target)
    assert len(server.ranges) == 1
    assert list(target.parent.iterdir()) == []


def test_lasting_trouble_is_an_end(server, target):
    server.plan = [503] * 9
    with pytest.raises(DownloadFailed, match=r"503.*3 attempts"):
        fetch(server, target, attempts=3)


def test_wrong_content_is_deleted(server, target):
    server.plan = ["portal"]
    with pytest.raises(DownloadFailed, match=f"not {MD5}, and was deleted"):
        fetch(server, target)
    assert list(target.parent.iterdir()) == []


def test_nobody_listens(target):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/file"
        with pytest.raises(DownloadFailed, match="no connection"):
            download(url, target, MD5, lambda line: None, pause=0)
    assert list(target.parent.iterdir()) == []


def test_no_name_service(target, monkeypatch):
    def offline(*arguments, **options):
        raise urllib.error.URLError(socket.gaierror(-2, "Name or service not known"))

    monkeypatch.setattr(module.urllib.request, "urlopen", offline)
    with pytest.raises(DownloadFailed, match="may be offline"):
        download("http://nowhere.invalid/x", target, MD5, lambda line: None, pause=0)


def test_an_endless_server_is_cut_off(server, target, monkeypatch):
    monkeypatch.setattr(module, "_MOST_BYTES", 1000)
    with pytest.raises(DownloadFailed, match="more than"):
        fetch(server, target)


def test_a_folder_that_takes_nothing(server, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DownloadFailed, match="nothing can be written"):
        fetch(server, tmp_path / "file" / "x.tar.gz")


def test_two_at_once_fetch_it_once(server, target):
    threads = [threading.Thread(target=fetch, args=(server, target)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.read_bytes() == CONTENT
    assert len(server.ranges) == 1
    assert [path.name for path in target.parent.iterdir()] == [target.name]
