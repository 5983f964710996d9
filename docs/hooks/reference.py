"""The reference, made from the code: keys, rules, partitions, data sets, models, commands, and every public name."""

import inspect
import io
import re
from dataclasses import MISSING, fields
from functools import cache

import numpy as np
import typer

import fedkeel as fk
from fedkeel.catalogue.cards import every_rule
from fedkeel.catalogue.keys import KEYS
from fedkeel.cli.console import count
from fedkeel.cli.datasets import describe_shape
from fedkeel.cli.datasets import write_setting as preset_of
from fedkeel.cli.main import app
from fedkeel.cli.models import count_parameters
from fedkeel.data import load
from fedkeel.data.partition.heatmap import plot_clients
from fedkeel.data.partition.natural import Natural
from fedkeel.data.partition.registry import save_partition, write_partition
from fedkeel.methods import build
from fedkeel.problems.policy import Evaluation
from fedkeel.runs.experiment import EXAMPLES, Experiment
from fedkeel.runs.plan import NEUTRAL, PLAIN

MADE = "<!-- made from the code when the site is built -->\n\n"
PICTURED = [
    fk.Iid(20),
    *(fk.Dirichlet(0.3, 20, form) for form in ("client-prior-exact", "client-prior-refill", "hsu", "class-wise")),
    fk.Dirichlet(0.3, 20, "fedfsa-released"),
    *(fk.Pathological(2, 20, form) for form in ("shards", "shuffled", "cyclic")),
    fk.QuantitySkew(0.5, 20),
    fk.Natural(),
    fk.LongTail(fk.Dirichlet(0.3, 20), 20),
    fk.FeatureShift(fk.Iid(20)),
]
MORE_ON_KEYS = {
    "method": "[methods](../methods/README.md), [compose methods](../guides/methods.md)",
    "dataset": "[data sets](datasets.md)",
    "data": "[tables, files, the hub](../guides/own_data.md)",
    "problem": "[own data and networks](../guides/problems.md)",
    "partition": "[partitions](partitions.md)",
    "model": "[models](models.md)",
    "epochs": "[local work](../guides/schedules.md#how-much-local-work)",
    "steps": "[local work](../guides/schedules.md#how-much-local-work)",
    "schedule": "[schedules](../guides/schedules.md)",
    "server_schedule": "[schedules](../guides/schedules.md)",
    "optimizer": "[optimisers](../guides/optimisers.md)",
    "evaluation": "[below](#evaluation)",
}
NAMES_BY_PURPOSE = {
    "Experiments and runs": ("Experiment", "Evaluation", "Problem", "run", "run_together", "load_run", "Run"),
    "Methods and rules": ("method", "Method", "Phase", "Rule", "Weighting", "Local", "State", "Tree", "Layout"),
    "Registries": ("METHODS", "RULES", "DATASETS", "MODELS", "PARTITIONS"),
}


@cache
def make_pages():
    """Every page and picture of the reference by its name."""
    pages = {
        "experiment": experiment_page(),
        "rules": rules_page(),
        "partitions": partitions_page(),
        "datasets": datasets_page(),
        "models": models_page(),
        "commands": commands_page(),
        "python": python_page(),
    }
    pictures = {f"reference/{picture_name(one)}": draw_partition(one) for one in PICTURED}
    return {f"reference/{name}.md": MADE + text for name, text in pages.items()} | pictures


def experiment_page():
    """Every key of an experiment."""
    lines = [
        "# Keys of an experiment",
        "",
        "An experiment has these keys, in a TOML file, with `--set KEY=VALUE` and in `fk.Experiment(…)`. A key that",
        "you leave out takes the preset of the [data set](datasets.md), or else the *plain value* of this table.",
        "",
        '<div class="keys" markdown>',
        "",
        "| key | what it says | plain value | for example |",
        "| --- | --- | --- | --- |",
    ]
    for field in fields(Experiment):
        default = PLAIN.get(field.name, NEUTRAL.get(field.name, field.default))
        plain = "" if default is None else f"`{default}`"
        more = f" More: {MORE_ON_KEYS[field.name]}." if field.name in MORE_ON_KEYS else ""
        example = f"`{EXAMPLES[field.name]}`" if field.name in EXAMPLES else ""
        lines.append(f"| `{field.name}` | {KEYS.get(field.name, '')}{more} | {plain} | {example} |")
    lines += ["", "</div>", "", "## evaluation", "", prose(Evaluation), "", *field_table(Evaluation)]
    return "\n".join(lines) + "\n"


