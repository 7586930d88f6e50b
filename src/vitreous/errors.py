"""The one error that a caller can put right."""


class VitreousError(ValueError):
    """A wrong setting, file or input. The message says what, where, and what to do; the CLI prints it alone."""


class VitreousWarning(UserWarning):
    """Something worth knowing that stops nothing."""
