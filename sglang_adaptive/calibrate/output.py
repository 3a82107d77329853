"""Writes a cost profile as a file, a table and a picture."""

from __future__ import annotations

from pathlib import Path

from sglang_adaptive.policy.profile import CostProfile


def write(profile: CostProfile, path: Path) -> None:
    """Write the profile's JSON; the file is replaced atomically."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(profile.dumps(), encoding="utf-8")
    partial.replace(path)


def table(profile: CostProfile) -> str:
    """Return milliseconds a round, batch sizes down and steps across, as aligned text; "-" where none was measured."""
    steps = sorted({cell.steps for cell in profile.cells})
    shown = {(cell.batch_size, cell.steps): f"{1000 * cell.seconds:.2f}" for cell in profile.cells}
    head = "ms a round   " + "".join(f"{f'{s} steps':>10}" for s in steps)
    rows = [
        f"batch {batch:<7}" + "".join(f"{shown.get((batch, s), '-'):>10}" for s in steps)
        for batch in sorted({cell.batch_size for cell in profile.cells})
    ]
    return "\n".join([f"{profile.key.target_model} on {profile.key.gpu_name}", head, *rows])


def draw(profile: CostProfile, path: Path) -> None:
    """Draw milliseconds a round over steps, one line a batch size, as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    sizes = sorted({cell.batch_size for cell in profile.cells})
    for index, batch in enumerate(sizes):
        cells = [cell for cell in profile.cells if cell.batch_size == batch]
        shade = 0.25 + 0.75 * index / max(1, len(sizes) - 1)
        x, y = [cell.steps for cell in cells], [1000 * cell.seconds for cell in cells]
        axes.plot(x, y, marker="o", markersize=4, color=(0.05, 0.25, 0.55, shade))
        axes.annotate(f"batch {batch}", (x[-1], y[-1]), xytext=(6, 0), textcoords="offset points", va="center")
    axes.set_xlabel("draft steps")
    axes.set_ylabel("ms a round")
    axes.set_ylim(bottom=0)
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{profile.key.target_model} on {profile.key.gpu_name}", fontsize=10)
    figure.savefig(path, dpi=150, format="png")
