"""`python -m modicum_command` is the command `modicum`."""

from modicum_command import main

if __name__ == "__main__":
    main()
