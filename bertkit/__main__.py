"""`bertkit`, `python -m bertkit`, and so `torchrun -m bertkit` and `accelerate launch -m bertkit`."""

from bertkit.cli.interrupts import end_on_interrupt

end_on_interrupt()  # before the imports, during which Ctrl-C would end in a traceback

from bertkit.cli.main import main  # noqa: E402

if __name__ == "__main__":
    main()
