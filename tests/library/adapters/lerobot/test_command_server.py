"""LeRobot's policy server itself answers a robot's client with cached chunks."""

from __future__ import annotations

import pickle
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_cases import save_smolvla
from muninn.adapters.lerobot.commands import CERTIFICATE

pytest.importorskip("transformers")
grpc = pytest.importorskip("grpc")
pytest.importorskip("lerobot.async_inference.helpers")

pytestmark = pytest.mark.slow

MOTORS = ["a.pos", "b.pos", "c.pos"]


@contextmanager
def served(folder: Path, *options: str) -> Iterator[Any]:
    """A connection to ``muninn lerobot policy-server``, which then writes ``log.txt``."""
    from lerobot.transport.services_pb2_grpc import AsyncInferenceStub

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "muninn.cli", "lerobot", *options, "policy-server"]
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            [*command, "--host=127.0.0.1", f"--port={port}"],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            # What a shell runs in the background ignores Ctrl-C.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(timeout=120)
            yield AsyncInferenceStub(channel)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=60)
        finally:
            process.kill()


def chunk(stub: Any, checkpoint: Path) -> list[Any]:
    """Actions for one observation, asked for as LeRobot's robot client does."""
    from lerobot.async_inference.helpers import RemotePolicyConfig, TimedObservation
    from lerobot.transport import services_pb2
    from lerobot.transport.utils import send_bytes_in_chunks

    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": MOTORS},
        "observation.images.front": {
            "dtype": "image",
            "shape": (32, 32, 3),
            "names": ["height", "width", "channels"],
        },
    }
    seen = {motor: 0.1 for motor in MOTORS} | {"task": "pick place"}
    seen["front"] = np.zeros((32, 32, 3), np.uint8)
    policy = RemotePolicyConfig("smolvla", str(checkpoint), features, 4, "cpu")
    observation = TimedObservation(
        timestamp=time.time(), timestep=0, observation=seen, must_go=True
    )
    stub.Ready(services_pb2.Empty())
    stub.SendPolicyInstructions(services_pb2.PolicySetup(data=pickle.dumps(policy)))
    sent = send_bytes_in_chunks(pickle.dumps(observation), services_pb2.Observation, silent=True)
    stub.SendObservations(sent)
    actions: list[Any] = pickle.loads(stub.GetActions(services_pb2.Empty()).data)
    return actions


def test_the_real_server_plans_with_the_cache_or_tells_its_client_why_not(tmp_path: Path) -> None:
    checkpoint = save_smolvla(tmp_path)
    with served(tmp_path) as stub:
        actions = chunk(stub, checkpoint)
        assert [tuple(each.get_action().shape) for each in actions] == [(2,)] * 4
        (checkpoint / CERTIFICATE).unlink()
        with pytest.raises(grpc.RpcError, match=r"holds no muninn\.safetensors, its certificate"):
            chunk(stub, checkpoint)
    log = (tmp_path / "log.txt").read_text()
    assert "muninn: SmolVLAPolicy plans with the cache of" in log
    assert re.search(r"muninn: 1 plan, 5\.0 of 10 evaluations each\n", log)
