"""`python -m bertkit`, and so `torchrun -m bertkit` and `accelerate launch -m bertkit`."""

from bertkit.cli.main import main

if __name__ == "__main__":
    main()
