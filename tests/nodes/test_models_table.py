"""What the patch does to models that ComfyUI 0.3.75 has not, on stand-ins; docs/models.md shows the result."""

import gc
import sys

import pytest
import torch
from vc_pack.nodes import wrapper
from vc_pack.nodes.apply import patched

from tests import models_table
from tests.nodes import fakes, wrapper_model
from tests.nodes.h3_model import TEXT, MiniMaxH3Model
from tests.nodes.toy import make_settings


@pytest.fixture
def plain(monkeypatch, spy, reports):
    """attend() is plain attention and what a run reports is kept."""
    monkeypatch.setattr(wrapper, "show", lambda report, node_id: reports.append(report))
    monkeypatch.setattr(wrapper_model, "attention", wrapper_model.attention)
    return reports


def h3(monkeypatch) -> None:
    attention = fakes.Attention("0.38")
    attention.__wrapped__ = attention.backend
    monkeypatch.setattr(sys.modules["comfy.ldm.modules.attention"], "optimized_attention", attention, raising=False)
    model = MiniMaxH3Model(attention)
    schedule = [(1.0, {"context": torch.zeros(1, TEXT, 64)})]
    fakes.sample(patched(fakes.Patcher(model, "0.38"), make_settings(), None), [1.0, 0.0], model, schedule)


def longcat(cond: int) -> None:
    patcher = wrapper_model.Patcher(wrapper_model.WanModel(blocks=48))
    wrapper_model.sample(wrapper.patched(patcher, make_settings(), None), steps=1, cond=cond)
    gc.collect()


def test_the_table_says_what_happens(plain, monkeypatch):
    names = (
        "MiniMax H3",
        "LongCat-Video, text to video",
        "LongCat-Video, image to video",
        "LongCat-Video, continuation",
    )
    h3(monkeypatch)
    for cond in range(3):
        longcat(cond)
    rows = [(n, sum(r.kernels.values()), dict(r.left_alone)) for n, r in zip(names, plain, strict=True)]
    assert models_table.written("tests/nodes/test_models_table.py") == models_table.render(rows)
