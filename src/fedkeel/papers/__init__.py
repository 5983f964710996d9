"""The numbers of the five papers, and the experiments that make them."""

# not `cells`, which would hide the module of that name
from fedkeel.papers.cells import (
    PAPERS,
    QUESTIONS,
    Cell,
    Table,
    changes,
    checks,
    choices,
    find,
    seeds_of,
    tables,
)
from fedkeel.papers.paper_file import EVALUATIONS, KINDS
