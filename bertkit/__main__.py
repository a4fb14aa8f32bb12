"""`bertkit`, `python -m bertkit`, and so `torchrun -m bertkit` and `accelerate launch -m bertkit`."""

from bertkit.cli.interrupts import end_on_interrupt

end_on_interrupt()  # comes first, because Ctrl-C prints a traceback until this call

import sys  # noqa: E402

try:
    from bertkit.cli.main import main
except ModuleNotFoundError as error:  # installed without its dependencies
    # If a module of bertkit itself is missing, it is a bug, so its traceback is shown.
    if (error.name or "bertkit").startswith("bertkit"):
        raise
    from bertkit.errors import install_command

    sys.stderr.write(f"error: bertkit needs the Python module {error.name} - `{install_command()}` installs it\n")
    sys.exit(5)

if __name__ == "__main__":
    main()
