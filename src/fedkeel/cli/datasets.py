"""`fedkeel datasets`: the table of data sets, a card, how one divides among clients, and importing files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from fedkeel.cli.completion import complete_datasets
from fedkeel.cli.console import count, facts, stdout, table
from fedkeel.cli.pages import Json, argument, examples, option

if TYPE_CHECKING:
    from fedkeel.cli.listings import Listed
    from fedkeel.data import Dataset, DatasetCard
    from fedkeel.data.partition.partition import Partition


@examples(
    "fedkeel datasets",
    "fedkeel datasets digits --partition dirichlet:alpha=0.1,clients=20",
    "fedkeel datasets cifar10 --from cifar-10-binary.tar.gz",
    "fedkeel datasets hf:scans,group=folder --partition natural",
)
def datasets(
    name: Annotated[
        str | None, argument(metavar="[NAME]", help="Show this one.", autocompletion=complete_datasets)
    ] = None,
    partition: Annotated[
        str | None, option(metavar="KIND:…", help="Show how it divides: dirichlet:alpha=0.1,clients=100 …")
    ] = None,
    seed: Annotated[int, option(metavar="N", help="The seed of the partition.")] = 0,
    figure: Annotated[Path | None, option(metavar="FILE", help="Draw the partition as .png, .svg or .pdf.")] = None,
    source: Annotated[
        Path | None, option("--from", metavar="PATH", help="Import published files that you have.")
    ] = None,
    no_check: Annotated[bool, option("--no-check", help="Import without comparing checksums.")] = False,
    json: Json = False,
) -> None:
    """List the data sets, show one, look at a partition, or import files.

    Data live in the folder $FEDKEEL_DATA, or in the user's cache folder. A data set that is not there is fetched from
    its home when it is first used.
    """
    from fedkeel.cli.fetching import following
    from fedkeel.cli.listings import Listed, dataset_entry, list_all, write_listing
    from fedkeel.data import DATASETS, import_from
    from fedkeel.data.storage.loading import find_card
    from fedkeel.errors import RequestError

    if name is None and (partition or figure or source):
        raise RequestError("this needs the name of a data set.", "for example: fedkeel datasets digits …")
    if json and (partition or figure):
        raise RequestError("--json prints the card of a data set, not how it divides.", "leave out --json")
    listed = list_all("datasets", DATASETS, find_card) if name is None else [Listed(name, find_card(name))]
    if name is not None and source is not None:
        with following(name, progress=True) as follow:
            import_from(name, source, check=not no_check, progress=follow)
    if json:
        typer.echo(write_listing("datasets", listed, dataset_entry))
        return
    if name is None:
        show_table(listed, stdout())
        return
    card = listed[0].card
    if figure is not None and partition is None:
        partition = write_setting(card.preset["partition"])
    if partition is not None:
        show_partition(card, partition, seed, figure, stdout())
    else:
        show_card(card, stdout())


def show_table(listed: Sequence[Listed], console: Console) -> None:
    from fedkeel.cli.fetching import present
    from fedkeel.data import data_root

    made = table(["data set!", "classes>", "sample!", "train>", "test>", "here!", "licence"])
    for name, card, _ in listed:
        numbers = (count(card.train) if card.train else "?", count(card.test) if card.test else "?")
        here = Text("yes", "green") if present(name) else Text("no", "dim")
        licence = card.licence.split(";")[0].split(":")[0]
        made.add_row(name, str(card.classes), describe_shape(card), *numbers, here, licence)
    console.print(made)
    console.print(Text(f"\nhere: in {data_root()} · ?: depends on the copy", "dim"), soft_wrap=True)
    for one in (one for one in listed if one.package):
        console.print(Text(f"{one.name}: from the package {one.package}", "dim"), soft_wrap=True)


def describe_shape(card: DatasetCard) -> str:
    return "×".join(map(str, card.shape)) if len(card.shape) > 1 else f"{card.shape[0]} tokens"


def show_card(card: DatasetCard, console: Console) -> None:
    from fedkeel.cli.fetching import present
    from fedkeel.data import data_root, load
    from fedkeel.data.storage.loading import source_of

    console.print(Text(card.name, "bold") + Text(f"  {card.title}", "dim"))
    here = f"yes, in {data_root() / card.folder}" if present(card.name) else "no"
    if card.home == "scikit-learn":
        here = "yes, it ships with scikit-learn"
    elif not present(card.name):
        here += f": fetched from {card.home} on first use" if source_of(card.name).fetch else ""
        here += f"; {source_of(card.name).import_hint}"
    rows = {
        "classes": count(card.classes) if card.classes else "",
        "sample": describe_shape(card) if card.shape else "",
        "samples": f"{count(card.train)} train, {count(card.test)} test" if card.train else "",
        "clients": f"natural ones: {card.natural}" if card.natural else "",
        "home": describe_home(card),
        "licence": card.licence,
        "here": here,
        "pixels": f"scaled to 0 … 1, less {join(card.mean)}, divided by {join(card.std)}" if card.mean else "",
        "tokens": f"{count(card.vocabulary)} different ones" if card.vocabulary else "",
        "checksums": "\n".join(f"{digest}  {file}" for file, digest in card.checksums.items()) or "none published",
        "notes": card.notes,
        "left out": "\n".join(load(card.name).remarks) if present(card.name) else "",
    }
    console.print(facts((name, value) for name, value in rows.items() if value))
    console.print(Text(f"\nfedkeel run --dataset {card.name} takes", "bold"))
    console.print(facts((f"  {name}", write_setting(value)) for name, value in card.preset.items()))
    console.print(Text("\n" + card.citation))


def describe_home(card: DatasetCard) -> str:
    from fedkeel.data.dataset import Hub
    from fedkeel.data.storage.download import is_folder

    if not isinstance(card.home, Hub):
        return str(card.home)
    return f"{card.home}, " + ("a folder" if is_folder(str(card.home)) else "on the Hugging Face hub")


def join(values: Sequence[float]) -> str:
    """Write numbers side by side, one for each channel."""
    return " ".join(f"{value:g}" for value in values)


def write_setting(value: Any) -> str:
    """A preset's value as the command line takes it."""
    from fedkeel.data.partition.registry import write_partition

    return write_partition(value) if hasattr(value, "items") else str(value)


