"""`bertkit`, `python -m bertkit`, and so `torchrun -m bertkit` and `accelerate launch -m bertkit`."""

from bertkit.cli.interrupts import end_on_interrupt

end_on_interrupt()  # first, because Ctrl-C prints a traceback until this call

import sys  # noqa: E402

try:
    from bertkit.cli.main import main
except ModuleNotFoundError as error:  # installed without its dependencies
    # A module of bertkit itself that is missing is a bug, whose traceback must be shown.
    if (error.name or "bertkit").startswith("bertkit"):
        raise
    from bertkit.errors import install_command

    sys.stderr.write(f"error: bertkit needs the Python module {error.name} - `{install_command()}` installs it\n")
    sys.exit(5)

if __name__ == "__main__":
    main()
