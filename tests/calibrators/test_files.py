"""Calibrators in files and in other runtimes: what comes back is what went in."""

from __future__ import annotations

import json
import pickle
import struct
import subprocess
import sys
import warnings
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import calibrant
from calibrant import Predictions, calibrators
from calibrant.calibrators import export_onnx, export_program, get
from calibrant.core.errors import InputError
from tests.helpers.calibrator_cases import NAMES, ROWS, fit, fitted, overconfident, sample

every = pytest.mark.parametrize("name", NAMES)
KEY = "calibrant.calibrator"
# Methods torch.export or ONNX cannot take, each with the reason.
NO_PROGRAM: dict[str, str] = {}
NO_ONNX: dict[str, str] = {}
needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="the extra [onnx] is not installed",
)


@pytest.fixture
def file(tmp_path):
    return fitted("temperature").save(tmp_path / "t.safetensors")


def header_of(path):
    with safe_open(path, framework="pt") as opened:
        tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        return json.loads(opened.metadata()[KEY]), tensors


def rewritten(path, tensors=None, **changed):
    header, held = header_of(path)
    changed = {"digest": ..., **changed}  # without one, as older files: what follows must tell
    header = {key: value for key, value in {**header, **changed}.items() if value is not ...}
    save_file({**held, **(tensors or {})}, path, metadata={KEY: json.dumps(header)})
    return path


@every
@pytest.mark.parametrize("from_logits", [True, False])
def test_what_is_loaded_gives_the_same_bits(name, from_logits, tmp_path):
    logits, labels = sample(name)
    scores = torch.from_numpy(logits)
    scores = scores if from_logits else scores.double().softmax(1)
    made = fit(name, scores, labels, from_logits=from_logits)
    path = made.save(tmp_path / "c.safetensors", class_names=["a", "b", "c", "ü"])
    back = calibrant.load(path)
    assert type(back) is type(made)
    assert torch.equal(back.calibrate(scores), made.calibrate(scores))
    for key, value in made.state_dict().items():
        assert back.state_dict()[key].dtype == value.dtype
        assert torch.equal(back.state_dict()[key], value)
    assert back.options() == made.options()
    assert back.summary_ == made.summary_
    assert back.class_names_ == ("a", "b", "c", "ü")
    # Once more: what was loaded can be saved.
    again = calibrant.load(back.save(tmp_path / "again.safetensors"))
    assert again.class_names_ == back.class_names_
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_header_names_format_method_and_options(file):
    header, _ = header_of(file)
    assert header["format"] == 1
    assert header["version"] == calibrant.__version__
    assert header["method"] == "temperature"
    assert header["options"]["from_logits"] is True
    assert header["class_names"] is None
    assert header["summary"]["rows"] == 240


def test_a_loss_of_infinity_comes_back(tmp_path):
    made = fit("temperature", *overconfident())
    made.summary_ = {**made.summary_, "nll_before": float("inf"), "extra": np.float64(2.5)}
    back = calibrant.load(made.save(tmp_path / "c.safetensors"))
    assert back.summary_["nll_before"] == float("inf")
    assert back.summary_["extra"] == 2.5


