"""Every example runs from start to end, prints what it promises, and saves evaluations.

That of LeRobot needs another environment: tests/lerobot/test_quickstart.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if not path.stem.startswith("lerobot_"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(path: Path) -> None:
    if path.stem.startswith("diffusers_"):
        pytest.importorskip("diffusers")
    if path.stem.startswith("onnx_"):
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    result = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, result.stderr
    promised = "the mean score of new" if path.stem == "outcome" else "at most 5.0% of new"
    assert promised in result.stdout
    spent = re.findall(r"([\d.]+) of (\d+) evaluations", result.stdout)
    assert spent and all(float(few) < int(steps) / 2 for few, steps in spent[-1:])