def rules_page():
    """Every rule, by the module that holds it."""
    using = {}
    for name in fk.METHODS:
        for rule in every_rule(build(name)):
            using.setdefault(type(rule).__name__, {})[name] = None
    lines = [
        "# Rules",
        "",
        "A rule is one idea of a method ([the round](../concepts/round.md)). Its fields are the hyper-parameters. This",
        "page lists all rules, by the module that holds them.",
    ]
    homes = sorted({kind.__module__ for kind in fk.RULES.values()})
    for home in homes:
        module = inspect.getmodule(next(kind for kind in fk.RULES.values() if kind.__module__ == home))
        lines += ["", f"## {home.rpartition('.')[2].replace('_', ' ').capitalize()}", "", prose(module)]
        for name, kind in fk.RULES.items():
            if kind.__module__ != home:
                continue
            lines += ["", f"### {name}", "", prose(kind), "", *field_table(kind)]
            if name in using:
                shown = ", ".join(f"[{one}](../methods/{one}.md)" for one in using[name])
                lines += ["", f"Methods with it: {shown}."]
    return "\n".join(lines) + "\n"


def partitions_page():
    """Every partition and its forms, each with its picture."""
    lines = [
        "# Partitions",
        "",
        "A partition divides a data set among clients. Each picture divides the digits of the quick start, seed 0,",
        "among 20 clients: a column is a client, a row is a class, a light cell is a large share of the client's",
        "samples, and the bars above are the clients' sizes.",
        "`fedkeel datasets digits --partition TEXT --figure FILE` draws one.",
    ]
    for name, kind in fk.PARTITIONS.items():
        lines += ["", f"## {name}", "", prose(kind), "", *field_table(kind)]
        for one in PICTURED:
            if type(one) is kind:
                text = describe(one)
                lines += ["", f"`{text}`", "", f"![Clients and classes of {text}]({picture_name(one)})"]
                if isinstance(one, Natural):
                    lines += ["", "The digits have no owners: the picture invents ten writers of unequal diligence."]
                if isinstance(one, fk.FeatureShift):
                    lines += ["", "Labels stay as the base divides them; the images differ from client to client."]
    return "\n".join(lines) + "\n"


def describe(partition):
    """A partition as the command line takes it, without what is the default anyway, but for the form."""

    def shorten(saved):
        kind = {field.name: field.default for field in fields(fk.PARTITIONS[saved["kind"]])}
        told = {name: value for name, value in saved.items() if name in ("kind", "form") or kind[name] != value}
        return told | ({"base": shorten(saved["base"])} if "base" in saved else {})

    return write_partition(shorten(save_partition(partition)))


def picture_name(partition):
    form = getattr(partition, "form", "")
    return f"partition-{save_partition(partition)['kind']}{'-' if form else ''}{form}.png"


def draw_partition(partition):
    """The picture of a partition of the digits, as the bytes of a PNG."""
    labels = np.asarray(load("digits").train_labels)
    owners = np.minimum(np.random.default_rng(0).geometric(0.2, len(labels)) - 1, 9)
    divided = partition.divide(labels, 0, groups=owners if isinstance(partition, Natural) else None)
    cells, file = divided.histogram(labels, 10), io.BytesIO()
    plot_clients(cells, len(cells), width=7).savefig(file, dpi=110, format="png")
    return file.getvalue()


def datasets_page():
    """Every data set, and what a run takes from it."""
    lines = ["# Data sets", "", "Every built-in data set, and the settings that a run takes from it.", ""]
    lines += ["`fedkeel datasets NAME` shows more: its home, its checksums, how to import it.", ""]
    for name, card in fk.DATASETS.items():
        sizes = f"{card.train:,} samples to train, {card.test:,} to test. " if card.train else ""
        lines += [f"## {name}", "", f"{card.title}. {card.classes} classes; {describe_shape(card)}. {sizes}", ""]
        lines += [f"Licence: {card.licence}. {escape(card.notes)}", "", "| key | preset |", "| --- | --- |"]
        lines += [f"| `{key}` | `{preset_of(value)}` |" for key, value in card.preset.items()] + [""]
    return "\n".join(lines) + "\n"


