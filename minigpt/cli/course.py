"""`minigpt course`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from minigpt.cli.options import GROUP
from minigpt.cli.output import check_writable, notice, table, write
from minigpt.errors import UserError, escape
from minigpt.files import write_atomically
from minigpt.paths import RUNS

course_app = typer.Typer(**{**GROUP, "no_args_is_help": False})
DONE = RUNS / "course.json"
"""What the reader has done: {"run": {"6": {NAME: VALUE}}, "check": ["6"]}."""
ChapterNumber = Annotated[int, Argument(help="Number of the chapter.", metavar="N", min=1, max=10)]


@course_app.callback(invoke_without_command=True)
def course(context: typer.Context) -> None:
    """Build a GPT letter by letter, in ten chapters. Without a command, list them.

    Examples:
      minigpt course                       the chapters, and what you have done
      minigpt course text                  write the text that all chapters use
      minigpt course run 1                 measure the numbers of a chapter
      minigpt course check 1 mygpt.py      compare your code with minigpt's
    """
    if context.invoked_subcommand is not None:
        return
    from minigpt.course.chapters import CHAPTERS

    done = _done()
    rows = []
    for chapter in CHAPTERS:
        key = str(chapter.number)
        rows.append([key, chapter.title, "run" * (key in done["run"]), "checked" * (key in done["check"])])
    table(["", "chapter", "", ""], rows)


@course_app.command()
def text(
    out: Annotated[Path, Argument(help="Where to write it.", metavar="FILE")] = Path("stories.txt"),
    force: Annotated[bool, Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write the text of the course, `builtin:stories`, to a file."""
    from minigpt.text.sources import STORIES
    from minigpt.text.stories import stories

    check_writable(out, force=force)
    write("".join(stories(*STORIES)), out)


@course_app.command()
def run(
    chapter_number: ChapterNumber,
    seed: Annotated[int, Option("--seed", help="Seed of the models. The book has seeds 1 to 5.", min=0)] = 1,
) -> None:
    """Train what a chapter needs, and print its numbers beside the book's numbers.

    The models are runs of their own: course-6-rotary and so on. Ctrl-C saves; the same command resumes.
    """
    from minigpt.course.chapters import CHAPTERS

    chapter = CHAPTERS[chapter_number - 1]
    values = chapter.measure(seed)
    done = _done()
    done["run"][str(chapter_number)] = values
    _save(done)
    recorded = chapter.recorded()
    rows = [
        [
            number.label,
            number.show_range(recorded[name]),
            number.show(values[name]),
            "outside" * number.is_outside(values[name], recorded[name]),
        ]
        for name, number in chapter.numbers.items()
    ]
    table(["", "book", "yours", ""], rows)
    if outside := sum(bool(row[-1]) for row in rows):
        notice(f"{outside} of {len(rows)} outside the range of the book: see 'Your numbers' on the first page")


@course_app.command()
def check(
    number: ChapterNumber,
    file: Annotated[Path, Argument(help="Your code.", metavar="FILE")] = Path("mygpt.py"),
) -> None:
    """Compare your code for chapters 1 to N with minigpt's own computation.

    The file runs in a process of its own, with your rights and without a sandbox: check only your own code.
    """
    from minigpt.course.check import check as compare

    if not file.is_file():
        raise UserError(f"{escape(file)} is not a file; to check another file: minigpt course check {number} FILE")
    passed = compare(number, file)
    for chapter, names in passed.items():
        print(f"{chapter:>2}  agrees: {', '.join(names)}")
    done = _done()
    done["check"] = sorted({*done["check"], *map(str, passed)}, key=int)
    _save(done)


def _done() -> dict[str, Any]:
    try:
        found = json.loads(DONE.read_text(encoding="utf-8"))
        return {"run": dict(found["run"]), "check": list(found["check"])}
    except FileNotFoundError:
        return {"run": {}, "check": []}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{DONE} is damaged; remove it to start again: rm {DONE}") from error


def _save(done: dict[str, Any]) -> None:
    RUNS.mkdir(exist_ok=True)
    write_atomically(DONE, json.dumps(done, indent=1) + "\n")
