"""`python -m minigpt` is the command line."""

from minigpt.cli import main

if __name__ == "__main__":
    main()
