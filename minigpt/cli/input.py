"""Text that a command reads from a file."""


def read_text(path: str, encoding: str = "utf-8") -> str:
    """Return the text of a file, or of standard input if `path` is "-"."""
    from minigpt.text.sources import open_corpus

    return "".join(open_corpus([path], encoding).blocks())
