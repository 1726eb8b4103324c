"""Entry point: runs a command and turns errors into text and exit codes."""

import os
import sys

from detkit.core.console import say
from detkit.core.errors import UserError

INTERRUPTED = 130


def main() -> None:
    """Exit with 0 done or up to date, 1 user error, 2 bad recipe or command line, 3 a gate failed, 130 interrupted."""
    from detkit.cli.commands import app

    try:
        app()
    except UserError as error:
        say(f"error: {error.what}")
        if error.hint:
            say(f"try: {error.hint}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        say("interrupted; the same command continues")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our stdout has gone, as in `detkit show x | head`; that is not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
