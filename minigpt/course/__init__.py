"""The course in docs/course: what `minigpt course` trains, measures and checks."""
