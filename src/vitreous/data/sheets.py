"""A sheet of samples: a row for each class, with its name, its count and some of its training images."""

import importlib.util
from functools import cache
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont, features

from vitreous.data.describing import class_counts
from vitreous.data.sources import DataSet, Source
from vitreous.errors import VitreousError

PAPER, INK, PALE, EDGE = "#ffffff", "#1a1a1a", "#6b6b6b", "#e4e4e4"
MARGIN, GAP = 20, 6
NARROW, WIDE = 110, 260  # the column of names
TITLE, NAME, COUNT = 20, 15, 12  # sizes of letters
FEWEST = 4  # columns that a sheet has room for, so that its title fits
TRIES = 3  # for each place in a row: images that cannot be read are passed over
# DejaVu has most alphabets; the others stand in for what it lacks. Pillow looks in the system's folders of fonts.
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


def sample_sheet(data: DataSet, path: str | Path, *, columns: int = 8, rows: int = 12, cell: int = 96) -> Path:
    """Draw samples of the training images to a PNG. Of more classes than `rows`, some are shown, evenly spread.

    Small images are enlarged by a whole number, so that their pixels can be seen.
    """
    if Path(path).suffix.lower() != ".png":
        raise VitreousError(f"{path}: a sheet is a PNG file: give a name that ends in .png")
    if min(columns, rows) < 1 or cell < 16:
        raise VitreousError("a sheet needs a column, a row, and cells of 16 pixels at least")
    shown = _spread(len(data.classes), rows)
    counts = class_counts(data.train, len(data.classes))
    columns = min(columns, max(FEWEST, *(counts[number] for number in shown)))
    label = _label_width([data.classes[number] for number in shown])
    width = 2 * MARGIN + label + columns * (cell + GAP) - GAP
    top = MARGIN + TITLE + COUNT + 3 * GAP
    height = top + len(shown) * (cell + GAP) - GAP + MARGIN
    sheet = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    _write(draw, (MARGIN, MARGIN), data.name, TITLE, INK, width - 2 * MARGIN)
    _write(draw, (MARGIN, MARGIN + TITLE + GAP), _subtitle(data, len(shown)), COUNT, PALE, width - 2 * MARGIN)
    for row, number in enumerate(shown):
        y = top + row * (cell + GAP)
        middle = y + cell // 2
        _write(draw, (MARGIN, middle - NAME), data.classes[number], NAME, INK, label - 2 * GAP)
        _write(draw, (MARGIN, middle + GAP), f"{counts[number]:,} in train", COUNT, PALE, label - 2 * GAP)
        for column, image in enumerate(_samples(data.train, number, columns, cell)):
            x = MARGIN + label + column * (cell + GAP)
            sheet.paste(EDGE, (x, y, x + cell, y + cell))
            sheet.paste(image, (x + (cell - image.width) // 2, y + (cell - image.height) // 2))
    path = Path(path)
    try:
        sheet.save(path, "PNG", optimize=True)
    except OSError as error:
        raise VitreousError(f"{path}: the sheet cannot be written ({error.strerror or error})") from error
    return path


def _label_width(names: list[str]) -> int:
    widest = max(_font_for(name, NAME).getlength(name) for name in map(_printable, names))
    return round(min(max(widest + 4 * GAP, NARROW), WIDE))


def _subtitle(data: DataSet, shown: int) -> str:
    splits = ", ".join(f"{len(source):,} {split}" for split, source in data.splits.items())
    classes = f"{len(data.classes):,} classes"
    return f"{splits}; {classes}" + (f", {shown} of them shown" if shown < len(data.classes) else "")


def _spread(number: int, most: int) -> list[int]:
    """Up to `most` of so many things, evenly spread."""
    return list(range(number)) if number <= most else [i * number // most for i in range(most)]


def _samples(source: Source, number: int, columns: int, cell: int) -> list[Image.Image]:
    labels = source.labels
    members = (labels[:, number] if labels.ndim == 2 else labels == number).nonzero().flatten().tolist()
    first = _spread(len(members), columns)
    spare = [i for i in _spread(len(members), TRIES * columns) if i not in set(first)]
    images: list[Image.Image] = []
    for i in [*first, *spare]:
        if len(images) == columns:
            break
        try:
            images.append(_fitted(source.image(members[i], (cell, cell)), cell))
        except VitreousError:
            continue  # whoever asks for a description is told
    return images


def _fitted(image: Image.Image, cell: int) -> Image.Image:
    long = max(image.size)
    if long <= cell // 2:
        return image.resize((image.width * (cell // long), image.height * (cell // long)), Image.Resampling.NEAREST)
    size = max(1, round(image.width * cell / long)), max(1, round(image.height * cell / long))
    return image.resize(size, Image.Resampling.LANCZOS)


def _printable(text: str) -> str:
    """On one line, whatever a folder is called."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def _write(draw: ImageDraw.ImageDraw, at: tuple[int, int], text: str, size: int, colour: str, width: int) -> None:
    """One line, with an ellipsis where it would be wider."""
    text = _printable(text)
    font = _font_for(text, size)
    if draw.textlength(text, font) > width:
        while text and draw.textlength(f"{text}…", font) > width:
            text = text[:-1]
        text += "…"
    draw.text(at, text, fill=colour, font=font)


Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def _font_for(text: str, size: int) -> Font:
    """The first font that has every letter; or the one that lacks the fewest."""
    return min(_fonts(size), key=lambda font: _lacking(font, text))


def _lacking(font: Font, text: str) -> int:
    if not isinstance(font, ImageFont.FreeTypeFont):
        return sum(not c.isascii() for c in text)
    missing = bytes(font.getmask("\U0010fffe"))
    return sum(not c.isspace() and bytes(font.getmask(c)) == missing for c in set(text))


@cache
def _fonts(size: int) -> list[Font]:
    if not features.check("freetype2"):
        return [ImageFont.load_default()]
    found: list[Font] = []
    for name in (*FONTS, *_matplotlibs()):
        try:
            found.append(ImageFont.truetype(name, size))
        except OSError:
            continue
    return [*found, ImageFont.load_default(size)]


def _matplotlibs() -> list[str]:
    """matplotlib carries DejaVu with it. It need not be imported for that."""
    spec = importlib.util.find_spec("matplotlib")
    if spec is None or spec.origin is None:
        return []
    return [str(Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf")]