@pytest.mark.parametrize(
    ("name", "fails"),
    [("vector", True), ("matrix", True), ("dirichlet", True), ("intra_order", False)],
)
def test_a_fit_on_scores_of_any_size_is_whole_or_an_error(name, fails, tmp_path):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(300, 4))
    scores[5, 2], scores[7, 1] = np.finfo(np.float64).min, np.finfo(np.float32).min
    made = get(name)
    labels = rng.integers(0, 4, 300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if fails:
            with pytest.raises(InputError, match="differ widely in size"):
                made.fit(scores, labels)
            assert not made.is_fitted
            return
        made.fit(scores, labels)
    back = calibrant.load(made.save(tmp_path / "c.safetensors"))
    assert np.isfinite(back.predict_proba(scores)).all()


def test_saving_refuses_what_could_not_be_loaded(tmp_path):
    made = fitted("temperature")
    with pytest.raises(InputError, match="not fitted"):
        get("temperature").save(tmp_path / "c.safetensors")
    with pytest.raises(InputError, match=r"saved as \.safetensors"):
        made.save(tmp_path / "c.pt")
    with pytest.raises(InputError, match="does not exist"):
        made.save(tmp_path / "no" / "c.safetensors")
    with pytest.raises(InputError, match="3 names"):
        made.save(tmp_path / "c.safetensors", class_names=["a", "b", "c"])

    class Mine(type(made)):
        pass

    mine = Mine().fit(*overconfident())
    with pytest.raises(InputError, match="not the calibrator registered"):
        mine.save(tmp_path / "c.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_what_was_there(file, monkeypatch):
    before = file.read_bytes()

    def fail(_tensors, path, **_):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        fitted("temperature").save(file)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 3, "version": "9.1"}, "format 3 by calibrant 9.1.*upgrade"),
        ({"format": "1"}, "format should be"),
        ({"format": ...}, "format should be"),
        ({"method": "quantum"}, "'quantum', which calibrant .* does not have"),
        ({"method": "os.system"}, "does not have"),
        ({"method": 3}, "its method cannot be"),
        ({"method": "identity", "options": {}}, "unknown temperature_"),
        ({"options": {"shell": "rm"}}, "no option 'shell'"),
        ({"options": {"self": 1}}, "no option 'self'"),
        ({"options": {"from_logits": "no"}}, "option from_logits of temperature cannot be 'no'"),
        ({"options": []}, "its options cannot be"),
        ({"summary": None}, "its summary cannot be"),
        ({"class_names": ["a"]}, "class_names has 1 names"),
        ({"class_names": "abcd"}, "its class_names cannot be"),
    ],
)
def test_a_header_that_cannot_be_is_refused(file, change, says):
    with pytest.raises(InputError, match=says) as error:
        calibrant.load(rewritten(file, **change))
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"more": torch.ones(2)}, "unknown more"),
        ({"temperature_": torch.tensor(float("nan"), dtype=torch.float64)}, "holds NaN"),
        ({"temperature_": torch.tensor(3)}, "should be torch.float64, found torch.int64"),
        ({"temperature_": torch.ones(7, dtype=torch.float64)}, "damaged"),
        ({"temperature_": torch.zeros((), dtype=torch.float64)}, "do not make a temperature"),
        ({"num_classes_": torch.tensor(0)}, "num_classes_ cannot be 0"),
        ({"num_classes_": torch.tensor(1 << 60)}, "num_classes_ cannot be"),
        ({"num_classes_": torch.tensor([4])}, r"num_classes_ cannot be \[4\]"),
    ],
)
def test_tensors_that_cannot_be_are_refused(file, tensors, says):
    with pytest.raises(InputError, match=says):
        calibrant.load(rewritten(file, tensors))


def test_a_missing_tensor_is_named(file):
    header, _ = header_of(file)
    header.pop("digest")
    save_file({"num_classes_": torch.tensor(4)}, file, metadata={KEY: json.dumps(header)})
    with pytest.raises(InputError, match="missing temperature_"):
        calibrant.load(file)


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "f.safetensors"
    with pytest.raises(InputError, match="no such file"):
        calibrant.load(path)
    calibrant.Predictions.from_logits(*overconfident()).write(path)
    with pytest.raises(InputError, match=r"not a calibrator.*'labels', 'logits'"):
        calibrant.load(path)
    save_file({}, path, metadata={KEY: "[1, 2"})
    with pytest.raises(InputError, match="damaged"):
        calibrant.load(path)
    save_file({}, path, metadata={KEY: "[" * 100_000})
    with pytest.raises(InputError, match="damaged"):
        calibrant.load(path)
    save_file({}, path, metadata={KEY: "[1, 2]"})
    # The first safetensors that is supported refuses such a file itself.
    with pytest.raises(InputError, match=r"JSON object|damaged"):
        calibrant.load(path)
    for content in (b"", b"hello", struct.pack("<Q", 1 << 62) + b"{}", b"\x00" * 64):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"f\.safetensors"):
            calibrant.load(path)
    other = tmp_path / "f.pt"
    torch.save(fitted("temperature").state_dict(), other)
    with pytest.raises(InputError, match="unsupported ending"):
        calibrant.load(other)


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code was run')",))


def test_a_pickle_is_never_opened(tmp_path):
    path = tmp_path / "f.safetensors"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(InputError):
        calibrant.load(path)
    torch.save({"temperature_": Bomb()}, path)
    with pytest.raises(InputError):
        calibrant.load(path)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damage_is_refused_or_harmless(data, file):
    whole = fitted("temperature").save(file).read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    cut = data.draw(st.booleans())
    changed = bytes([data.draw(st.integers(0, 255))])
    file.write_bytes(whole[:place] if cut else whole[:place] + changed + whole[place + 1 :])
    try:
        loaded = calibrant.load(file)
    except InputError:
        return
    logits = torch.randn(3, int(loaded.num_classes_))
    assert torch.isfinite(loaded(logits)).all()


