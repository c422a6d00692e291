"""Which bit width runs: the widget, the GPU, the kernels that there are; and that the report says so."""

import types

import pytest
import torch
from vc_pack.nodes import kernels
from vc_pack.nodes.apply import patched

from tests.nodes import fakes
from tests.nodes.toy import SIGMAS, WanModel, make_settings

GPU = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch):
    """gpu(capability, *widths): a GPU of that capability, on which kernels of those bit widths run."""

    def be(capability, *widths):
        def select(device, numerics, head_dim, seqlen_k=None):
            width = "4" if numerics.probability == "nvfp4" else "8"
            return types.SimpleNamespace(unit=f"attention_{width}") if width in widths else [f"no kernel in {width}"]

        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr("vc_pack.vc_attention.dispatch.select", select)

    return be


def choose(**widgets):
    return kernels.choose(make_settings(**{"backend": "auto", **widgets}), 128, GPU, 50000)


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0), (12, 1)])
def test_auto_is_4_bits_on_rtx_50_and_8_elsewhere(gpu, capability):
    gpu(capability, "4", "8")
    chosen, width = choose(), "4" if capability == (12, 0) else "8"
    assert chosen.name == f"attention_{width}" and chosen.width.startswith(f"auto chose {width} bits: ")
    assert (chosen.numerics.qk == "nvfp4") == (width == "4")


def test_auto_is_8_bits_without_a_gpu_and_on_amd(gpu, monkeypatch):
    gpu((12, 0), "4", "8")
    on_cpu = kernels.choose(make_settings(backend="reference"), 128, torch.device("cpu"))
    assert on_cpu.numerics.qk == "int8" and on_cpu.width.startswith("auto chose 8 bits")
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert choose().name == "attention_8"


def test_a_probability_format_of_8_bits_keeps_auto_at_8(gpu):
    gpu((12, 0), "4", "8")
    chosen = choose(probability="exact")
    assert chosen.numerics.probability == "exact" and "probability format" in chosen.width


@pytest.mark.parametrize("bits", ["auto", "4"])
def test_without_its_kernel_4_bits_become_8_and_say_why(gpu, bits):
    gpu((12, 0), "8")
    chosen = choose(bits=bits)
    assert (chosen.name, chosen.numerics.qk) == ("attention_8", "int8")
    assert chosen.width == "8 bits instead of 4: no kernel in 4"


def test_insisting_on_kernels_insists_on_the_bit_width(gpu):
    gpu((12, 0), "8")
    with pytest.raises(kernels.KernelUnavailable, match="no kernel in 4"):
        choose(bits="4", backend="cuda")


def test_without_any_kernel_every_width_says_why(gpu):
    gpu((12, 0))
    assert choose(bits="4").reason == "4 bits: no kernel in 4; 8 bits: no kernel in 8"
    assert choose(bits="8").reason == "no kernel in 8"


@pytest.mark.parametrize("bits", ["8", "4"])
def test_a_width_that_was_asked_for_and_runs_needs_no_words(gpu, bits):
    gpu((12, 0), "4", "8")
    assert choose(bits=bits).name == f"attention_{bits}" and choose(bits=bits).width == ""


def test_the_report_counts_what_ran_in_other_bits(spy, reports, monkeypatch):
    def select(device, numerics, head_dim, seqlen_k=None):
        return ["not for this GPU"] if numerics.qk == "nvfp4" else types.SimpleNamespace(unit="attention_8")

    monkeypatch.setattr("vc_pack.vc_attention.dispatch.select", select)
    model = WanModel(fakes.Attention())
    fakes.sample(patched(fakes.Patcher(model), make_settings(bits="4", backend="auto"), None), SIGMAS, model)
    assert {call["numerics"].qk for call in spy} == {"int8"}
    assert reports[0].widths == {"8 bits instead of 4: not for this GPU": 16}
    assert "8 bits instead of 4: not for this GPU (16 calls)" in reports[0].text().splitlines()
    assert reports[0].as_dict()["widths"] == dict(reports[0].widths)


def test_a_width_asked_for_takes_no_line(spy, reports):
    model = WanModel(fakes.Attention())
    fakes.sample(patched(fakes.Patcher(model), make_settings(bits="8"), None), SIGMAS, model)
    assert not reports[0].widths and "bits" not in reports[0].text()
