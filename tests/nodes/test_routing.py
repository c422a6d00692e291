"""Every reason to leave a call alone, decided from shapes and options before anything runs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vc_pack.nodes import models
from vc_pack.nodes.routing import describe, from_heads, to_heads, why_not_dense

from tests.nodes import fakes


def tensors(q=(1, 32, 256), k=None, v=None, dtype=torch.float32):
    return [torch.randn(shape).to(dtype) for shape in (q, k or q, v or k or q)]


def reason(*args, text_length=None, **kwargs):
    return why_not_dense(describe(*args, **kwargs), text_length)


def test_a_model_may_attend_from_some_of_its_tokens_to_all():
    """LongCat's noisy frames to the frames that it continues; never more queries than keys, which would be text."""
    few = describe(*tensors((1, 2, 32, 128), (1, 2, 48, 128)), 2, skip_reshape=True)
    many = describe(*tensors((1, 2, 48, 128), (1, 2, 32, 128)), 2, skip_reshape=True)
    assert [why_not_dense(call, fewer_queries=True) for call in (few, many)] == [None, "cross-attention"]
    wrong = describe(*tensors((1, 2, 32, 128), (2, 2, 48, 128)), 2, skip_reshape=True)
    assert why_not_dense(wrong, fewer_queries=True) == "q, k and v of different shapes"


def test_text_is_called_what_it_is_in_that_model():
    call = describe(*tensors((1, 2, 32, 128)), 2, torch.ones(1, 1, 32, 32), skip_reshape=True)
    assert why_not_dense(call, 32, "text refiner") == "text refiner"
    assert why_not_dense(call, 31, "text refiner") == "masked"


def test_sensitive_blocks_count_from_the_end():
    model = type("MiniMaxH3Model", (), {"blocks": [None] * 50})()
    assert models.row_for(model).sensitive_blocks(model) == {49}
    assert models.WAN.sensitive_blocks(WanModel()) == frozenset()


def test_plain_self_attention_is_ours_in_both_layouts_and_however_heads_come():
    assert reason(*tensors(), heads=2) is None
    assert reason(*tensors(), 2) is None
    assert reason(*tensors((1, 2, 32, 128)), 2, None, skip_reshape=True) is None
    assert reason(*tensors((1, 2, 32, 64)), 2, skip_reshape=True, skip_output_reshape=True) is None


CASES = {
    "masked": dict(args=tensors(), mask=torch.ones(1, 32)),
    "masked ": dict(args=[*tensors(), 2, torch.ones(1, 32)]),  # HunyuanVideo passes heads and mask by position
    "cross-attention": dict(args=tensors(k=(1, 64, 256))),
    "cross-attention ": dict(args=tensors(), text_length=32),
    "cross-attention  ": dict(args=tensors((1, 2, 32, 128), (1, 2, 48, 128)), skip_reshape=True),
    "grouped-query heads": dict(args=tensors((1, 4, 32, 128), (1, 2, 32, 128)), skip_reshape=True, enable_gqa=True),
    "grouped-query heads ": dict(args=tensors((1, 32, 512), (1, 32, 256)), heads=4, enable_gqa=True),
    "q, k and v of different shapes": dict(args=tensors((2, 2, 32, 128), (1, 2, 32, 128)), skip_reshape=True),
    "head size 96 ": dict(args=tensors((1, 32, 192))),
    "head size 256 ": dict(args=tensors((1, 1, 32, 256)), heads=1, skip_reshape=True),
    "full precision asked for": dict(args=tensors(), low_precision_attention=False),
    "full precision asked for ": dict(args=tensors(), attn_precision=torch.float32),
    "custom softmax scale": dict(args=tensors(), scale=0.05),
    "unknown option is_causal": dict(args=tensors(), is_causal=True),
    "q, k and v of different types or devices": dict(args=[*tensors()[:2], tensors(dtype=torch.bfloat16)[2]]),
    "data type torch.float64": dict(args=tensors(dtype=torch.float64)),
    "no tokens": dict(args=tensors((1, 0, 256))),
    "no tokens ": dict(args=tensors((0, 32, 256))),
    "no tokens  ": dict(args=tensors((1, 0, 32, 128)), skip_reshape=True),
    "tensors of unusual rank": dict(args=tensors((32, 256))),
    "tensors of unusual rank ": dict(args=tensors((1, 1, 32, 256))),
    "tensors of unusual rank  ": dict(args=tensors((1, 32, 256)), skip_reshape=True),
    "tensors of unusual rank   ": dict(args=tensors(k=(32, 256))),
    "gradients needed": dict(args=[tensors()[0].requires_grad_(), *tensors()[1:]]),
}


