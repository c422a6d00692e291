"""ComfyUI's real web interface in headless Chromium, in the two versions that the pack supports."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tools import environment
from tools.graph import PATCH
from tools.settings import RUNS

FRONTENDS = {"1.32.9": None, "1.58.1": environment.NEWER_FRONTEND}
SCREENSHOTS = Path(os.environ.get("VC_ATTENTION_SCREENSHOTS", environment.ROOT / "output" / "screenshots"))
CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Interface:
    """One open tab: the page, the server behind it, and what the tests do with both."""

    def __init__(self, page, server, version: str):
        self.page, self.server, self.version = page, server, version

    def open_empty(self) -> None:
        """A fresh tab with nothing on the canvas."""
        self.page.goto(self.server.url)
        self.page.wait_for_function("() => window.app?.graph && window.app.extensionManager", timeout=120_000)
        self.page.wait_for_function("type => LiteGraph.registered_node_types[type]", arg=PATCH, timeout=60_000)
        self.page.wait_for_timeout(1000)  # the interface loads its default workflow after it says it is ready
        self.page.evaluate("() => app.graph.clear()")

    def load(self, workflow: dict) -> None:
        self.page.mouse.move(5, 5)  # no tooltip in the way
        self.page.evaluate("workflow => app.loadGraphData(workflow)", workflow)
        self.page.wait_for_function("n => app.graph.nodes.length === n", arg=len(workflow["nodes"]))
        self.page.wait_for_timeout(500)

    def add_patch(self) -> None:
        self.page.evaluate("type => { app.graph.add(LiteGraph.createNode(type)); }", PATCH)

    def patches(self, expression: str) -> list:
        """A JavaScript expression of `node` for every patch node on the canvas."""
        code = f"type => app.graph.nodes.filter(node => node.type === type).map(node => {expression})"
        return self.page.evaluate(code, PATCH)

    def panels(self, kind: str = PATCH) -> list[str]:
        """What stands on the panel of every node of a kind."""
        code = """type => app.graph.nodes.filter(node => node.type === type).map(
            node => node.widgets?.find(w => w.name === 'vc_attention')?.value ?? '')"""
        return self.page.evaluate(code, kind)

    def wait_for_panels(self, *words: str, kind: str = PATCH) -> list[str]:
        """The panels of a kind of node, once each has all of the words."""
        for _ in range(300):
            panels = self.panels(kind)
            if panels and all(word in panel for panel in panels for word in words):
                return panels
            self.page.wait_for_timeout(200)
        self.screenshot("no-panel")
        raise AssertionError(f"no {words} on some node after 60 s: {panels}")

    def press_run(self) -> None:
        self.page.mouse.move(5, 5)
        self.finished = len(self.server.get("/history"))
        # Not a click of the mouse: notices, ComfyUI's own too, may lie over the button for as long as they like.
        self.page.get_by_role("button", name="Run").first.dispatch_event("click")

    def wait_until_done(self) -> None:
        """Wait for the prompt that press_run queued."""
        for _ in range(1500):
            if len(self.server.get("/history")) > self.finished and not self.server.get("/queue")["queue_running"]:
                return
            self.page.wait_for_timeout(200)
        raise AssertionError(f"not done after 300 s; the server says:\n{self.server.log_tail()}")

    def set_language(self, language: str) -> None:
        """Open the interface anew in a language."""
        self.server.post("/settings", {"Comfy.Locale": language})
        self.open_empty()

    def focus_first(self, kind: str = PATCH, scale: float = 1.5, y: int = 220) -> dict:
        """Bring the first node of a kind to the middle at `scale`, `y` below the top; its rectangle on the page."""
        code = """([type, scale, y]) => {
            const node = app.graph.nodes.find(node => node.type === type), view = app.canvas.ds;
            view.scale = scale;
            view.offset[0] = 560 / scale - node.pos[0];
            view.offset[1] = y / scale - node.pos[1];
            app.canvas.setDirty(true, true);
            const canvas = app.canvas.canvas.getBoundingClientRect();
            return {x: canvas.x + 560, y: canvas.y + y, width: node.size[0] * scale, height: node.size[1] * scale};
        }"""
        rectangle = self.page.evaluate(code, [kind, scale, y])
        self.page.wait_for_timeout(800)
        return rectangle

    def picture_of(self, name: str, kind: str = PATCH, scale: float = 1.25, margin: int = 40) -> Path:
        """A screenshot of the first node of a kind."""
        self.close_toasts()
        spot = self.focus_first(kind, scale, 130)
        self.page.mouse.move(5, 5)
        clip = {k: max(0, spot[k] - margin) for k in ("x", "y")}
        return self.screenshot(name, clip | {k: spot[k] + 2 * margin for k in ("width", "height")})

    def toasts(self, close: bool = False) -> list[str]:
        """What each toast of ours says; `close` presses their buttons."""
        code = """close => {
            const words = ['VC-Attention leaves', 'VC-Attention took over'], toasts = new Set();
            for (const element of document.querySelectorAll('span, div, p, h3')) {
                const text = element.children.length ? '' : element.textContent.trim();
                if (!words.some(start => text.startsWith(start))) continue;
                let toast = element;
                while (toast && !toast.querySelector('button')) toast = toast.parentElement;
                if (toast?.textContent.length < 1000) toasts.add(toast); // else a copy for screen readers
            }
            return [...toasts].map(toast => {
                if (close) toast.querySelector('button').click();
                return toast.textContent;
            });
        }"""
        return self.page.evaluate(code, close)

    def close_toasts(self) -> None:
        if self.toasts(close=True):
            self.page.wait_for_timeout(1000)

    def screenshot(self, name: str, clip: dict | None = None) -> Path:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"{name}-{self.version}.png"
        self.page.screenshot(path=path, clip=clip)
        return path


@pytest.fixture(scope="session")
def browser(chromium):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def artists_models(tmp_path_factory):
    """A models folder with the files that the shipped workflows ask for, empty: enough to open a workflow."""
    root = tmp_path_factory.mktemp("models")
    files = {file for run in RUNS.values() for file in run.files}
    for file in files:
        (root / file.directory).mkdir(exist_ok=True)
        (root / file.directory / file.name).touch()
    listing = {directory: directory for directory in sorted({file.directory for file in files})}
    config = root / "extra_model_paths.yaml"
    config.write_text(json.dumps({"artist": {"base_path": str(root), **listing}}))  # JSON is YAML
    return config


@pytest.fixture(scope="session", params=FRONTENDS)
def interface(request, browser, start_comfy, artists_models):
    arguments = ["--extra-model-paths-config", str(artists_models)]
    server = start_comfy(frontend=FRONTENDS[request.param], arguments=arguments)
    server.post("/settings", {"LiteGraph.Node.TooltipDelay": 100})
    shutil.copy(environment.ROOT / "docs" / "images" / "node.png", server.base_directory / "input" / "example.png")
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    page.set_default_timeout(90_000)  # generous: all of this may share two cores with other work
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(error.stack or str(error)))
    ui = Interface(page, server, request.param)
    ui.open_empty()
    yield ui
    page.close()
    assert not [error for error in errors if "vc-attention" in error or "vc_attention" in error], json.dumps(errors)


@pytest.fixture
def canvas(interface):
    """The interface with an empty canvas."""
    interface.page.keyboard.press("Escape")
    interface.page.evaluate("() => app.graph.clear()")
    return interface
