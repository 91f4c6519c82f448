"""``simulate``: the simulator alone, in the foreground."""

from __future__ import annotations

import json
from typing import Any

import click


@click.command("simulate")
@click.option("--port", type=int, default=0, show_default=True, help="0 takes a free port.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--faults",
    default="none",
    show_default=True,
    help="none, default, hostile, or a JSON list of faults.",
)
@click.option(
    "--scale",
    type=float,
    default=7200.0,
    show_default=True,
    help="Virtual seconds in a real one: at 7200 a day passes in 12 seconds.",
)
@click.option(
    "--batch-seconds",
    type=float,
    default=14400.0,
    show_default=True,
    help="Virtual seconds that an ordinary batch takes.",
)
@click.option("--s3-endpoint", default=None, help="The S3 server that the Bedrock part uses.")
@click.option("--s3-access-key", default="test", show_default=True)
@click.option("--s3-secret-key", default="test", show_default=True)
@click.option(
    "--option",
    "more",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any other switch of the simulator, such as ranges=false.",
)
@click.option(
    "--bedrock-minimum",
    type=int,
    default=100,
    show_default=True,
    help="Records that a Bedrock job needs at least.",
)
def command(
    port: int,
    seed: int,
    faults: str,
    scale: float,
    batch_seconds: float,
    s3_endpoint: str | None,
    s3_access_key: str,
    s3_secret_key: str,
    more: tuple[str, ...],
    bedrock_minimum: int,
) -> None:
    """Speak the batch APIs on loopback, with faults, a meter and a virtual clock.

    Prints its addresses as one JSON line, then serves until it is interrupted.
    """
    import asyncio

    from llm_batch_assets.simulator.options import Options, read_option
    from llm_batch_assets.simulator.server import (
        build_app,
        build_server,
        build_world,
        listen,
        serve,
    )

    given: dict[str, Any] = {
        "batch_seconds": batch_seconds,
        "s3_endpoint": s3_endpoint,
        "s3_access_key": s3_access_key,
        "s3_secret_key": s3_secret_key,
        "bedrock_minimum": bedrock_minimum,
    }
    try:
        for one in more:
            name, _, text = one.partition("=")
            given[name] = read_option(name, text)
        options = Options(**given)
        asked = json.loads(faults) if faults.startswith("[") else faults
        world = build_world(seed, asked, scale, options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    try:
        sock = listen(port)
    except OSError as error:
        raise click.UsageError(f"cannot listen on port {port}: {error.strerror}") from error
    origin = f"http://127.0.0.1:{sock.getsockname()[1]}"
    click.echo(
        json.dumps(
            {
                "origin": origin,
                "openai": f"{origin}/v1",
                "anthropic": f"{origin}/anthropic",
                "gemini": f"{origin}/gemini",
                "bedrock": f"{origin}/bedrock",
                "admin": f"{origin}/_sim",
            }
        )
    )
    asyncio.run(serve(build_server(build_app(world)), sock))
