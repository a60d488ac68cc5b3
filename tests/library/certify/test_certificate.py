"""The certificate file: whole or refused, the same bytes every time, and only for its program."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import muninn.certify.certificate_file
from certify_cases import CHANGES, FAMILY, TOLERANCE, certificate, guided, planner
from muninn.certify.certificate import Bound, Certificate, library_versions
from muninn.certify.questions import Questions
from muninn.errors import CertificateError


@pytest.fixture(scope="module")
def issued() -> Certificate:
    return certificate()


@pytest.fixture(scope="module")
def content(issued: Certificate, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return issued.save(tmp_path_factory.mktemp("issued") / "c.safetensors").read_bytes()


def same(one: Certificate, other: Certificate) -> bool:
    def plain(value: Any) -> Any:
        if isinstance(value, Bound | Questions):
            return [plain(field) for field in vars(value).values()]
        if isinstance(value, dict):
            return {name: plain(item) for name, item in value.items()}
        return value.tolist() if isinstance(value, np.ndarray) else value

    return all(
        plain(getattr(one, field.name)) == plain(getattr(other, field.name))
        for field in dataclasses.fields(Certificate)
    )


# -- the file --------------------------------------------------------------------------------


def test_a_certificate_survives_its_file(tmp_path: Path, issued: Certificate) -> None:
    loaded = Certificate.load(issued.save(tmp_path / "new" / "folder" / "c.safetensors"))
    assert same(loaded, issued)
    assert loaded.program == issued.program == FAMILY.member(issued.member)
    estimates = np.linspace(0, 0.5, 7)
    np.testing.assert_array_equal(loaded.bound(estimates), issued.bound(estimates))
    np.testing.assert_array_equal(loaded.rank(estimates), issued.rank(estimates))
    assert loaded.promise() == issued.promise()
    assert loaded.estimates.dtype == np.float64
    assert [file.name for file in (tmp_path / "new" / "folder").iterdir()] == ["c.safetensors"]


def test_printing_a_certificate_prints_its_promise(issued: Certificate) -> None:
    assert str(issued) == issued.promise() and len(repr(issued)) < 1000


def test_full_compute_alone_survives_its_file_too(tmp_path: Path) -> None:
    strict = certificate(tolerance=1e-9)
    assert strict.member == 0 and len(strict.estimates) == 0
    loaded = Certificate.load(strict.save(tmp_path / "c.safetensors"))
    assert same(loaded, strict)
    assert loaded.bound(np.array([0.3])).tolist() == [0.0]
    assert loaded.rank(np.array([0.3])).tolist() == [0.0]


def test_the_same_calibration_writes_the_same_bytes(tmp_path: Path, content: bytes) -> None:
    again = certificate()
    for copy in range(8):
        assert again.save(tmp_path / str(copy)).read_bytes() == content
    reordered = replace(again, identity=dict(reversed(again.identity.items())))
    assert reordered.save(tmp_path / "b").read_bytes() == content


def test_the_file_is_for_safetensors_and_json_only(
    tmp_path: Path, issued: Certificate, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError("a certificate must not be pickled")

    for name in ("load", "loads", "dump", "dumps", "Unpickler", "Pickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    monkeypatch.setattr(torch, "load", forbidden)
    path = issued.save(tmp_path / "c")
    assert same(Certificate.load(path), issued)
    assert set(safetensors.numpy.load(content)) == {
        "estimates", "bound_estimate", "bound_deviation", "question_states", "question_answers",
        "question_timesteps", "question_spread", "question_context0",
    }  # fmt: skip
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])["__metadata__"]
    assert json.loads(header["muninn_certificate"])["certificate"]["schema"] == 5


def test_a_file_cut_anywhere_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c"
    for size in [*range(0, len(content), 23), len(content) - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(CertificateError, match=r"field '.*Calibrate again or restore a copy"):
            Certificate.load(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(data=st.data())
def test_a_flipped_byte_is_refused_or_changes_nothing(
    tmp_path: Path, issued: Certificate, content: bytes, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(content) - 1))
    damaged = bytearray(content)
    damaged[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "c"
    path.write_bytes(damaged)
    try:
        loaded = Certificate.load(path)
    except CertificateError as error:
        assert "field '" in str(error)
    else:
        assert same(loaded, issued)  # white space of the header, say


def test_numbers_read_as_another_type_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c"
    path.write_bytes(content.replace(b'"dtype":"F64"', b'"dtype":"I64"'))
    with pytest.raises(CertificateError, match="field 'checksum'"):
        Certificate.load(path)


def test_a_later_schema_is_refused_with_the_way_out(
    tmp_path: Path, issued: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(muninn.certify.certificate_file, "SCHEMA", 5)
        path = replace(issued, schema=6).save(tmp_path / "c")
    with pytest.raises(CertificateError, match=r"'schema' is 6.*reads 1 to 5; upgrade muninn-diff"):
        Certificate.load(path)


def test_a_missing_field_is_named(
    tmp_path: Path, issued: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, arrays = issued._fields()
    for name in ("member", "family", "bound_quantile", "unit"):
        partial = {key: value for key, value in whole.items() if key != name}
        fields = (partial, arrays)
        monkeypatch.setattr(Certificate, "_fields", lambda self, fields=fields: fields)
        path = issued.save(tmp_path / "c")
        with pytest.raises(CertificateError, match=f"field '{name}' is missing"):
            Certificate.load(path)


def test_other_files_are_told_from_certificates(tmp_path: Path) -> None:
    other = tmp_path / "weights.safetensors"
    safetensors.numpy.save_file({"weight": np.zeros(3)}, other)
    with pytest.raises(CertificateError, match="but not a Muninn certificate"):
        Certificate.load(other)
    text = tmp_path / "notes.txt"
    text.write_text("not a tensor in sight")
    with pytest.raises(CertificateError, match="truncated or not a certificate"):
        Certificate.load(text)
    with pytest.raises(CertificateError, match="no such file; calibrate first or check the path"):
        Certificate.load(tmp_path / "nowhere")
    with pytest.raises(CertificateError, match="no such file"):
        Certificate.load(tmp_path)


def test_a_disk_that_fills_leaves_the_old_certificate(
    tmp_path: Path, issued: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = issued.save(tmp_path / "c")
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(CertificateError, match=r"No space left.*free space or choose another"):
        replace(issued, member=0).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["c"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_really_full_device_is_reported(
    tmp_path: Path, issued: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_the_device(handle: int, mode: str) -> Any:
        os.close(handle)
        return open("/dev/full", mode)

    monkeypatch.setattr(os, "fdopen", on_the_device)
    with pytest.raises(CertificateError, match="No space left on device"):
        issued.save(tmp_path / "c")
    assert os.listdir(tmp_path) == []


def test_a_certificate_may_be_read_by_others(tmp_path: Path, issued: Certificate) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    assert issued.save(tmp_path / "c").stat().st_mode == plain.stat().st_mode


# -- what it says ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {},
            [
                "10.0% of new calls",
                "0.049 (root mean square a step)",
                "confidence 95%",
                "open loop",
            ],
        ),
        ({"confidence": None}, ["averaged over calibrations"]),
        ({"member": 0}, ["No speed-up", "all 20 evaluations", "larger tolerance", "more calls"]),
        ({"unit": "episode", "loop": "closed"}, ["episodes (worst call)", "closed loop"]),
        ({"tolerance": None, "tolerance_name": "clearance"}, ["clearance(context)"]),
    ],
)
def test_the_promise_is_one_plain_sentence(
    issued: Certificate, changes: dict[str, Any], words: list[str]
) -> None:
    sentence = replace(issued, **changes).promise()
    assert sentence.count(". ") == 0 and sentence.endswith(".")
    for word in words:
        assert word in sentence


def test_the_bound_is_isotonic_and_never_negative() -> None:
    bound = Bound(np.array([0.0, 1.0, 2.0]), np.array([0.1, 0.1, 0.4]), -0.2)
    values = bound(np.array([-1.0, 0.5, 1.5, 2.0, 9.0]))
    np.testing.assert_allclose(values, [0.0, 0.0, 0.05, 0.2, 0.2])


def test_the_rank_is_the_share_of_calibration_calls_below(issued: Certificate) -> None:
    ranked = replace(issued, estimates=np.array([0.1, 0.2, 0.2, 0.4]))
    got = ranked.rank(np.array([0.0, 0.1, 0.15, 0.2, 0.3, 1.0]))
    np.testing.assert_allclose(got, [0.0, 0.0, 0.25, 0.25, 0.75, 1.0])


# -- whom it is for --------------------------------------------------------------------------


@pytest.mark.parametrize("field", list(CHANGES))
def test_a_planner_that_differs_is_told_in_which_field(issued: Certificate, field: str) -> None:
    assert issued.mismatches(planner()) == []
    changed = CHANGES[field](planner())
    assert any(found.startswith(f"{field}") for found in issued.mismatches(changed))


def test_another_guidance_scale_is_another_program(issued: Certificate) -> None:
    own = replace(issued, identity=guided(planner(), 1.5).identity(), questions=None)
    assert own.mismatches(guided(planner(), 1.5)) == []
    found = own.mismatches(guided(planner(), 1.6))
    assert found[0] == "model.guidance.scale: certificate 1.5, planner 1.6"
    assert [line.split(":")[0] for line in found[1:]] == ["model.weights"]


@pytest.mark.parametrize("library", ["torch", "muninn"])
def test_another_major_version_of_a_library_is_told(issued: Certificate, library: str) -> None:
    here = library_versions()[library]
    major, _, rest = here.partition(".")
    older = replace(issued, versions={**issued.versions, library: f"{int(major) + 1}.{rest}"})
    assert older.mismatches(planner()) == [
        f"versions.{library}: certificate {int(major) + 1}.{rest}, here {here}"
    ]
    minor = replace(issued, versions={**issued.versions, library: f"{major}.999"})
    assert bool(minor.mismatches(planner())) == (major == "0")  # 0.x promises nothing across x
    patch = replace(issued, versions={**issued.versions, library: here + ".post1"})
    assert patch.mismatches(planner()) == []


def test_an_identity_survives_json(issued: Certificate) -> None:
    assert json.loads(json.dumps(issued.identity)) == issued.identity == planner().identity()
    assert issued.tolerance == TOLERANCE