def test_importing_the_calibrators_loads_nothing_heavy():
    code = "import sys, calibrant.calibrators, calibrant; calibrant.load; print(*sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in process.stdout.split()}
    assert not loaded & {"sklearn", "scipy", "safetensors", "pandas", "onnx", "onnxruntime"}


def example(name):
    return None if name in ROWS else torch.from_numpy(sample(name, rows=2)[0])


@pytest.mark.sampled(count=4)
@every
def test_a_program_of_torch_export_agrees(name):
    made = fitted(name)
    if name in NO_PROGRAM:
        pytest.skip(NO_PROGRAM[name])
    program = export_program(made, example(name))
    for rows in (1, 2, 57):
        logits = torch.from_numpy(sample(name, rows=rows, seed=4)[0])
        torch.testing.assert_close(program.module()(logits), made(logits), atol=1e-6, rtol=1e-6)


@pytest.mark.sampled(count=4)
@every
def test_a_compiled_one_agrees(name):
    made = fitted(name)
    logits = torch.from_numpy(sample(name, rows=33, seed=4)[0])
    torch._dynamo.reset()  # it counts what was compiled before
    output = torch.compile(made, backend="eager", fullgraph=True)(logits)
    torch.testing.assert_close(output, made(logits), atol=1e-6, rtol=1e-6)


def onnx_run(path, logits):
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: logits})[0]


@pytest.mark.sampled(count=3)
@needs_onnx
@every
def test_onnx_runtime_agrees_to_five_digits(name, tmp_path):
    if name in NO_ONNX:
        pytest.skip(NO_ONNX[name])
    made = fitted(name)
    path = tmp_path / "c.onnx"
    quietly(export_onnx, made, path, example=example(name), probabilities=True)
    for rows in (1, 2, 300):
        logits, _ = sample(name, rows=rows, seed=4)
        np.testing.assert_allclose(onnx_run(path, logits), made.predict_proba(logits), atol=1e-5)


@needs_onnx
def test_onnx_of_a_model_with_its_calibrator(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 4))
    joined = calibrant.attach(model, fit("temperature", *overconfident()))
    rows = torch.randn(20, 6)
    path = quietly(export_onnx, joined, tmp_path / "m.onnx", example=rows[:3])
    assert joined.training
    assert model[1].training
    joined.eval()
    np.testing.assert_allclose(onnx_run(path, rows.numpy()), joined(rows).detach(), atol=1e-5)
    with pytest.raises(InputError, match="example"):
        export_onnx(joined, path)
    with pytest.raises(InputError, match="two rows"):
        export_onnx(joined, path, example=rows[:1])


@needs_onnx
def test_onnx_of_binary_scores_and_of_probabilities(tmp_path):
    logits, labels = overconfident(classes=2)
    score = logits[:, 1] - logits[:, 0]
    made = fit("temperature", score, labels)
    example = torch.from_numpy(score[:3])
    path = quietly(export_onnx, made, tmp_path / "b.onnx", example=example, probabilities=True)
    np.testing.assert_allclose(onnx_run(path, score), made.predict_proba(score), atol=1e-5)
    probs = torch.from_numpy(logits).softmax(1)
    made = fit("temperature", probs, labels, from_logits=False)
    path = quietly(export_onnx, made, tmp_path / "p.onnx")
    np.testing.assert_allclose(onnx_run(path, probs.numpy()), made(probs), atol=1e-5)


@needs_onnx
def test_onnx_takes_both_columns_of_a_binary_classifier_and_says_nothing(tmp_path, capfd):
    """The exporter's remarks on its own code, and on torchvision, filled the terminal."""
    rng = np.random.default_rng(0)
    score = rng.random(300)
    rows = Predictions.from_probs(score, (rng.random(300) < score).astype(int))
    made = calibrant.calibrate(rows)
    both = np.stack((1 - score, score), 1)[:5].astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        path = export_onnx(
            made, tmp_path / "b.onnx", example=torch.from_numpy(both), probabilities=True
        )
    assert capfd.readouterr().err == ""
    np.testing.assert_allclose(onnx_run(path, both), made.predict_proba(both), atol=1e-5)


def test_an_unfitted_one_is_not_exported(tmp_path):
    with pytest.raises(InputError, match="not fitted"):
        export_program(get("temperature"))


def test_onnx_names_what_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(calibrators.export, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"onnxruntime: pip install 'calibrant\[onnx\]'"):
        export_onnx(fitted("temperature"), tmp_path / "c.onnx")


def quietly(call, *args, **kwargs):
    """Exporters of torch warn of their own deprecations."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args, **kwargs)
