"""Entry point: runs a command and turns errors into text and exit codes."""

import os
import sys

from detkit.core.console import say
from detkit.core.errors import UserError

BAD_USAGE = 2
INTERRUPTED = 130


def main() -> None:
    """Exit with 0 done or up to date, 1 user error, 2 bad recipe or command line, 3 a gate failed, 130 interrupted."""
    import typer

    from detkit.cli.commands import app

    # Every wrong use of the command line derives from this class, wherever Typer keeps its copy of Click.
    usage_error: type[Exception] = typer.BadParameter.__mro__[1]
    try:
        code = app(standalone_mode=False)
        if code == INTERRUPTED:
            # Typer turns Ctrl-C into this code in silence; older versions raise Abort.
            raise KeyboardInterrupt
        sys.exit(code if isinstance(code, int) else 0)
    except UserError as error:
        say(f"error: {error.what}")
        if error.hint:
            say(f"try: {error.hint}")
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted; the same command continues")
        sys.exit(INTERRUPTED)
    except usage_error as error:
        error.show()  # type: ignore[attr-defined]
        sys.exit(BAD_USAGE)
    except BrokenPipeError:
        # The reader of our stdout has gone, as in `detkit show x | head`; that is not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
