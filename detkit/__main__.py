"""`python -m detkit` is `detkit`."""

from detkit.cli.main import main

if __name__ == "__main__":
    main()
