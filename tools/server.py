"""A real ComfyUI server as a context manager, driven through its HTTP API and web socket, for the demo and the tests.

Runs on the environment's interpreter. The server gets a base directory of its own (custom_nodes, models, input, output,
user, temp), so that nothing of one run reaches the next and several servers can run side by side.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import NamedTuple

import aiohttp

from tools import environment


class ComfyError(RuntimeError):
    """The server did not start, refused a prompt, or a node failed; the message carries what it said."""


class Event(NamedTuple):
    """A message of the web socket: its type, its data, and time.monotonic() when it arrived."""

    type: str
    data: dict
    at: float


class ComfyServer:
    """`with ComfyServer(base) as server: outputs = server.run(prompt)`.

    base_directory: folder that the server may fill; packs: node packs to link in, the repository itself by default;
    frontend: root of another web frontend than the installed one; arguments: more for ComfyUI's command line.
    `events` holds every text message of the web socket, in order.
    """

    def __init__(self, base_directory, *, packs=None, frontend=None, arguments=(), timeout_s=300):
        self.base_directory = Path(base_directory)
        self.packs = {environment.PACK_FOLDER: environment.ROOT} if packs is None else packs
        self.frontend = frontend
        self.arguments = list(arguments)
        self.timeout_s = timeout_s
        self.client_id = uuid.uuid4().hex
        self.events: list[Event] = []
        self.log = self.base_directory / "server.log"
        self.process = None
        self._listening = threading.Event()
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> ComfyServer:
        self._fill_base_directory()
        command = [str(environment.python()), "main.py", "--port", str(self.port), "--disable-auto-launch"]
        command += ["--base-directory", str(self.base_directory), "--disable-api-nodes"]
        command += ["--database-url", f"sqlite:///{self.base_directory / 'comfyui.db'}"]
        command += ["--use-pytorch-cross-attention", *self.arguments]
        if not _has_cuda():
            command.append("--cpu")
        if self.frontend:
            command += ["--front-end-root", str(self.frontend)]
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, cwd=environment.COMFYUI, stdout=log, stderr=subprocess.STDOUT)
        try:
            self._wait_until_up()
        except BaseException:
            self._kill()
            raise
        threading.Thread(target=lambda: asyncio.run(self._listen()), daemon=True).start()
        if not self._listening.wait(timeout=30):
            self._kill()
            raise ComfyError(f"the web socket did not open:\n{self.log_tail()}")
        return self

    def __exit__(self, *_exception) -> None:
        self._kill()

    def get(self, path: str):
        """GET a JSON document."""
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return json.load(answer)

    def post(self, path: str, body: dict):
        """POST a JSON document; the answer's JSON, or None. Raises ComfyError with the server's words."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise ComfyError(f"{path}: HTTP {error.code}: {error.read().decode(errors='replace')}") from None
        return json.loads(text) if text.strip() else None

    def queue(self, prompt: dict) -> str:
        """Queue an API-format prompt; its id."""
        return self.post("/prompt", {"prompt": prompt, "client_id": self.client_id})["prompt_id"]

    def wait(self, prompt_id: str, timeout_s: float = 300, on_wait=None) -> dict:
        """The history entry of a finished prompt, whatever its fate. `on_wait()` is called about 5 times a second."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            entry = self.get(f"/history/{prompt_id}").get(prompt_id)
            if entry and entry["status"]["status_str"] in ("success", "error") and self._heard_the_end(prompt_id):
                return entry
            if self.process.poll() is not None:
                raise ComfyError(f"the server died:\n{self.log_tail()}")
            if on_wait:
                on_wait()
            time.sleep(0.2)
        raise ComfyError(f"prompt {prompt_id} did not finish in {timeout_s} s:\n{self.log_tail()}")

    def _heard_the_end(self, prompt_id: str) -> bool:
        """Has the web socket's last message of a prompt arrived? Then all of its events are in `events`."""
        ends = ("execution_success", "execution_error", "execution_interrupted")
        return any(event.type in ends and event.data["prompt_id"] == prompt_id for event in self.events)

    def run(self, prompt: dict, timeout_s: float = 300, on_wait=None) -> dict:
        """Queue, wait, and return the outputs by node id. Raises ComfyError when a node failed."""
        entry = self.wait(self.queue(prompt), timeout_s, on_wait)
        if entry["status"]["status_str"] != "success":
            words = [data for kind, data in entry["status"]["messages"] if kind.startswith("execution_")]
            raise ComfyError("\n".join(f"{d.get('node_type')}: {d.get('exception_message')}" for d in words[-1:]))
        return entry["outputs"]

    def files(self, outputs: dict) -> list[Path]:
        """Paths of the files that an outputs document lists."""
        items = [item for node in outputs.values() for kind in node.values() for item in kind]
        named = [item for item in items if isinstance(item, dict) and "filename" in item]
        return [self.base_directory / f["type"] / f.get("subfolder", "") / f["filename"] for f in named]

    def log_tail(self, lines: int = 30) -> str:
        """The newest lines of the server's log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def _fill_base_directory(self) -> None:
        for name in ("custom_nodes", "input", "output", "user", "temp"):
            (self.base_directory / name).mkdir(parents=True, exist_ok=True)
        links = {self.base_directory / "custom_nodes" / name: path for name, path in self.packs.items()}
        links[self.base_directory / "models"] = environment.MODELS
        for at, target in links.items():
            if not at.exists():
                environment.link(Path(target), at)

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + self.timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise ComfyError(f"ComfyUI stopped while starting:\n{self.log_tail()}")
            try:
                self.get("/system_stats")
                # The tutorial dialog of a fresh user would cover the canvas.
                self.post("/settings", {"Comfy.TutorialCompleted": True})
                return
            except OSError:
                time.sleep(0.2)
        raise ComfyError(f"ComfyUI was not up after {self.timeout_s} s:\n{self.log_tail()}")

    async def _listen(self) -> None:
        try:
            async with aiohttp.ClientSession() as session:
                socket_url = f"{self.url}/ws?clientId={self.client_id}"
                async with session.ws_connect(socket_url, max_msg_size=0) as messages:
                    self._listening.set()
                    async for message in messages:
                        if message.type == aiohttp.WSMsgType.TEXT:
                            event = json.loads(message.data)
                            self.events.append(Event(event["type"], event["data"], time.monotonic()))
        except aiohttp.ClientError:
            return  # the server went away: the test or the demo is over

    def _kill(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _has_cuda() -> bool:
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return False
    probe = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([str(environment.python()), "-c", probe], capture_output=True).returncode == 0
