"""What the web interface is told while a run lasts and when it ends. Without a server nobody is told."""

from __future__ import annotations

import sys
import threading
import time

REPORT = "vc_attention.report"  # a run ended: docs/report.md
PROGRESS = "vc_attention.progress"  # a run has come further: docs/report.md
NOTICE = "vc_attention.notice"  # the artist should act: {"node", "text"}
INTERVAL_S = 0.25  # between two tellings of progress


def send(event: str, node_id: str | None, data: dict) -> None:
    """Send `data` about a node to the client that queued the prompt."""
    server = sys.modules.get("server")  # ComfyUI's own; never imported where its samplers are used as a library
    server = getattr(getattr(server, "PromptServer", None), "instance", None)
    if server is not None and node_id is not None:
        server.send_sync(event, {"node": node_id, **data}, server.client_id)


class Progress:
    """Tells how far one run has come, a few times a second at most."""

    def __init__(self, node_id: str | None) -> None:
        self.node_id = node_id
        self._told = -INTERVAL_S
        self._noticed: set[str] = set()
        self._lock = threading.Lock()

    def tell(self, data: dict) -> None:
        """Send `data`, unless something was sent just before."""
        with self._lock:
            now = time.monotonic()
            if now - self._told < INTERVAL_S:
                return
            self._told = now
        send(PROGRESS, self.node_id, data)

    def notice(self, text: str) -> None:
        """Send what the artist should do something about, once a run."""
        with self._lock:
            if text in self._noticed:
                return
            self._noticed.add(text)
        send(NOTICE, self.node_id, {"text": text})
