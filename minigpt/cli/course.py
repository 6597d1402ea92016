"""`minigpt course`."""

import signal
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, BadParameter, Option

from minigpt.cli.options import LIST, ForceOption, JsonOption, only_list
from minigpt.cli.output import check_writable, json_text, notice, table, waiting, write
from minigpt.errors import UserError, escape
from minigpt.training.signals import SIGHUP, handle

course_app = typer.Typer(**LIST)
LAST_CHAPTER = 12
MAX_SEED = 2**32 - 1


def _chapter(value: str) -> int:
    """Return the number of a chapter. Raises BadParameter if there is none."""
    if value.isdecimal() and 1 <= int(value) <= LAST_CHAPTER:
        return int(value)
    raise BadParameter(f"{value} is not a chapter from 1 to {LAST_CHAPTER}, as in: minigpt course check 1 mygpt.py")


ChapterNumber = Annotated[
    int, Argument(help=f"Number of the chapter, 1 to {LAST_CHAPTER}.", metavar="N", parser=_chapter)
]


@course_app.callback(invoke_without_command=True)
def course(context: typer.Context, as_json: JsonOption = False) -> None:
    """Build a GPT, chapter by chapter. Without a command, list the chapters.

    Examples:
      minigpt course                       the chapters
      minigpt course text                  write the text of the course
      minigpt course run 1                 measure the numbers of a chapter
      minigpt course check 1 mygpt.py      compare your code with minigpt's
    """
    if only_list(context):
        return
    from minigpt.course.chapters import CHAPTERS

    if as_json:
        write(json_text([{"number": chapter.number, "title": chapter.title} for chapter in CHAPTERS]))
        return
    table(["", "chapter"], [[str(chapter.number), chapter.title] for chapter in CHAPTERS])


@course_app.command()
def text(
    out: Annotated[Path, Argument(help="File to write.", metavar="FILE")] = Path("stories.txt"),
    force: ForceOption = False,
) -> None:
    """Write the text of the course, `builtin:stories`, to a file."""
    from minigpt.text.sources import STORIES
    from minigpt.text.stories import stories

    check_writable(out, force)
    write("".join(stories(*STORIES)), out)
    notice(f"wrote {escape(out)}; you need it beside mygpt.py")


@course_app.command()
def run(
    chapter_number: ChapterNumber,
    seed: Annotated[
        int, Option("--seed", help="Seed of the models. The course uses seeds 1 to 5.", min=0, max=MAX_SEED)
    ] = 1,
    as_json: JsonOption = False,
) -> None:
    """Train what a chapter needs, and print your numbers beside those of the course.

    Larger models are trained as runs, such as course-6-rotary. Ctrl-C saves them, and the same command resumes them.
    """
    from minigpt.course.chapters import CHAPTERS

    chapter = CHAPTERS[chapter_number - 1]
    try:
        values = chapter.measure(seed)
    except (KeyboardInterrupt, SystemExit):
        notice(f"to resume: minigpt course run {chapter_number}{f' --seed {seed}' if seed != 1 else ''}")
        raise
    if as_json:
        course = {name: number.values for name, number in chapter.numbers.items()}
        write(json_text({"chapter": chapter_number, "seed": seed, "measured": values, "course": course}))
        return
    rows = [
        [number.label, number.show_range(), number.show(values[name]), "outside" * number.is_outside(values[name])]
        for name, number in chapter.numbers.items()
    ]
    table(["", "course", "measured", ""], rows)
    if outside := sum(bool(row[-1]) for row in rows):
        notice(f"{outside} of {len(rows)} outside the range of the course: chapter 1 says what this can mean")


@course_app.command()
def check(
    number: ChapterNumber,
    file: Annotated[Path, Argument(help="Your code.", metavar="FILE")] = Path("mygpt.py"),
    as_json: JsonOption = False,
) -> None:
    """Compare your code for chapters 1 to N with minigpt's own computation.

    The file runs in a process of its own, with your rights and without a sandbox: check only your own code.
    """
    from minigpt.course.check import check as compare

    if not file.is_file():
        raise UserError(f"no file {escape(file)} here; go to its folder, or type minigpt course check {number} FILE")
    handle(signal.SIGTERM, SIGHUP)  # to end the process of the file
    answer = waiting("checking")(compare)(number, file)
    if as_json:
        passed = [{"chapter": chapter, "agrees": names} for chapter, names in answer.passed.items()]
        write(json_text({"passed": passed, "problem": answer.problem}))
    else:
        for chapter, names in answer.passed.items():
            if names:
                print(f"{chapter:>2}  agrees: {', '.join(names)}")
    notice(*answer.notices)
    notice(*[f"to train it again, rename it, then type: minigpt course run {number}"] * bool(answer.notices))
    if answer.problem:
        raise UserError(answer.problem)
