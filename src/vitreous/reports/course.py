"""References to the course in docs/learn/. It is not part of the installed package, so pages name the file."""

CHAPTERS = {
    1: "1-patches.md",
    2: "2-positions.md",
    3: "3-attention.md",
    4: "4-training.md",
    5: "5-transfer.md",
}


def course_reference(chapter: int, section: str) -> str:
    """Return the chapter and the title of a section, with the file in Vitreous's source."""
    file = f"docs/learn/{CHAPTERS[chapter]}"
    return f'More: chapter {chapter} of the course, "{section}" ({file} in the source of Vitreous).'
