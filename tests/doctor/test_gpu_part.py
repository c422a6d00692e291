"""What the doctor says of GPUs that work, or whose kernels do not, with everything below it faked; and its timing."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from vc_attention import dispatch, driver, launch, selftest
from vc_attention.config import PROFILES
from vc_attention.doctor import cli, gpu, machine, page, speed
from vc_attention.doctor.finding import Finding, guarded

HOPPER = driver.Gpu(0, "Fake H200", (9, 0))
RTX_50 = driver.Gpu(1, "Fake 5090", (12, 0))
FAST = speed.Speed(ours_ms=2.0, stock_ms=4.0, ours_error=0.01, stock_error=0.002)


@pytest.fixture
def working(monkeypatch):
    """A Hopper card on which everything works; tests break one thing."""

    class Driver:
        def gpus(self):
            return [HOPPER]

    monkeypatch.setattr(driver, "load", Driver)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Fake H200")
    monkeypatch.setattr(gpu.launch_test, "run", lambda index: "sm_90a kernels run")
    monkeypatch.setattr(launch, "missing", lambda unit, index: None)
    monkeypatch.setattr(dispatch, "self_test", lambda spec, index: None)
    monkeypatch.setattr(speed, "measure", lambda *arguments: FAST)


def by_name(findings):
    return {finding.name: finding for finding in findings}


def test_a_gpu_that_works(working, monkeypatch, capsys):
    findings = list(gpu.findings())
    assert not [finding for finding in findings if finding.state == "bad"] and page.accelerates(findings)
    found = by_name(findings)
    assert "attention_sm90_expcast, for attention over" in found["balanced (8 bits) on GPU 0"].text
    timed = found["balanced at 16384 tokens on GPU 0"].text
    assert timed.startswith("2.0 ms, PyTorch's own 4.0 ms: 2.00 times as fast; error 1.00 %")
    tested = sum(finding.section == "Self-test" for finding in findings)
    assert tested == 1 + sum(HOPPER.capability in spec.capabilities for spec in dispatch.KERNELS)
    assert "kernel 1 of" in capsys.readouterr().err
    monkeypatch.setattr(machine, "findings", lambda: [])
    monkeypatch.setattr(cli, "gpu_findings", lambda: findings)
    assert cli.main([]) == 0 and cli.main(["--json"]) == 0
    said = capsys.readouterr().out
    assert "Attention can be accelerated: balanced (8 bits) on GPU 0" in said
    told = json.loads(said[said.index("{") :])
    assert told["accelerates"] and {"ours_ms": 2.0}.items() <= told["findings"][-1]["data"].items()


def test_the_other_process_prints_what_was_found(working, capsys):
    assert gpu.run() == 0
    lines = [Finding(**json.loads(line)) for line in capsys.readouterr().out.splitlines()]
    assert lines == list(gpu.findings())


def test_a_kernel_that_computes_wrongly(working, monkeypatch):
    monkeypatch.setattr(dispatch, "self_test", lambda spec, index: "it is off by 0.3")
    findings = list(gpu.findings())
    assert not page.accelerates(findings)
    assert "off by 0.3" in by_name(findings)["attention_sm90_u8 tile d128 on GPU 0"].text
    assert by_name(findings)["quality (8 bits) on GPU 0"].state == "bad"


def test_a_kernel_that_was_not_built(working, monkeypatch):
    monkeypatch.setattr(launch, "missing", lambda unit, index: "not built" if "u8" in unit else None)
    found = by_name(gpu.findings())
    assert found["attention_sm90_u8 tile d128 on GPU 0"].state == "bad"
    assert "install.py" in found["attention_sm90_u8 tile d128 on GPU 0"].remedy
    assert found["balanced (8 bits) on GPU 0"].state == "ok" and found["quality (8 bits) on GPU 0"].state == "note"


def test_a_gpu_that_does_not_launch_is_asked_nothing_more(working, monkeypatch):
    def fails(index):
        raise launch.LaunchError("CUDA_ERROR_NO_BINARY_FOR_GPU")

    monkeypatch.setattr(gpu.launch_test, "run", fails)
    (only,) = list(gpu.self_tests(HOPPER))
    assert only.state == "bad" and "NO_BINARY" in only.text and "install.py" in only.remedy


@pytest.mark.parametrize("mismatch", [None, "its matrix instruction gives 7 of 9 values wrong"])
def test_the_4_bit_instruction_has_a_line_of_its_own(working, monkeypatch, mismatch):
    four = dataclasses.replace(dispatch.KERNELS[0], probability="nvfp4", capabilities=((12, 0),))
    monkeypatch.setattr(dispatch, "KERNELS", (four,))
    monkeypatch.setattr(selftest, "mma_mismatch", lambda device: mismatch)
    line = by_name(gpu.self_tests(RTX_50))["4-bit matrix instruction on GPU 1"]
    assert (line.state, line.text) == (("bad", mismatch) if mismatch else ("ok", "as it should compute"))


def test_too_little_memory_is_no_failure(working, monkeypatch):
    def full(*arguments):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(speed, "measure", full)
    findings = list(gpu.speeds(HOPPER, ["balanced"]))
    assert len(findings) == len(speed.TOKENS)
    assert all(finding.state == "note" and "close other programs" in finding.text for finding in findings)


@pytest.mark.parametrize("error", [0.5, float("nan")])
def test_a_fast_call_that_is_wrong_is_bad(working, monkeypatch, error):
    monkeypatch.setattr(speed, "measure", lambda *arguments: dataclasses.replace(FAST, ours_error=error))
    (first, *_) = gpu.speeds(HOPPER, ["balanced"])
    assert first.state == "bad" and first.remedy


def test_a_slower_call_is_a_note(working, monkeypatch):
    monkeypatch.setattr(speed, "measure", lambda *arguments: dataclasses.replace(FAST, stock_ms=1.5))
    (first, *_) = gpu.speeds(HOPPER, ["balanced"])
    assert first.state == "note" and "0.75 times as fast" in first.text


def test_what_a_check_raises_is_a_finding_and_the_others_stay():
    def broken():
        yield Finding("Machine", "first", "ok", "fine")
        raise KeyError("surprise")

    first, second = guarded("Machine", broken)
    assert first.name == "first" and second.state == "bad" and "KeyError: 'surprise'" in second.text and second.remedy


def test_a_bad_finding_without_a_remedy_cannot_be_made():
    with pytest.raises(ValueError, match="remedy"):
        Finding("Machine", "GPU", "bad", "gone")


def test_a_process_that_hangs_is_ended_and_told(monkeypatch):
    monkeypatch.setattr(cli, "SECONDS", 0.01)
    (told,) = [finding for finding in cli.gpu_findings() if finding.name == "its process"]
    assert told.state == "bad" and "no answer in 0.01 s" in told.text


@pytest.mark.parametrize(("name", "most"), [("balanced", 0.03), ("4bit", 0.15)])
def test_speed_compares_both_with_exact_attention(name, most):
    device = torch.device("cpu")
    taken = speed.measure(device, PROFILES[name], 300, backend="reference", heads=2)
    assert 0 < taken.stock_error < 0.01 and taken.stock_error < taken.ours_error < most
    assert taken.ours_ms > 0 and taken.stock_ms > 0
    q, k, v = speed.inputs(device, 2, 300)
    assert speed.error(torch.zeros_like(q), q, k, v) == pytest.approx(1.0)


@pytest.mark.gpu
def test_on_a_real_gpu_with_kernels(capfd):
    device = torch.device("cuda", torch.cuda.current_device())
    if isinstance(dispatch.select(device, PROFILES["balanced"], 128), list):
        pytest.skip("no attention kernels for this GPU")
    assert cli.main([]) == 0
    said = capfd.readouterr().out
    assert "Attention can be accelerated: balanced (8 bits)" in said and "times as fast" in said
