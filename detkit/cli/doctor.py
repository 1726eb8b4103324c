"""`detkit doctor`: what this machine can do, and why not the rest."""

import typer

from detkit.cli.options import JsonOption, printed

doctor = typer.Typer(name="doctor", help="Say what this machine can train, build and run, and why not the rest.", no_args_is_help=True)


@doctor.callback()
def root() -> None:
    """Say what this machine can train, build and run, and why not the rest."""


@doctor.command()
def env(as_json: JsonOption = False) -> None:
    """What this machine can train, build and run, and why not the rest.

    Example: detkit doctor env --json
    """
    from detkit.deploy.abilities import abilities
    from detkit.deploy.machine import machine_card

    card, rows = machine_card(), abilities()
    lines = [f"{card['processor']}, {card['num_cpus']} CPUs, Python {card['python']}"]
    width = max(len(row["ability"]) for row in rows)
    for row in rows:
        lines.append(f"{'yes' if row['able'] else 'no ':3}  {row['ability']:{width}}  {row['why']}")
    printed({"machine": card, "abilities": rows}, as_json=as_json, lines=lines)
