"""A contact sheet: a row for each class, with its name, its count and some of its training images."""

import importlib.util
from functools import cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, features

from vitreous.data.dataset import DataSet, Source
from vitreous.data.statistics import class_counts
from vitreous.errors import SystemFaultError, VitreousError
from vitreous.utils.atomic import atomic_file, check_output
from vitreous.utils.console import printable

PAPER, INK, PALE, EDGE = "#ffffff", "#1a1a1a", "#6b6b6b", "#e4e4e4"
MARGIN, GAP = 20, 6
MIN_LABEL_WIDTH, MAX_LABEL_WIDTH = 110, 260  # pixels of the column of class names
TITLE, NAME, COUNT = 20, 15, 12  # font sizes
MIN_COLUMNS = 4  # so that the title fits
MAX_TEXT = 500  # characters of a name that are measured
TRIES = 3  # images to try for each cell; unreadable ones are skipped
# DejaVu has most alphabets; the other fonts are fallbacks. Pillow searches the font folders of the system.
FONTS = (
    "DejaVuSans.ttf",
    "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf",
    "/usr/share/fonts/dejavu-sans-fonts/DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "NotoSansCJK-Regular.ttc",
    "wqy-microhei.ttc",
    "DroidSansFallbackFull.ttf",
    "Arial Unicode.ttf",
    "msyh.ttc",
    "arial.ttf",
)


def sample_sheet(
    data: DataSet, path: str | Path, *, columns: int = 8, rows: int = 12, cell: int = 96, overwrite: bool = False
) -> Path:
    """Draw samples of the training images to a PNG. If there are more classes than `rows`, an even selection is shown.

    Small images are enlarged by an integer factor, so that their pixels are visible. An existing file is replaced only
    with `overwrite`.
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise VitreousError(f"{path}: contact sheets are PNG files: use a name that ends in .png")
    check_output(path, overwrite)
    if min(columns, rows) < 1 or cell < 16:
        raise VitreousError("a contact sheet needs at least one column, one row, and cells of 16 pixels")
    selected = _select_evenly(len(data.classes), rows)
    counts = class_counts(data.train, len(data.classes))
    columns = min(columns, max(MIN_COLUMNS, *(counts[number] for number in selected)))
    label = _label_width([data.classes[number] for number in selected])
    width = 2 * MARGIN + label + columns * (cell + GAP) - GAP
    top = MARGIN + TITLE + COUNT + 3 * GAP
    height = top + len(selected) * (cell + GAP) - GAP + MARGIN
    sheet = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    _draw_text(draw, (MARGIN, MARGIN), data.name, TITLE, INK, width - 2 * MARGIN)
    _draw_text(draw, (MARGIN, MARGIN + TITLE + GAP), _subtitle(data, len(selected)), COUNT, PALE, width - 2 * MARGIN)
    for row, number in enumerate(selected):
        y = top + row * (cell + GAP)
        middle = y + cell // 2
        _draw_text(draw, (MARGIN, middle - NAME), data.classes[number], NAME, INK, label - 2 * GAP)
        _draw_text(draw, (MARGIN, middle + GAP), f"{counts[number]:,} in train", COUNT, PALE, label - 2 * GAP)
        for column, image in enumerate(_samples(data.train, number, columns, cell)):
            x = MARGIN + label + column * (cell + GAP)
            sheet.paste(EDGE, (x, y, x + cell, y + cell))
            sheet.paste(image, (x + (cell - image.width) // 2, y + (cell - image.height) // 2))
    with atomic_file(path, overwrite) as temporary:
        sheet.save(temporary, "PNG", optimize=True)
    return path


def _label_width(names: list[str]) -> int:
    widest = max(_font_for(name, NAME).getlength(name) for name in map(_single_line, names))
    return round(min(max(widest + 4 * GAP, MIN_LABEL_WIDTH), MAX_LABEL_WIDTH))


def _subtitle(data: DataSet, shown: int) -> str:
    splits = ", ".join(f"{len(source):,} {split}" for split, source in data.splits.items())
    classes = f"{len(data.classes):,} classes"
    return f"{splits}; {classes}" + (f", {shown} of them shown" if shown < len(data.classes) else "")


def _select_evenly(number: int, limit: int) -> list[int]:
    """Up to `limit` of the integers below `number`, evenly spaced."""
    return list(range(number)) if number <= limit else [i * number // limit for i in range(limit)]


def _samples(source: Source, number: int, columns: int, cell: int) -> list[Image.Image]:
    labels = source.labels
    members = (labels[:, number] if labels.ndim == 2 else labels == number).nonzero().flatten().tolist()
    first = _select_evenly(len(members), columns)
    spare = [i for i in _select_evenly(len(members), TRIES * columns) if i not in set(first)]
    images: list[Image.Image] = []
    for i in [*first, *spare]:
        if len(images) == columns:
            break
        try:
            images.append(_fit_to_cell(source.image(members[i], (cell, cell)), cell))
        except SystemFaultError:
            raise
        except VitreousError:
            continue  # `describe` reports unreadable images
    return images


def _fit_to_cell(image: Image.Image, cell: int) -> Image.Image:
    long = max(image.size)
    if long <= cell // 2:
        return image.resize((image.width * (cell // long), image.height * (cell // long)), Image.Resampling.NEAREST)
    size = max(1, round(image.width * cell / long)), max(1, round(image.height * cell / long))
    return image.resize(size, Image.Resampling.LANCZOS)


def _single_line(text: str) -> str:
    """Text on one line, with special characters escaped, truncated to a length that is fast to measure."""
    return printable(text[:MAX_TEXT])


def _draw_text(draw: ImageDraw.ImageDraw, at: tuple[int, int], text: str, size: int, colour: str, width: int) -> None:
    """Draw one line of text, shortened with an ellipsis if it is wider than `width`."""
    text = _single_line(text)
    font = _font_for(text, size)
    if draw.textlength(text, font) > width:
        while text and draw.textlength(f"{text}…", font) > width:
            text = text[:-1]
        text += "…"
    draw.text(at, text, fill=colour, font=font)


Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def _font_for(text: str, size: int) -> Font:
    """The first font that has all characters, or the one with the fewest missing."""
    return min(_fonts(size), key=lambda font: _missing_characters(font, text))


def _missing_characters(font: Font, text: str) -> int:
    if not isinstance(font, ImageFont.FreeTypeFont):
        return sum(not c.isascii() for c in text)
    missing = bytes(font.getmask("\U0010fffe"))
    return sum(not c.isspace() and bytes(font.getmask(c)) == missing for c in set(text))


@cache
def _fonts(size: int) -> list[Font]:
    if not features.check("freetype2"):
        return [ImageFont.load_default()]
    fonts: list[Font] = []
    for name in (*FONTS, *_matplotlib_fonts()):
        try:
            fonts.append(ImageFont.truetype(name, size))
        except OSError:
            continue
    return [*fonts, ImageFont.load_default(size)]


def _matplotlib_fonts() -> list[str]:
    """DejaVu as installed with matplotlib, found without importing it."""
    spec = importlib.util.find_spec("matplotlib")
    if spec is None or spec.origin is None:
        return []
    return [str(Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf")]
