"""A network in ONNX Runtime: certified against PyTorch, refused when its file is another one."""

from __future__ import annotations

import copy
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from door_cases import DEVICE, SHAPE, Small, certify, contexts, planner
from muninn.adapters.onnx import OnnxDenoiser
from muninn.certify.cached import cache
from muninn.certify.certificate import Certificate
from muninn.certify.evaluate import Evaluation, evaluate
from muninn.errors import CalibrationError, CertificateError, DenoiserError, InputError
from muninn.model.denoiser import ClassifierFreeGuidance, fingerprint
from muninn.parallel import Processes

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

NAMES = ("x", "timestep", "context")


def export(network: nn.Module, path: Path, external_data: bool = False, **more: Any) -> Path:
    example = torch.zeros(2, *SHAPE), torch.zeros(2, dtype=torch.long), torch.zeros(2, 4)
    settings = {"dynamic_shapes": [{0: "batch"}] * 3, "input_names": NAMES, **more}
    torch.onnx.export(
        network.cpu(), example, path, external_data=external_data, verbose=False, **settings
    )
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fp32.onnx, int8.onnx made from it, and other.onnx with slightly other weights."""
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    folder = tmp_path_factory.mktemp("onnx")
    quant_pre_process(export(Small(), folder / "fp32.onnx"), folder / "prepared.onnx")
    # Seven bits for weights: with eight, sums of products saturate on processors without VNNI.
    quantize_dynamic(folder / "prepared.onnx", folder / "int8.onnx", reduce_range=True)
    other = Small()
    with torch.no_grad():
        other.last.weight[0, 0] += 1e-3
    export(other, folder / "other.onnx")
    return folder


@pytest.fixture(scope="module")
def certificate(files: Path) -> Certificate:
    return certify(planner(OnnxDenoiser(files / "fp32.onnx")), reference=planner())


def ask(denoiser: Any, rows: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, *SHAPE, generator=generator).to(DEVICE)
    answer: Tensor = denoiser(x, torch.arange(rows, device=DEVICE), contexts(rows))
    return answer


# -- it is the network, and is certified as deployed ----------------------------------------------


def test_the_file_answers_as_the_network(files: Path) -> None:
    in_pytorch = ask(Small())
    torch.testing.assert_close(ask(OnnxDenoiser(files / "fp32.onnx")), in_pytorch)
    away = (ask(OnnxDenoiser(files / "int8.onnx")) - in_pytorch).abs().max()
    assert 1e-4 < away < 0.1


@pytest.mark.parametrize("kind", ["fp32", "int8"])
def test_one_promise_about_export_quantisation_and_skipped_evaluations(
    files: Path, kind: str, tmp_path: Path
) -> None:
    deployed, reference = planner(OnnxDenoiser(files / f"{kind}.onnx")), planner()
    rows = 1 if kind == "int8" else 32
    made = certify(deployed, reference=reference, batch_size=rows)
    assert "from the reference's full compute" in made.promise()
    assert made.unchecked() == Certificate.load(made.save(tmp_path / "c")).unchecked()
    assert not any("this network" in words for words in made.unchecked())
    full = made.realised[0]
    assert full["member"] == 0 and full["deviation_p95"] > 0  # the export itself is measured
    judged = evaluate(deployed, made, contexts(60, seed=9), reference=reference, progress=False)
    assert isinstance(judged, Evaluation) and judged.kept and judged.evaluations < judged.steps


def test_rows_that_share_a_scale_are_certified_one_by_one(files: Path) -> None:
    deployed = planner(OnnxDenoiser(files / "int8.onnx"))
    with pytest.raises(CalibrationError, match=r"influence each other.*batch_size=1"):
        certify(deployed, reference=planner(), batch_size=32)
    fast = cache(deployed, certify(deployed, reference=planner(), batch_size=1))
    assert fast(contexts(1))[1].fallback == (None,)
    with pytest.raises(CertificateError, match="call it row by row"):
        fast(contexts(2))


# -- attacks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["other", "int8"])
def test_another_file_is_refused_at_load(files: Path, certificate: Certificate, other: str) -> None:
    with pytest.raises(CertificateError, match=r"model\.weights"):
        cache(planner(OnnxDenoiser(files / f"{other}.onnx")), certificate)
    # The answers alone say so, too: here the file claims to be the certified one.
    liar = OnnxDenoiser(files / f"{other}.onnx")
    liar.session.muninn_identity = OnnxDenoiser(files / "fp32.onnx").session.muninn_identity
    with pytest.raises(CertificateError, match="stored questions"):
        cache(planner(liar), certificate)
    # And so does the hash, where a context could not be stored with the certificate.
    unasked = replace(certificate, questions=None, unasked="the context holds a lock")
    with pytest.raises(CertificateError, match=r"model\.weights"):
        cache(planner(OnnxDenoiser(files / f"{other}.onnx")), unasked)


@pytest.mark.parametrize("other", ["other", "int8"])
def test_another_session_is_refused_at_the_next_call(
    files: Path, certificate: Certificate, other: str
) -> None:
    own, its = OnnxDenoiser(files / "fp32.onnx"), OnnxDenoiser(files / f"{other}.onnx")
    fast, lenient = (cache(planner(own), certificate, on_mismatch=to) for to in ("error", "full"))
    before = fast(contexts(1), generator=torch.Generator().manual_seed(0))[0]
    session = own.session
    own.session = its.session
    with pytest.raises(CertificateError, match=r"model\.weights"):
        fast(contexts(1))
    its.session.muninn_identity = session.muninn_identity  # it claims to be the certified one
    with pytest.raises(CertificateError, match="stored questions"):
        fast(contexts(1))
    record = lenient(contexts(1))[1]
    assert "stored questions" in str(record.fallback[0]) and record.evaluations[0] == 12
    own.session = session
    assert torch.equal(before, fast(contexts(1), generator=torch.Generator().manual_seed(0))[0])
    inner = session._sess  # what ONNX Runtime runs, one layer further in
    session._sess = its.session._sess
    with pytest.raises(CertificateError, match="stored questions"):
        fast(contexts(1))
    session._sess = inner
    session.muninn_identity = "sha256:another"
    with pytest.raises(CertificateError, match=r"model\.weights"):
        fast(contexts(1))


def test_another_session_is_refused_by_its_name_where_there_are_no_questions(
    files: Path, certificate: Certificate
) -> None:
    own = OnnxDenoiser(files / "fp32.onnx")
    fast = cache(planner(own), replace(certificate, questions=None, unasked="none were stored"))
    assert fast(contexts(1))[1].fallback == (None,)
    own.session = OnnxDenoiser(files / "other.onnx").session
    with pytest.raises(CertificateError, match=r"model\.weights"):
        fast(contexts(1))


def test_a_file_that_is_exchanged_under_a_running_planner(
    files: Path, certificate: Certificate, tmp_path: Path
) -> None:
    path = Path(shutil.copy(files / "fp32.onnx", tmp_path / "policy.onnx"))
    fast = cache(planner(OnnxDenoiser(path)), certificate)
    before = fast(contexts(1), generator=torch.Generator().manual_seed(0))[0]
    path.write_bytes((files / "other.onnx").read_bytes())
    after, record = fast(contexts(1), generator=torch.Generator().manual_seed(0))
    assert torch.equal(before, after) and record.fallback == (None,)  # it runs what it read
    for again in (OnnxDenoiser(path), copy.deepcopy(fast.planner.denoiser)):
        with pytest.raises(CertificateError, match=r"model\.weights"):
            cache(planner(again), certificate)
    with pytest.raises(CertificateError, match=r"model\.weights"):
        pickle.loads(pickle.dumps(fast))(contexts(1))


def test_weights_beside_the_file_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = export(Small(), tmp_path / "small.onnx", external_data=True)
    assert (tmp_path / "small.onnx.data").exists()
    monkeypatch.chdir(tmp_path)  # where ONNX Runtime would look for them
    with pytest.raises(InputError, match="external_data=False"):
        OnnxDenoiser(path)


# -- names of what cannot be hashed ----------------------------------------------------------------


class Runtime:
    """A user's own callable around a foreign runtime, which nobody can look into."""

    __slots__ = ("_run", "name")

    def __init__(self, name: str) -> None:
        self.name = name

    def muninn_identity(self) -> str:
        return self.name

    def __call__(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        return x


class Inside(nn.Module):
    def __init__(self, engine: Any) -> None:
        super().__init__()
        self.engine = engine

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        found: Tensor = self.engine(x, timestep, context)
        return found


@pytest.mark.parametrize(
    "wrap",
    [
        lambda engine: engine,
        lambda engine: ClassifierFreeGuidance(engine, lambda context: None, 2.0),
        lambda engine: Inside(SimpleNamespace(run=engine)),
        lambda engine: lambda x, timestep, context: engine(x, timestep, context),
    ],
    ids=["itself", "guidance", "module", "closure"],
)
def test_a_name_counts_wherever_a_denoiser_holds_it(wrap: Any) -> None:
    found = [fingerprint(wrap(Runtime(name)))["weights"] for name in ("v1", "v1", "v2")]
    assert found[0] is not None and found[0] == found[1] != found[2]


class Anything:
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.fail(f"asked for {name}")


def test_what_answers_to_any_name_is_not_asked() -> None:
    engine = Runtime("v1")
    engine._run = Anything()
    assert fingerprint(engine)["weights"] == fingerprint(Runtime("v1"))["weights"]


# -- input ----------------------------------------------------------------------------------------


class Goal(nn.Module):
    def forward(self, x: Tensor, timestep: Tensor, told: dict[str, Tensor]) -> Tensor:
        return x + told["goal"][:, None] - 2 * told["start"][:, None] + timestep[:, None, None]


def test_a_mapping_is_given_by_name_in_any_order(tmp_path: Path) -> None:
    told = {"start": torch.randn(3, 2), "goal": torch.randn(3, 2)}
    x, timestep = torch.randn(3, 2, 4).mT, torch.arange(3)  # not contiguous
    torch.onnx.export(
        Goal().eval(), (x, timestep, told, {}), tmp_path / "goal.onnx", verbose=False,
        external_data=False, input_names=["x", "timestep", *told],
        dynamic_shapes=[{0: "batch"}, {0: "batch"}, {name: {0: "batch"} for name in told}],
    )  # fmt: skip
    denoiser = OnnxDenoiser(tmp_path / "goal.onnx")
    for given in (told, dict(reversed(told.items()))):
        torch.testing.assert_close(denoiser(x, timestep, given), Goal()(x, timestep, given))
    for less in (None, told["goal"], {"goal": told["goal"]}):
        with pytest.raises(DenoiserError, match="no tensor for"):
            denoiser(x, timestep, less)


def test_what_is_no_network_is_refused(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "damaged.onnx").write_bytes((files / "fp32.onnx").read_bytes()[:100])
    for name in ("missing.onnx", "damaged.onnx"):
        with pytest.raises(InputError, match=rf"{name}: cannot be run"):
            OnnxDenoiser(tmp_path / name)
    torch.onnx.export(nn.Tanh().eval(), (torch.zeros(2),), tmp_path / "tanh.onnx", verbose=False)
    with pytest.raises(InputError, match="export forward"):
        OnnxDenoiser(tmp_path / "tanh.onnx")
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"muninn-diffusion\[onnx\]"):
        OnnxDenoiser(files / "fp32.onnx")


def test_workers_make_the_same_certificate(
    files: Path, certificate: Certificate, tmp_path: Path
) -> None:
    deployed = planner(OnnxDenoiser(files / "fp32.onnx"))
    with Processes(1) as workers:
        made = certify(deployed, reference=planner(), workers=workers)
    assert made.save(tmp_path / "a").read_bytes() == certificate.save(tmp_path / "b").read_bytes()
