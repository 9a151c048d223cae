"""`python -m seqloom.cli`: the same as `python -m seqloom`."""

from seqloom.cli.main import main

if __name__ == "__main__":
    main()
