"""Flights here and now: drawn side by side on one clock, recorded, replayed; what is refused."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import closed_loop_cases as cases
import loop_cases
from muninn.errors import InputError
from muninn.loop.escalation import Needs
from muninn_bench import models
from muninn_bench.cli import app, main
from muninn_bench.studies.closed_loop import command, live, pictures, study
from muninn_bench.studies.closed_loop.batched import Ticket, fly_one
from muninn_bench.studies.closed_loop.live import read_flights, write_flights
from muninn_bench.studies.closed_loop.loop import Recorder
from muninn_bench.studies.closed_loop.methods import METHODS
from muninn_bench.studies.closed_loop.tables import bound_of
from muninn_bench.studies.closed_loop.traces import Replayed, Timed, measured
from rerun_cases import read_rerun

BESIDE = ("full", "fewsteps", "muninn-only")
REASON = "the feasibility screen failed (RuntimeError: a map of another lake was loaded, " * 3


def charged(job: Timed) -> float:
    return 0.9 if job.program == "full" else 0.1


def flown(method: str) -> Recorder:
    """The same episode, whichever method flies it."""
    programs = cases.programs()
    recorder = Recorder(programs.platform)
    fly_one(programs, Ticket(METHODS[method], 3), charged, Needs(), watcher=recorder)
    return recorder


# -- the picture --------------------------------------------------------------------------------


def drawn_captions(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Captions of all panels, frame by frame; whatever is drawn must be inside the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    draw, frames = FigureCanvasAgg.draw, list[list[str]]()

    def watched(canvas: Any) -> None:
        draw(canvas)
        width, height = canvas.get_width_height()
        for axis in canvas.figure.axes:
            for text in (axis.title, *axis.texts):
                box = text.get_window_extent()
                assert box.x0 >= 0 and box.x1 <= width and box.y1 <= height, text.get_text()
        frames.append([" ".join(axis.title.get_text().split()) for axis in canvas.figure.axes])

    monkeypatch.setattr(FigureCanvasAgg, "draw", watched)
    return frames


def test_flights_stand_side_by_side_on_one_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = drawn_captions(monkeypatch)
    recorders = [flown(method) for method in BESIDE]
    path = pictures.draw_gif(tmp_path / "new" / "flight.gif", recorders)
    assert len(frames) > 10 and all(len(captions) == 3 for captions in frames)
    # Full compute has no plan yet when the others are on their way.
    assert any("waits" in full and "follows" in ours for full, _, ours in frames)
    assert all("ms a plan" in caption for captions in frames for caption in captions)
    assert all("900 ms" in full and "100 ms" in ours for full, _, ours in frames)
    ended = {"success": "at the goal", "collision": "collided", "timeout": "out of time"}
    for recorder, caption in zip(recorders, frames[-1], strict=True):
        assert recorder.flight is not None
        assert f"{ended[recorder.flight.outcome]} after {recorder.flight.seconds:.1f} s" in caption
    with Image.open(path) as picture:
        sizes, seconds = set(), 0.0
        for number in range(picture.n_frames):
            picture.seek(number)
            sizes.add(picture.size)
            seconds += picture.info["duration"] / 1e3
        assert picture.n_frames > 10 and sizes == {(840, picture.size[1])}
    lasted = max(recorder.seen[-1].snapshot.time for recorder in recorders)
    assert seconds == pytest.approx(lasted + pictures.PAUSE, abs=0.5)  # as fast as it was


def test_a_long_reason_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames, recorder = drawn_captions(monkeypatch), flown("muninn-only")
    call = next(moment.call for moment in recorder.seen if moment.call is not None)
    held = replace(call, action="hold", reason=REASON)
    recorder.seen[1:-1] = [replace(moment, call=held) for moment in recorder.seen[1:-1]]
    pictures.draw_gif(tmp_path / "flight.gif", [recorder, flown("full")])
    assert any(f"holds: {REASON}".strip() in captions[0] for captions in frames)


def test_a_long_flight_is_shown_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "LONGEST", 0.5)
    with Image.open(pictures.draw_gif(tmp_path / "a.gif", [flown("full")])) as picture:
        assert 1 < picture.n_frames <= 0.5 * pictures.FASTEST


def test_the_command_draws_the_first_episode_and_tells_its_path_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pictures, "FRAMES", 4)
    monkeypatch.setattr(command, "Robot", lambda task, variant: cases.platform)
    monkeypatch.setattr(study, "prepare", lambda *given, tune: cases.programs())
    shown, draw = list[Recorder](), pictures.draw_gif

    def kept(path: Path, recorders: list[Recorder]) -> Path:
        shown.extend(recorders)
        return draw(path, recorders)

    monkeypatch.setattr(live, "draw_gif", kept)
    result = CliRunner().invoke(app, ["fly", "--task", "point", "--smoke", "--episodes", "2"])
    assert result.exit_code == 0, result.output
    *table, last = result.output.strip().splitlines()
    assert last == "wrote runs/fly/point/flight.gif" and Path(last.split()[1]).is_file()
    flights = [recorder.flight for recorder in shown]
    assert [(one.method, one.seed) for one in flights if one] == [(name, 0) for name in BESIDE]
    for title in ("Full, real time", "Fewer steps", "Muninn"):
        assert any(line.startswith(title) for line in table)
    assert max(map(len, table)) <= 80
    assert "Fewer steps: 4 of the sampler's own, evenly spread" in " ".join(table)


# -- what is kept -------------------------------------------------------------------------------


def test_flights_survive_their_file_and_fly_again(tmp_path: Path) -> None:
    programs = cases.programs()
    ticket, needed = Ticket(METHODS["combined"], 3), Needs(0.0, 0.2, math.inf)
    flight = fly_one(programs, ticket, measured, needed)
    write_flights(tmp_path / "f.jsonl", [flight], needed)
    back, flights = read_flights(tmp_path / "f.jsonl")
    assert (back, flights) == (needed, [flight])
    assert fly_one(programs, ticket, Replayed(flights[0].jobs), back) == flight
    with pytest.raises(InputError, match="no recorded flights"):
        read_flights(tmp_path / "missing.jsonl")


def test_a_flight_can_be_read_back_with_rerun(tmp_path: Path) -> None:
    pytest.importorskip("rerun")
    programs = cases.programs()
    shown = live.View(programs.platform, loop_cases.certificate(), tmp_path)
    ticket = Ticket(METHODS["combined"], 1)
    fly_one(programs, ticket, lambda job: 0.1, Needs(), watcher=shown)
    found = read_rerun(shown.path, "simulated")
    bound = bound_of(loop_cases.certificate())
    for name, values in (
        ("call/evaluations", [float(call.evaluations) for call in shown.calls]),
        ("call/bound_m", [bound(call) for call in shown.calls]),
        ("signals/clearance_m", [one.snapshot.clearance for one in shown.seen]),
    ):
        np.testing.assert_allclose([value[0] for _, value in found[name]], values)
    np.testing.assert_allclose([t for t, _ in found["call/bound_m"]],
                               [call.finished for call in shown.calls])  # fmt: skip
    (way,) = found["world/path"][-1][1]
    np.testing.assert_allclose(way, [one.snapshot.position for one in shown.seen], rtol=1e-5)
    answered = [call for call in shown.calls if call.action != "hold"]
    assert len(found["world/plan"]) == len(answered) > 0
    (circle,) = found["world/obstacles"][0][1]
    np.testing.assert_allclose(np.linalg.norm(circle, axis=1), 2.0, rtol=1e-6)


def test_the_view_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(InputError, match=r"muninn-bench\[viz\]"):
        live.View(cases.platform(), loop_cases.certificate(), tmp_path)


# -- the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--task", "submarine"), "choose from asv, crazyflie"),
        (("--task", "maze2d", "--episodes", "0"), "--episodes is at least 1"),
    ],
)
def test_the_command_refuses_what_it_does_not_know(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, ["fly", *arguments])
    assert isinstance(result.exception, InputError)
    assert said in str(result.exception)


@pytest.mark.parametrize("task", ["maze2d", "crazyflie", "asv"])
def test_without_a_checkout_the_command_names_the_model_that_is_missing(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "__file__", str(tmp_path / "site" / "muninn_bench" / "models.py"))
    result = CliRunner().invoke(app, ["fly", "--task", task])
    assert isinstance(result.exception, InputError)
    wanted = f"models/{task}/teacher.safetensors was not found; run from the project's root, or "
    assert str(result.exception) == f"{wanted}train it with `muninn-bench train --task {task}`"


def test_a_missing_extra_is_one_line_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "osqp", None)
    monkeypatch.setattr(sys, "argv", ["muninn-bench", "fly", "--task", "asv"])
    with pytest.raises(SystemExit, match="2"):
        main()
    said = capsys.readouterr().out
    assert said == "error: the vessel needs OSQP: pip install 'muninn-bench[fly]'\n"
