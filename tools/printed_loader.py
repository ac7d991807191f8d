"""The block of the documentation that shows how fast the loader is beside others."""

from __future__ import annotations

from typing import Any

Stored = dict[str, Any]

PACKED = {"jpeg": "JPEG as it is", "jpeg-restart": "with restart markers", "jpeg-256": "256 pixels", "raw-256": "raw"}


def loader_peers(found: Stored) -> list[str]:
    """Samples per second and core of each path, then each goal with what was reached; missed ones in bold."""
    lines = ["| path | samples per CPU second: median | least to most | times stock |", "|---|---|---|---|"]
    for name, row in sorted(found["paths"].items(), key=lambda one: one[1]["samples_per_cpu_s"]):
        spread = f"{row['low']:,.0f} to {row['high']:,.0f}"
        lines.append(f"| {name} | {row['samples_per_cpu_s']:,.0f} | {spread} | {row['times_stock']:.2f} |")
    lines += ["", "| path | beside | goal | reached: median | least to most |", "|---|---|---|---|---|"]
    lines += [_goal(row) for row in found["goals"]]
    lines += ["", _about(found)]
    lines += [f"Not there: {peer} ({reason})." for peer, reason in found["absent"].items()]
    return lines


def short(found: Stored) -> str:
    """Unchanged JPEGs compared with the stock transforms and DALI, in a line."""
    reached = {row["base"]: row["times"] for row in found["goals"] if row["ours"] == "allpull jpeg" and row["times"]}
    return ", ".join(f"{reached[base]:.2f} × {base}" for base in ("stock", "DALI on the CPU") if base in reached)


def _goal(row: dict[str, Any]) -> str:
    if row["times"] is None:
        cells = ["not measured", ""]
    else:
        reached = f"{row['times']:.2f}"
        cells = [reached if row["times"] >= row["goal"] else f"**{reached}, missed**"]
        cells.append(f"{row['low']:.2f} to {row['high']:.2f}")
    return f"| {' | '.join([row['ours'], row['base'], str(row['goal']), *cells])} |"


def _about(found: Stored) -> str:
    sizes = ", ".join(f"{PACKED[kind]} {size / 1000:.0f} kB" for kind, size in found["bytes_a_record"].items())
    versions = ", ".join(f"{package} {known}" for package, known in found["peers"].items() if known)
    return (
        f"Images: {found['pictures']}; a record of each kind: {sizes}. Batches of {found['batch']}; "
        f"{found['rounds']} rounds, and one to warm up; crops resized by {found['resizer']}. With {versions}."
    )
