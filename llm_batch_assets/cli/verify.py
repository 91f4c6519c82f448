"""``llm-batch-assets verify``: recompute a closure from stored bytes alone."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("verify")
@click.argument("path", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--closure", metavar="DIGEST", help="This revision's closure must be in the folder.")
@click.option(
    "--rules",
    type=click.Choice(["recorded", "current"]),
    default="recorded",
    show_default=True,
    help="current: class again what was classed under other rules.",
)
@click.option(
    "--gate",
    metavar="MODULE:FUNCTION",
    help="Run the workload's own gate again. Only code that you trust: the folder cannot ask.",
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def command(path: Path, closure: str | None, rules: str, gate: str | None, form: str) -> int:
    """Recompute all that an artifact folder claims, and name what differs.

    PATH is a copy of the artifact folder (objects/ and store.json). No ledger is needed. Exits
    with 0 when nothing differs, else with 4.
    """
    from llm_batch_assets.reconcile.frozen import load_gate
    from llm_batch_assets.reconcile.verify import verify

    report = verify(
        path,
        closure=closure,
        gate=load_gate(gate) if gate is not None else None,
        rules="current" if rules == "current" else "recorded",
    )
    if form == "json":
        import json
        from dataclasses import asdict

        click.echo(json.dumps({"ok": report.ok, **asdict(report)}, ensure_ascii=False))
    else:
        for finding in report.faults:
            click.echo(f"FAULT {finding.file}: {finding.what}")
        for finding in report.notes:
            click.echo(f"note  {finding.file}: {finding.what}")
        for revision in report.revisions:
            states = " ".join(f"{name}={count}" for name, count in revision["states"].items())
            click.echo(
                f"{revision['workload']} {revision['dataset']} r{revision['revision']}: "
                f"closed={str(revision['closed']).lower()} records={revision['records']} {states} "
                f"closure={revision['closure']}"
            )
        counted = " ".join(f"{name}={count}" for name, count in report.counts.items())
        click.echo(f"ok={str(report.ok).lower()} faults={len(report.faults)} {counted}")
    return 0 if report.ok else 4