@pytest.mark.parametrize("expected", CASES)
def test_reasons(expected):
    case = dict(CASES[expected])
    args, text_length = case.pop("args"), case.pop("text_length", None)
    if len(args) == 3:
        case.setdefault("heads", 2)
    assert reason(*args, text_length=text_length, **case).startswith(expected.strip())


def test_values_wider_than_keys_are_left_alone():
    assert reason(*tensors((1, 2, 32, 64), v=(1, 2, 32, 128)), 2, skip_reshape=True) is not None
    assert reason(*tensors((1, 32, 128), v=(1, 32, 256)), 2) is not None


@pytest.mark.parametrize("harmless", [
    {"scale": 128**-0.5}, {"scale": None}, {"enable_gqa": False}, {"low_precision_attention": True},
    {"_inside_attn_wrapper": True}, {"transformer_options": {}}, {"attn_precision": None}, {"mask": None},
])  # fmt: skip
def test_options_that_change_nothing_do_not_turn_a_call_away(harmless):
    assert reason(*tensors(), heads=2, **harmless) is None


def test_gradients_matter_only_where_they_are_recorded():
    q, k, v = tensors()
    q.requires_grad_()
    with torch.no_grad():
        assert reason(q, k, v, 2) is None


@given(
    batch=st.integers(1, 3), heads=st.integers(1, 4), tokens=st.integers(1, 40), dim=st.sampled_from([64, 128]),
    skip_in=st.booleans(), skip_out=st.booleans(),
)  # fmt: skip
def test_layouts_round_trip(batch, heads, tokens, dim, skip_in, skip_out):
    """Through our views and back, attention gives exactly what ComfyUI's own function gives."""
    shape = (batch, heads, tokens, dim) if skip_in else (batch, tokens, heads * dim)
    q, k, v = tensors(shape)
    call = describe(q, k, v, heads, skip_reshape=skip_in, skip_output_reshape=skip_out)
    assert call.q == (batch, heads, tokens, dim)
    ours = torch.nn.functional.scaled_dot_product_attention(*(to_heads(t, call) for t in (q, k, v)))
    expected = fakes.stock(q, k, v, heads, skip_reshape=skip_in, skip_output_reshape=skip_out)
    assert torch.equal(from_heads(ours, call), expected)


@given(
    q=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 9), st.sampled_from([32, 64, 128])),
    k=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 9), st.sampled_from([32, 64, 128])),
    same=st.booleans(), masked=st.booleans(), scale=st.sampled_from([None, 0.3]), gqa=st.booleans(),
)  # fmt: skip
def test_what_is_ours_is_plain(q, k, same, masked, scale, gqa):
    """A call is ours only if dropping every option changes nothing."""
    k = q if same else k
    args = tensors(q, k)
    mask = torch.zeros(q[2], k[2]) if masked else None
    if reason(*args, q[1], mask, skip_reshape=True, scale=scale, enable_gqa=gqa) is None:
        assert q == k and q[3] in (64, 128) and not masked and scale is None


class WanModel:
    pass


class WanVariant(WanModel):
    pass


class HunyuanVideo:
    double_blocks = [None] * 20


def test_model_rows_are_found_through_base_classes():
    assert models.row_for(WanVariant()) is models.WAN
    assert models.row_for(HunyuanVideo()) is models.HUNYUAN
    unknown = models.row_for(object())
    assert unknown.block_number is models.GENERIC.block_number and unknown.name == "object (no row in the model table)"


def test_a_compiled_model_is_still_known():
    module = type("WanModel", (torch.nn.Module,), {"forward": lambda self, x: x})()
    assert models.row_for(torch.compile(module, backend="eager")) is models.WAN


@pytest.mark.parametrize(
    ("row", "transformer", "block_type", "block_index", "ordinal", "number"),
    [
        (models.WAN, WanModel(), None, None, 7, 7),  # 0.3.75 does not number Wan's blocks
        (models.WAN, WanModel(), "double", 7, 0, 7),
        (models.HUNYUAN, HunyuanVideo(), "double", 3, 0, 3),
        (models.HUNYUAN, HunyuanVideo(), "single", 3, 0, 23),
        (models.HUNYUAN, HunyuanVideo(), None, None, 1, None),  # text refiner
        (models.GENERIC, object(), None, None, 2, 2),
    ],
)
def test_block_numbers(row, transformer, block_type, block_index, ordinal, number):
    assert row.block_number(block_type, block_index, ordinal, transformer) == number
