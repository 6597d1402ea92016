"""Run the command line with `python -m minigpt`."""

from minigpt.cli.main import main

if __name__ == "__main__":
    main()
