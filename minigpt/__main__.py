"""`python -m minigpt` is the command line."""

from minigpt.cli.main import main

if __name__ == "__main__":
    main()
