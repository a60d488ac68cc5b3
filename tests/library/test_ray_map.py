"""The map on Ray: the same certificates, whoever dies, and nothing left behind."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import muninn
from certify_cases import SHORT_FAMILY, certificate, contexts, planner
from muninn.certify.outcomes import Outcomes, OutcomeUnits
from muninn.certify.scan import Measuring
from muninn.certify.units import Episodes
from muninn.errors import InputError, MuninnError
from muninn.parallel import Map, workers_of
from muninn.programs.plan import Program
from muninn_bench.studies.coverage.mixture import mixture_planner
from parallel_cases import Absent, Killable, Travelling, paused, process_of, scaled

ray = pytest.importorskip("ray")
from muninn.ray_map import Ray  # noqa: E402

EPISODES: dict[str, Any] = {
    "risk": 0.2, "planner": mixture_planner("ddim", steps=6), "family": SHORT_FAMILY,
    "tolerance": 0.3,
}  # fmt: skip


@pytest.fixture(scope="module")
def crews() -> Iterator[dict[str, Map]]:
    """Maps of a program that uses Ray already: they share its connection, and leave it open."""
    ray.init("local", num_cpus=5, include_dashboard=False, log_to_driver=False)
    with Ray(1) as one, Ray(2) as two:
        yield {"inline": Map(), "one": one, "two": two}
    assert ray.is_initialized()
    ray.shutdown()


# -- the same results ------------------------------------------------------------------------


def test_any_number_of_workers_gives_the_same_certificate_and_the_same_journal(
    crews: dict[str, Map], tmp_path: Path
) -> None:
    made = {}
    for name, crew in crews.items():
        journal = tmp_path / f"{name}.journal"
        issued = certificate(calls=contexts(96), batch_size=10, resume=journal, workers=crew)
        made[name] = issued.save(tmp_path / name).read_bytes() + journal.read_bytes()
    assert made["inline"] == made["one"] == made["two"]


def test_tuning_and_evaluation_are_the_same_too(crews: dict[str, Map]) -> None:
    own, issued = mixture_planner("ddim", steps=6), certificate()
    families, verdicts = [], []
    for crew in crews.values():
        tuned = muninn.tune(own, contexts(40), tolerance=0.3, workers=crew, progress=False)
        fresh = muninn.evaluate(planner(), issued, contexts(60, 1), workers=crew)
        families.append(tuned)
        verdicts.append({k: v for k, v in fresh.to_json().items() if k != "seconds"})
    assert families[0] == families[1] == families[2]
    assert verdicts[0] == verdicts[1] == verdicts[2]


def test_a_worker_that_would_compute_otherwise_is_noticed(
    crews: dict[str, Map], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parallel_cases.SCALE", 2.0)  # in this process only, as a script would
    with pytest.raises(InputError, match="a worker process computes otherwise than this one"):
        certificate(workers=crews["two"], metric=scaled)


def score(plan: Any, seed: int) -> float:
    return float(plan(contexts(1, seed)).mean() > 0.0)


@pytest.mark.slow
def test_ten_thousand_episodes_lose_none(crews: dict[str, Map]) -> None:
    own = EPISODES["planner"]
    units = OutcomeUnits(own, Outcomes(score, 10_000), 0)
    items = [(Program.full(own.sampler.kind), "certify", [k]) for k in range(10_000)]
    here = [done[0][0] for done in Map().map(Measuring(units), items)]
    there = [done[0][0] for done in crews["two"].map(Measuring(units), items)]
    assert len(there) == 10_000 and there == here
    assert 0.1 < np.mean([each.score for each in there]) < 0.9


# -- whoever dies ----------------------------------------------------------------------------


def test_a_worker_that_is_killed_changes_nothing(crews: dict[str, Map], tmp_path: Path) -> None:
    drive, victim = Killable(tmp_path), tmp_path / "victim"

    def kill() -> None:
        while not victim.exists():
            time.sleep(0.05)
        os.kill(int(victim.read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    made = certificate(calls=Episodes(drive, 28), workers=crews["two"], **EPISODES)
    killer.join()
    straight = certificate(calls=Episodes(drive, 28), **EPISODES)
    assert made.save(tmp_path / "a").read_bytes() == straight.save(tmp_path / "b").read_bytes()


def test_an_item_that_kills_its_workers_is_an_error_and_others_go_on(
    crews: dict[str, Map],
) -> None:
    with pytest.raises(MuninnError, match=r"4 Ray workers died.*smaller batch_size.*journal"):
        list(crews["two"].map(os._exit, [3]))
    assert list(crews["two"].map(Travelling(), range(5))) == list(range(5))


def test_an_exception_ends_the_workers(crews: dict[str, Map]) -> None:
    with pytest.raises(KeyError), Ray(2) as workers:
        pids = set(workers.map(process_of, range(8)))
        next(workers.map(time.sleep, itertools.repeat(0.1)))
        raise KeyError
    until = time.monotonic() + 20.0
    while any(map(running, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert pids and not any(map(running, pids))


def running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    except OSError:
        return False


# -- clusters that cannot be used ------------------------------------------------------------


@pytest.mark.parametrize("workers", ["ray:127.0.0.1:9", "ray://127.0.0.1:9"])
def test_a_cluster_that_cannot_be_reached_is_said_at_once(
    workers: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    began, address = time.monotonic(), workers.removeprefix("ray:").lstrip("/")
    with pytest.raises(InputError, match=rf"no Ray cluster.*{address}.*refused.*ray status"):
        certificate(workers=workers, resume=tmp_path / "j")
    assert time.monotonic() - began < 30.0
    monkeypatch.setenv("RAY_ADDRESS", workers.removeprefix("ray:"))
    with pytest.raises(InputError, match="no Ray cluster"), workers_of("ray"):
        pass
    certificate(resume=tmp_path / "j")  # the journal is free


def test_what_is_missing_is_named(crews: dict[str, Map], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="Ray has no GPU now"), Ray(gpus=1):
        pass
    with pytest.raises(InputError, match="at least one worker, got 0"):
        workers_of("ray:0")
    with pytest.raises(InputError, match=r"with Ray\(\) as workers"):
        next(Ray(1).map(process_of, [1]))
    monkeypatch.setattr("muninn.ray_map._Worker", Absent)  # of a module that workers lack
    with Ray(2) as workers, pytest.raises(MuninnError, match=r"cannot start.*parallel_cases"):
        list(workers.map(process_of, range(3)))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'muninn-diffusion\[ray\]'"):
        workers_of("ray")


# -- the guide -------------------------------------------------------------------------------

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "cluster.md").read_text()


def test_the_code_of_the_guide_runs_as_printed(
    crews: dict[str, Map], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    own = mixture_planner("ddim", steps=6)
    names: dict[str, Any] = {"muninn": muninn, "planner": own, "contexts": contexts(140)}
    exec(code, names)
    assert names["certificate"].tolerance == 0.05 and Path("calibration.jsonl").exists()


def test_the_cluster_file_of_the_guide_is_one_by_rays_own_schema() -> None:
    yaml, jsonschema = pytest.importorskip("yaml"), pytest.importorskip("jsonschema")
    (text,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    schema = json.loads((Path(ray.__file__).parent / "autoscaler/ray-schema.json").read_text())
    jsonschema.validate(yaml.safe_load(text), schema)
    pins = (Path(__file__).parents[2] / "constraints.txt").read_text()
    assert set(re.findall(r"torch==[\d.]+", text)) == set(re.findall(r"^torch==[\d.]+", pins, re.M))


# -- a Ray of our own ------------------------------------------------------------------------

INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sys.path.insert(0, {cases!r})
from certify_cases import certificate, contexts
from muninn.certify.journal import Journal
from parallel_cases import paused
put = Journal.put
def told(journal, key, value):
    put(journal, key, value)
    if key.startswith("certify/"):
        print(key, flush=True)
Journal.put = told
try:
    certificate(
        calls=contexts(96), batch_size=4, metric=paused, resume={journal!r}, workers="ray:2"
    )
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_ends_ray_without_a_word_and_leaves_a_journal_that_resumes(tmp_path: Path) -> None:
    journal, script = tmp_path / "j", tmp_path / "script.py"
    cases = str(Path(__file__).parents[1] / "cases")
    script.write_text(INTERRUPTED.format(cases=cases, journal=str(journal)))
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, env={**os.environ, "PAUSE": "0.3"},
    )  # fmt: skip
    assert process.stdout is not None
    lines = [process.stdout.readline(), process.stdout.readline()]
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    rest = process.communicate(timeout=60)[0].splitlines()
    assert process.returncode == 0 and all(line.startswith("certify/") for line in lines), lines
    assert rest[-1] == "interrupted" and all(line.startswith("certify/") for line in rest[:-1])
    time.sleep(1.0)
    listed = subprocess.run(["ps", "-eo", "sid,stat,args"], capture_output=True, text=True).stdout
    session = [line for line in listed.splitlines() if line.split()[0] == str(process.pid)]
    assert [line for line in session if "Z" not in line.split()[1]] == []
    kept = len(journal.read_text().splitlines())
    settings: dict[str, Any] = {"calls": contexts(96), "batch_size": 4, "metric": paused}
    resumed, straight = certificate(resume=journal, **settings), certificate(**settings)
    assert len(journal.read_text().splitlines()) > kept >= 3
    assert resumed.realised == straight.realised
