"""`python -m modicum` is the command `modicum`."""

from modicum.cli import main

if __name__ == "__main__":
    main()
