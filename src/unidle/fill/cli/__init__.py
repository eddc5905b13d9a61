"""``unidle fill``: inference and other work in the bubbles of training."""

from __future__ import annotations

import typer

from unidle.cli.help import Commands


def register(app: typer.Typer) -> None:
    """Add this package's commands."""
    from unidle.fill.cli.bench import bench
    from unidle.fill.cli.proof import proof
    from unidle.fill.cli.run import run
    from unidle.fill.cli.serve import serve
    from unidle.fill.cli.simulate import simulate

    fill = Commands(help="Run prefill of an inference service in the bubbles of training.")
    fill.callback()(_group)
    fill.command("simulate")(simulate)
    fill.command("run")(run)
    fill.command("proof")(proof)
    fill.command("serve")(serve)
    fill.command("bench")(bench)
    app.add_typer(fill, name="fill")


def _group() -> None:
    """Run prefill of an inference service in the bubbles of training."""
