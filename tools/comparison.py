"""A graph that makes the same clip twice, without and with the patch, and compares the two."""

from __future__ import annotations

from dataclasses import replace

from tools.graph import Link, Node, bypassed

COMPARE = "VCAttentionCompare"
BELOW = 1400  # how far below its original a node of the second branch stands


def compared(nodes: dict[str, Node]) -> dict[str, Node]:
    """The graph with a second branch of everything that a patch reaches, up to the decoder, and Compare behind both."""
    around = bypassed(nodes)
    twice = [key for key in _behind(nodes, set(around)) if key in _before(nodes, "decode") and key not in around]

    def stock(given):
        while isinstance(given, Link) and given.node in around:
            given = around[given.node]
        return given._replace(node=f"stock {given.node}") if isinstance(given, Link) and given.node in twice else given

    second = {
        f"stock {key}": replace(
            nodes[key],
            inputs={name: stock(given) for name, given in nodes[key].inputs.items()},
            at=(nodes[key].at[0], nodes[key].at[1] + BELOW),
            title=f"{nodes[key].title or nodes[key].type}, without patch",
        )
        for key in twice
    }
    clips = {"stock": Link("stock decode"), "patched": Link("decode"), "brightest_at": 0.0}
    return {**nodes, **second, "compare": Node(COMPARE, clips, (2460, 0), (640, 360))}


def _behind(nodes: dict[str, Node], found: set[str]) -> list[str]:
    """Nodes that depend on one of `found`, in the graph's order, which is the order of the data."""
    reached = set(found)
    for key, node in nodes.items():
        if any(isinstance(given, Link) and given.node in reached for given in node.inputs.values()):
            reached.add(key)
    return [key for key in nodes if key in reached - found]


def _before(nodes: dict[str, Node], last: str) -> set[str]:
    """`last` and the nodes that it depends on."""
    found, waiting = {last}, [last]
    while waiting:
        links = [given.node for given in nodes[waiting.pop()].inputs.values() if isinstance(given, Link)]
        waiting += [node for node in links if node not in found]
        found.update(links)
    return found
