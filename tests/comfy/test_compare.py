"""Compare in a real server: pictures, text and refusals."""

import pytest
from PIL import Image

from tests.comfy.graphs import Graph
from tools.server import ComfyError

pytestmark = pytest.mark.comfy


def compare(graph, *colours, frames=(2, 2), brightest_at=0.0):
    """A comparison of two clips of one colour each; the node's id."""
    clips = [
        graph.add("EmptyImage", width=64, height=48, batch_size=count, color=colour)
        for colour, count in zip(colours, frames, strict=True)
    ]
    node = graph.add("VCAttentionCompare", stock=clips[0], patched=clips[1], brightest_at=brightest_at)
    graph.add("SaveImage", images=[node[0], 0], filename_prefix="side")
    graph.add("SaveImage", images=[node[0], 1], filename_prefix="heat")
    return node[0]


def test_numbers_pictures_and_heat_map(comfy_server):
    graph = Graph()
    node = compare(graph, 0x000000, 0x336600, brightest_at=0.5)
    outputs = comfy_server.run(graph.prompt)
    (text,) = outputs[node]["text"]
    # Colour channels 51, 102 and 0 of 255: the mean of their squares is 0.0667, and 10 log10(1 / 0.0667) = 11.76.
    assert "2 frames of 64 x 48\nPSNR 11.76 dB, worst 11.76 in frame 0" in text
    assert "largest difference of a pixel 0.400 of 1" in text and "brightest at 0.500" in text
    names = sorted(path for path in comfy_server.files(outputs) if "output" in path.parts)
    heat, side = Image.open(names[0]), Image.open(names[2])
    assert side.size == (128, 48) and heat.size == (64, 48)
    assert side.getpixel((0, 0)) == (0, 0, 0) and side.getpixel((127, 47)) == (0x33, 0x66, 0)
    assert heat.getpixel((5, 5)) == (0xFB, 0xA6, 0x36)  # 0.4 of 0.5 is the ramp's fifth colour


def test_identical_clips(comfy_server):
    graph = Graph()
    node = compare(graph, 0x123456, 0x123456)
    assert comfy_server.run(graph.prompt)[node]["text"] == [
        "2 frames of 64 x 48\nidentical: not one pixel differs (PSNR infinite)"
    ]


def test_different_lengths_are_refused(comfy_server):
    graph = Graph()
    compare(graph, 0, 1, frames=(3, 2))
    with pytest.raises(ComfyError, match="patched must be like stock, 3 frames of 64 x 48 pixels, got '2 frames"):
        comfy_server.run(graph.prompt)
