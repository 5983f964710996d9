"""Which files of a folder are tables, and whose they are."""

from __future__ import annotations

from pathlib import Path

from fedkeel.errors import DataError

SUFFIXES = (".csv", ".parquet")
OTHERS = (".tsv", ".xls", ".xlsx", ".ods", ".feather", ".arrow", ".orc", ".pq", ".gz", ".bz2", ".xz", ".zst")
"""How files end that are likely to be tables, too."""
ARRAYS = (".npy", ".npz")
TENSORS = (".pt", ".pth")
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
HINTS = {
    ARRAYS: 'read arrays before: clients=[(numpy.load("x.npy"), numpy.load("y.npy")), …]',
    TENSORS: "read files of tensors before, with PyTorch: clients=[(x0, y0), (x1, y1), …]",
    PICTURES: "give pictures as map-style Datasets: clients=[torchvision.datasets.ImageFolder(folder, transform), …]; "
    "or name a folder of OWNER/CLASS/picture.png as the data set: hf:FOLDER,group=folder",
}
"""How data are given that lie in files of other kinds."""
DIVIDE = 'clients=[part.drop(columns="hospital") for _, part in frame.groupby("hospital")]'
"""How one table with a column of owners becomes a table for each client."""
TEST = "test"
"""A file of this name in a folder of clients, in small or capital letters, is the test set."""


def advise(path: Path) -> str | None:
    """How a file that is no table is given, or the first such file in a folder."""
    return next(filter(None, map(advise_by_name, path.rglob("*") if path.is_dir() else [path])), None)


def advise_by_name(file: Path) -> str | None:
    return next((hint for kinds, hint in HINTS.items() if file.suffix.lower() in kinds), None)


def refuse_others(folder: Path) -> None:
    """Refuse a folder with tables of other kinds, beside those that are read or in a folder of a client, or with tables
    that lie deeper."""
    inside = [one for one in sorted(folder.rglob("*")) if is_unread(one.relative_to(folder)) and one.is_file()]
    if names := [str(one.relative_to(folder)) for one in inside]:
        raise DataError(
            f"{folder} holds files that would not be read: {', '.join(names)}.",
            f"write tables as {' or '.join(SUFFIXES)}, one file or one folder of files for each client, and keep other "
            "files elsewhere",
        )


def is_unread(path: Path) -> bool:
    """Whether a file of this path is likely to be a table that is not read; a folder may be a Parquet file, too."""
    if lies_hidden(path):
        return False
    deep = len(path.parts) > 2 and Path(*path.parts[:2]).suffix.lower() != ".parquet"
    return path.suffix.lower() in ((*OTHERS, *SUFFIXES) if deep else OTHERS)


def is_hidden(path: Path) -> bool:
    """Whether a program left a file or a folder for itself, as macOS and editors do."""
    return path.name[0] in ".~"


def lies_hidden(path: Path) -> bool:
    """Whether a file, or a folder of its path, is hidden; the path does not begin at the root."""
    return any(is_hidden(one) for one in (path, *path.parents[:-1]))


def is_table(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not is_hidden(path)


def holds_tables(path: Path) -> bool:
    return path.is_dir() and not is_hidden(path) and any(map(is_table, path.iterdir()))


def name_owner(path: Path) -> str:
    """Whose a file or a folder of files is, by its name."""
    name = path.stem if is_table(path) else path.name
    return TEST if name.lower() == TEST else name