def models_page():
    """Every model."""
    lines = [
        "# Models",
        "",
        "`--model` takes these names, `timm:NAME`, `torchvision:NAME` and your own `module:function`",
        "([how](../guides/problems.md)). Parameters are counted for 10 classes and images of 3×32×32, or texts of 80",
        "tokens.",
        "",
        "| model | parameters | what it is | takes | options |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, card in fk.MODELS.items():
        options = ", ".join(f"`{option}={value}`" for option, value in card.defaults.items())
        about = escape(" ".join(part for part in (card.title + ".", card.about, card.notes) if part))
        lines.append(f"| `{name}` | {count(count_parameters(card))} | {about} | {card.takes} | {options} |")
    return "\n".join(lines) + "\n"


def commands_page():
    """Every command, as its --help has it."""
    root = typer.main.get_command(app)
    lines = ["# Commands", "", clean(root.help)]
    for name, command in root.commands.items():
        lines += command_lines(f"fedkeel {name}", command)
        for below, inner in getattr(command, "commands", {}).items():
            lines += command_lines(f"fedkeel {name} {below}", inner)
    return "\n".join(lines) + "\n"


def command_lines(name, command):
    lines = ["", f"## {name}", "", clean(command.help or "")]
    shown = [one for one in command.params if one.name != "help" and not getattr(one, "hidden", False)]
    if shown:
        lines += ["", "| option | value | what it does |", "| --- | --- | --- |"]
    for one in shown:
        words = ", ".join(f"`{word}`" for word in one.opts) if one.param_type_name == "option" else "*argument*"
        value = "" if getattr(one, "is_flag", False) else f"`{one.metavar or one.type.name.upper()}`"
        lines.append(f"| {words} | {value} | {clean(one.help or '')} |")
    examples = re.findall(r"^\$ (.*)$", clean(command.epilog or ""), flags=re.MULTILINE)
    return lines + (["", "```", *examples, "```"] if examples else [])


def python_page():
    """Every public name but for the rules."""
    homes = {**fk.HOME}
    groups = {title: [name for name in names if name in homes] for title, names in NAMES_BY_PURPOSE.items()}
    placed = {name for names in groups.values() for name in names}
    by_home = {"partition": "Partitions", "schedules": "Schedules", "objectives": "Objectives", "errors": "Errors"}
    for name, home in homes.items():
        if name not in placed:
            title = next((title for word, title in by_home.items() if word in home.split(".")), "More")
            groups.setdefault(title, []).append(name)
    lines = [
        "# Python",
        "",
        "Every name that `import fedkeel as fk` brings, except the [rules](rules.md).",
    ]
    for title, names in groups.items():
        lines += ["", f"## {title}"]
        for name in names:
            lines += ["", f"::: {home_of(name)}.{name}"]
    lines += ["", "## Optimisers", "", "::: fedkeel.optim"]
    return "\n".join(lines) + "\n"


def home_of(name):
    """The module that defines a public name."""
    thing = getattr(fk, name)
    return thing.__module__ if inspect.isclass(thing) or inspect.isfunction(thing) else fk.HOME[name]


def field_table(kind):
    """The fields of a dataclass with their defaults."""
    own = [field for field in fields(kind) if field.init] if hasattr(kind, "__dataclass_fields__") else []
    defaults = {one.name: "must be given" if one.default is MISSING else f"`{one.default!r}`" for one in own}
    rows = [f"| `{name}` | {default} |" for name, default in defaults.items()]
    return ["| field | default |", "| --- | --- |", *rows] if rows else []


def prose(thing):
    """A docstring as Markdown; lines in two columns become a table."""
    shown = []
    for paragraph in (inspect.getdoc(thing) or "").split("\n\n"):
        rows = re.findall(r"^(\S+) {3,}(.+(?:\n {3,}.+)*)", paragraph, flags=re.MULTILINE)
        cells = [f"| `{name}` | {escape(' '.join(text.split()))} |" for name, text in rows]
        table = "\n".join(["| form | what it is |", "| --- | --- |", *cells])
        shown.append(table if rows else escape(" ".join(paragraph.split())))
    return "\n\n".join(shown)


def escape(text):
    """Text in which Markdown sees no marks, but for code."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(p if i % 2 else re.sub(r"([*_<>\[\]|])", r"\\\1", p) for i, p in enumerate(parts))


def clean(text):
    """Help without the marks of the terminal."""
    return re.sub(r"\[/?[a-z ]+\]", "", text.replace("\b", "")).replace("|", "\\|").strip()
