"""The report, served while a training goes on."""

import json
import threading
import time
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.unit.report.conftest import training_of

from scalefold.errors import InputError
from scalefold.report.monitor import Monitor


def got(address: str, path: str = "", **headers: str) -> str:
    with urlopen(Request(address + path, headers=headers), timeout=60) as answer:
        return answer.read().decode()


@pytest.fixture
def served(make_run):
    run = make_run(evaluated=(0,))
    monitor = Monitor(run, None, None, port=0, every_seconds=0.05)
    thread = threading.Thread(target=monitor.serve)
    thread.start()
    yield run, monitor
    monitor.stop()
    thread.join()


def test_the_page_follows_the_run_and_the_run_is_left_alone(served):
    run, monitor = served
    before = {path for path in run.rglob("*")}
    assert "200 of 200 steps" in got(monitor.address)
    assert got(monitor.address, "version") == "0"
    with (training_of(run) / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps({"step": 201, "loss": 12.5}) + "\n")
    while got(monitor.address, "version") == "0":
        time.sleep(0.1)
    assert "as logged at step 201" in got(monitor.address)
    assert {path for path in run.rglob("*")} == before


def test_only_the_page_is_served_and_only_under_its_own_name(served):
    _, monitor = served
    for path, headers in (
        ("report.json", {}),
        ("../shards/manifest.json", {}),
        ("", {"Host": "a.b"}),
    ):
        with pytest.raises(HTTPError):
            got(monitor.address, path, **headers)


def test_a_port_that_is_taken_is_named(served):
    run, monitor = served
    port = int(monitor.address.rstrip("/").rpartition(":")[2])
    with pytest.raises(InputError, match=f"port {port}"):
        Monitor(run, None, None, port, 1.0)
