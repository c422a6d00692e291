"""What stands on the patch node before, during and after a run, and the toast where the artist should act."""

from __future__ import annotations

import pytest

from tests.browser.workflows import small_workflow
from tools.graph import PATCH

pytestmark = [pytest.mark.browser, pytest.mark.comfy, pytest.mark.slow]

# Every text that a patch node's panel shows from now on: read right after each event, because a frame of a busy browser
# may come later than the next event.
RECORD = """type => {
    window.panels = [];
    const look = () => {
        for (const node of app.graph.nodes) {
            const text = node.type === type && node.vcAttentionPanel?.text;
            if (text && !window.panels.includes(text)) window.panels.push(text);
        }
    };
    window.recording = new AbortController();
    for (const event of ['progress', 'report']) {
        app.api.addEventListener(`vc_attention.${event}`, look, { signal: window.recording.signal });
    }
}"""


def test_the_status_follows_the_run(canvas):
    canvas.load(small_workflow(seed=21, steps=24))
    canvas.page.evaluate(RECORD, PATCH)
    canvas.press_run()
    canvas.page.wait_for_function("() => window.panels.some(text => text.includes('sampling: step'))")
    canvas.picture_of("status")
    canvas.wait_until_done()
    canvas.wait_for_panels("attention calls taken over")
    seen = canvas.page.evaluate("() => { window.recording.abort(); return window.panels; }")
    # How many of the twelve steps of each expert are told depends on the machine: a few a second, the first always.
    steps = {text.split("step ")[1].split(" of")[0] for text in seen if "sampling: step" in text}
    assert "1" in steps and len(steps) >= 3, seen
    running = [text for text in seen if "sampling: step" in text and "100% of the self-attention calls" in text]
    assert running and "reference (torch operations)" in running[-1]
    assert any("largest error so far" in text for text in running)


def test_the_forecast_follows_the_graph(canvas):
    canvas.load(small_workflow(seed=22))
    (first, _) = canvas.wait_for_panels("tokens, about")
    assert first.startswith("256 tokens, about 1 MiB more GPU memory")
    canvas.page.evaluate("""() => {
        const latent = app.graph.nodes.find(node => node.type === 'EmptyHunyuanLatentVideo');
        const set = (name, value) => { latent.widgets.find(w => w.name === name).value = value; };
        set('width', 832); set('height', 480); set('length', 81);
    }""")
    canvas.page.mouse.click(5, 600)  # the interface looks for changes after a click
    canvas.wait_for_panels("32,760 tokens")
    canvas.picture_of("forecast")


def test_without_kernels_one_toast_tells_what_to_do(canvas):
    """Two experts and two runs, and the artist is told once: ComfyUI runs on the CPU here."""
    canvas.close_toasts()
    canvas.load(small_workflow(seed=23, backend="auto"))
    canvas.wait_for_panels("256 tokens: the model's own attention will run (kernels need an NVIDIA GPU")
    canvas.press_run()
    canvas.page.get_by_text("VC-Attention leaves the model's attention as it is").first.wait_for()
    canvas.screenshot("toast")
    canvas.wait_until_done()
    canvas.wait_for_panels("0 attention calls taken over")
    (toast,) = canvas.toasts()
    assert "kernels need an NVIDIA GPU, the tensors are on cpu" in toast and "vc_attention.doctor" in toast
    canvas.close_toasts()
    canvas.load(small_workflow(seed=24, backend="auto"))
    canvas.press_run()
    canvas.wait_until_done()
    canvas.wait_for_panels("0 attention calls taken over")
    canvas.page.wait_for_timeout(1000)
    assert canvas.toasts() == []
