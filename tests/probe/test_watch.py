"""The live page: for this machine and its own address alone, and fresh."""

import http.client
import json
import threading
from contextlib import closing

import pytest

from bipars.cli import main
from bipars.report.watch import make_server
from fake_runs import fake_cell


@pytest.fixture
def served(tmp_path):
    fake_cell(tmp_path, "mgl", [0.0, -0.1, 0.0], weight=-2.0, finish=False)
    with make_server(tmp_path, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield tmp_path, server.server_address[1]
        server.shutdown()
        thread.join()


def ask(port, path="/", method="GET", **headers):
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=names)
        response = connection.getresponse()
        return response.status, response.read().decode(), response.headers


def test_it_shows_the_page_and_keeps_it_fresh(served):
    root, port = served
    status, page, headers = ask(port)
    assert status == 200
    assert "data-live" in page
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers
    status, content, _ = ask(port, "/content")
    assert status == 200
    assert "3 of 3 runs stopped before the end" in content
    for run in root.glob("seed-*"):
        row = json.loads(run.joinpath("metrics.jsonl").read_text().splitlines()[-1])
        with open(run / "metrics.jsonl", "a") as file:
            file.write(json.dumps(row | {"round": 12, "step": 240_000, "weight/push": 5.0}) + "\n")
    assert "the last at 100%" in ask(port, "/content")[1]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1.evil.example:{port}", "0.0.0.0:{port}", ""])
def test_another_host_is_refused(served, host):
    _, port = served
    status, text, _ = ask(port, Host=host.format(port=port))
    assert status == 421
    assert "push" not in text


def test_another_origin_is_refused(served):
    _, port = served
    assert ask(port, "/content", Sec_Fetch_Site="cross-site")[0] == 403
    assert ask(port, "/content", Sec_Fetch_Site="same-origin")[0] == 200
    assert ask(port, method="POST")[0] == 501


@pytest.mark.parametrize("path", ["/../config.json", "/seed-0000/config.json", "//etc/passwd", "/content/"])
def test_no_file_is_served(served, path):
    _, port = served
    assert ask(port, path)[0] == 404


def test_runs_that_disappear_are_a_message(served):
    root, port = served
    for file in root.rglob("config.json"):
        file.unlink()
    status, text, _ = ask(port, "/content")
    assert status == 503
    assert "holds no run of bipars" in text


def test_it_listens_on_loopback_only(tmp_path):
    fake_cell(tmp_path, "mgl", [0.0], weight=-2.0)
    with make_server(tmp_path, 0) as server:
        assert server.socket.getsockname()[0] == "127.0.0.1"


def test_what_cannot_be_watched_is_said_at_once(tmp_path, served, capsys):
    root, port = served
    assert main(["watch", str(root / "nothing")]) == 2
    assert main(["watch", str(root), "--port", str(port)]) == 2
    assert main(["watch", str(root), "--port", "70000"]) == 2
    text = capsys.readouterr().err
    assert f"--port is {port}" in text
    assert "--port is 70000" in text
