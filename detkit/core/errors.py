"""Errors that a user can act on, and the exit codes they end with."""


class UserError(Exception):
    """A mistake or a missing thing on the user's side: what happened with the value, then what to type.

    The command line prints both and exits with `exit_code` (1).
    """

    exit_code = 1

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


class RecipeError(UserError):
    """A recipe that does not validate; exit code 2."""

    exit_code = 2


class GateError(UserError):
    """A measured difference or a proof that failed; nothing was committed; exit code 3."""

    exit_code = 3
