"""Signals, abandoned workers and readers, and what a spreadsheet would execute."""

import errno
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from bipars.cli import main
from bipars.program import complete, configure
from bipars.report.watch import Handler, make_server
from bipars.results.formats import csv_text
from bipars.results.summary import summarise_runs, to_csv
from bipars.runs.checkpoint import verified_checkpoints
from bipars.runs.directory import RunDirectory, find_runs
from bipars.runs.execute import cut_timings, execute
from commands import train
from envs_of_others import QUICK
from fake_runs import fake_cell

LONG = ["--steps", "40000000", "--checkpoint-every", "1000000"]


@pytest.fixture(autouse=True)
def hangup():
    """A command that was started under nohup ignores SIGHUP, and so would the ones that tests start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def start(command, **how):
    return subprocess.Popen([sys.executable, "-m", "bipars.cli", *command], **how)


def until(process, condition):
    while process.poll() is None and not condition():
        time.sleep(0.02)


def rows(run):
    return run.metrics_file.read_bytes().count(b"\n") if run.metrics_file.exists() else 0


def test_a_closed_terminal_checkpoints(tmp_path):
    run = RunDirectory(tmp_path / "runs" / "seed-0000")
    leader, follower = pty.openpty()
    command = ["setsid", "--ctty", "--wait", sys.executable, "-m", "bipars.cli", *train(tmp_path / "runs"), *LONG]
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    reader = threading.Thread(target=drain, args=(leader, stop := threading.Event()))
    reader.start()
    until(process, lambda: rows(run) > 3)
    stop.set()
    reader.join()
    os.close(leader)
    process.wait(timeout=120)
    deadline = time.monotonic() + 60
    while run.state == "running" and time.monotonic() < deadline:
        time.sleep(0.1)
    ((manifest, _),) = verified_checkpoints(run.checkpoints)
    assert manifest.round == rows(run) > 3


def drain(terminal, stop):
    """Somebody looks at it, or the command would wait with its output."""
    import select

    while not stop.is_set():
        if select.select([terminal], [], [], 0.05)[0]:
            os.read(terminal, 4096)


def test_nohup_is_respected(tmp_path):
    run = RunDirectory(tmp_path / "runs" / "seed-0000")
    command = ["nohup", sys.executable, "-m", "bipars.cli", *train(tmp_path / "runs"), *LONG]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(process, lambda: rows(run) > 2)
    process.send_signal(signal.SIGHUP)
    seen = rows(run)
    until(process, lambda: rows(run) > seen + 5)
    assert process.poll() is None
    process.terminate()
    assert process.wait(timeout=120) == 130


def kill_alone(runner, run):
    """The runner; its worker must leave within ten seconds."""
    worker = f"/proc/{run.lock_file.read_text().split()[0]}"
    runner.kill()
    runner.wait()
    deadline = time.monotonic() + 10
    while os.path.exists(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(worker)


def test_a_runner_killed_alone_on_a_gymnasium_task_resumes_to_the_same_bytes(tmp_path):
    """Its worker leaves as if it had been killed too, so that no checkpoint makes episodes begin that would not."""
    data = {"env": "Pendulum-v1", "terms": ["noise"], "steps": 64 * 60, "checkpoint_every": 20, "ppo": QUICK}
    config = complete(configure(data | {"evaluation_episodes": 1}))
    calm = RunDirectory.create(tmp_path / "calm" / "seed-0000", config)
    assert start(["resume", calm.path.parent, "--workers", "1"]).wait() == 0
    run = RunDirectory.create(tmp_path / "wild" / "seed-0000", config)
    for at in (5, 27):
        process = start(["resume", run.path.parent, "--workers", "1"])
        until(process, lambda at=at: rows(run) >= at)
        kill_alone(process, run)
        assert not run.finished
    assert main(["resume", str(run.path.parent), "--workers", "1"]) == 0
    for name in ("metrics.jsonl", "result.json"):
        assert (run.path / name).read_bytes() == (calm.path / name).read_bytes()
    assert len(run.timings_file.read_text().splitlines()) == 60


def test_an_abandoned_worker_leaves_in_the_middle_of_an_update(tmp_path):
    settings = {"update_period": 2_000_000, "num_envs": 100, "gradient_steps": 400, "batch_size": 8192}
    config = complete(configure({"env": "cartpole", "terms": ["harmful"], "steps": 10**9, "ppo": settings}))
    run = RunDirectory.create(tmp_path / "runs" / "seed-0000", config)
    process = start(["resume", run.path.parent, "--workers", "1"], stderr=subprocess.DEVNULL)
    until(process, run.lock_file.exists)
    time.sleep(1)
    kill_alone(process, run)


def test_timings_have_every_round_once(tmp_path):
    config = complete(configure({"env": "Pendulum-v1", "terms": ["noise"], "steps": 64 * 6, "ppo": QUICK}))
    run = RunDirectory.create(tmp_path / "run", config)
    answers = iter([False, True])
    assert not execute(run, lambda: next(answers))
    with open(run.timings_file, "a") as timings:  # as a killed process leaves it
        timings.write('{"round": 2, "step": 128}\n{"round": 3, "step": 192}\n[]\n{"rou')
    cut_timings(run.timings_file, 2)
    assert [line[:11] for line in run.timings_file.read_text().splitlines()] == ['{"round": 1', '{"round": 2']


@pytest.fixture
def watched(tmp_path, monkeypatch, capfd):
    """A page of one run, its server with little patience; nothing that readers do may bring a traceback."""
    monkeypatch.setattr(Handler, "timeout", 0.3)
    fake_cell(tmp_path, "mgl", [0.0], weight=-2.0)
    with make_server(tmp_path, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()
    assert "Traceback" not in capfd.readouterr().err


def connect(port, text=""):
    reader = socket.create_connection(("127.0.0.1", port), timeout=5)
    reader.sendall(text.format(port=port).encode())
    return reader


REQUEST = "GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"


def test_readers_that_leave_or_wait_are_no_error(watched):
    with connect(watched) as silent, socket.socket() as lazy:
        hasty = connect(watched, REQUEST)
        hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        hasty.close()  # resets the connection before the page of megabytes is sent
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(("127.0.0.1", watched))
        lazy.sendall(REQUEST.format(port=watched).encode())  # and never reads
        assert silent.recv(1) == b""  # the server hangs up
        time.sleep(1.5)


def test_a_reader_that_sends_a_letter_now_and_then_does_not_stay(watched):
    with connect(watched) as slow:
        slow.setblocking(False)
        for _ in range(30):
            slow.sendall(b"G")
            time.sleep(0.1)
            with suppress(BlockingIOError):
                assert slow.recv(1) == b""
                return
    pytest.fail("it was waited for")


def test_so_many_readers_are_served_at_a_time(watched, monkeypatch):
    before = threading.active_count()
    monkeypatch.setattr("bipars.report.watch.MOST_THREADS", before + 4)
    monkeypatch.setattr(Handler, "timeout", 3.0)
    readers = [connect(watched) for _ in range(20)]
    try:
        began = time.monotonic()
        assert readers[-1].recv(1) == b""  # refused at once, not when it was waited for
        assert time.monotonic() < began + 2
    finally:
        for reader in readers:
            reader.close()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.05)  # until the server has seen that they are gone
    with connect(watched, REQUEST) as reader:
        assert reader.recv(15) == b"HTTP/1.0 200 OK"


@pytest.mark.parametrize("path", ["config.json", "snapshots"])
def test_runs_that_go_while_they_are_read_are_a_message(watched, tmp_path, monkeypatch, path):
    def gone(directory):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(directory / "seed-0000" / path))

    monkeypatch.setattr("bipars.report.watch.collect", gone)
    with connect(watched, REQUEST) as reader, reader.makefile("rb") as answer:
        text = answer.read()
    assert text.startswith(b"HTTP/1.0 503")
    assert f"seed-0000/{path} cannot be read: No such file or directory".encode() in text


FORMULAS = ["=1+1", " =1+1", "\t@SUM(A1)", "  -cmd", "\u00a0=2"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_text_in_every_table(tmp_path, text):
    assert csv_text([text], [[text, -1.5]]) == f"'{text}\n'{text},-1.5\n"
    root = fake_cell(tmp_path / "runs" / text / "t" / "m", "mgl", [0.0], weight=1.0, terms=(text,)).parents[2]
    table = to_csv(summarise_runs(find_runs(root), root))
    assert f"\n'{text}" in table
    assert ",'" not in table  # numbers stay numbers


@pytest.mark.parametrize("text", FORMULAS)
def test_an_exported_table_has_no_formula(tmp_path, text):
    pytest.importorskip("polars")
    from bipars.results.table import export

    fake_cell(tmp_path / "mgl", "mgl", [0.0, 0.1], weight=-1.0, terms=(text,))
    export(tmp_path)
    head, first, *_ = (tmp_path / "curves.csv").read_text().splitlines()
    assert head.startswith("cell,env,terms,method,seed,step")
    assert f",'{text}," in first
    assert ",-" in first  # numbers stay numbers