def show_partition(card: DatasetCard, text: str, seed: int, figure: Path | None, console: Console) -> None:
    from fedkeel.data.partition.feature_shift import FeatureShift
    from fedkeel.data.partition.heatmap import draw_heatmap, write_heatmap
    from fedkeel.data.partition.heterogeneity import summarise
    from fedkeel.data.partition.registry import load_partition

    partition, data, labels = divide_data(card, text, seed)
    found = summarise(partition, labels, card.classes)
    sizes = f"{count(found.smallest)} to {count(found.largest)} samples, median {found.median:g}"
    rows = {
        "clients": count(found.clients) + (f", {found.empty} of them without data" if found.empty else ""),
        "sizes": sizes,
        "classes per client": f"{found.classes_per_client:.1f} of {card.classes} on average",
        "unused samples": count(found.unused),
        "duplicated samples": count(found.duplicated),
        "heterogeneity": f"{found.score:.2f} (0: as if drawn at random, 1: one class per client)",
    }
    if isinstance(shift := load_partition(text), FeatureShift):
        rows["corruptions"] = f"{shift.fewest} to {shift.most} a client at severity {shift.severity}, besides"
    console.print(Text(f"{card.name}  ", "bold") + Text(f"{text}, seed {seed}", "dim"))
    console.print(facts(rows.items()))
    for note in (*found.notes, *data.remarks):
        console.print(Text(f"note: {note}"), soft_wrap=True)
    console.print()
    histogram = partition.histogram(labels, card.classes)
    console.print(Text(write_heatmap(histogram, width=min(console.width, 120))))
    if figure is not None:
        typer.echo(draw_heatmap(histogram, figure))


def divide_data(card: DatasetCard, text: str, seed: int) -> tuple[Partition, Dataset, Any]:
    """The partition that an experiment with this seed would have, the data set, and the labels that it divides."""
    import numpy as np

    from fedkeel.cli.fetching import present
    from fedkeel.data import data_root, load
    from fedkeel.data.storage.loading import source_of
    from fedkeel.errors import DataError
    from fedkeel.runs.experiment import Experiment
    from fedkeel.runs.prepare import divide

    if not present(card.name):
        how = f"; `fedkeel run --dataset {card.name}` fetches it" if source_of(card.name).fetch else ""
        raise DataError(f"{card.name} is not in {data_root()}.", source_of(card.name).import_hint + how)
    data = load(card.name)
    labels = np.asarray(data.train_labels)
    plan = Experiment(dataset=card.name, partition=text, partition_seed=seed).plan
    return divide(plan, data, labels), data, labels
