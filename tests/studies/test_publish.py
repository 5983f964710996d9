"""Comparisons as tables for papers and spreadsheets."""

import csv
import dataclasses
import io
import re

import pytest
from scipy.stats import ttest_rel

import fedkeel as fk
from fedkeel.analysis.intervals import paired_p_value
from fedkeel.cli.compare import show, show_accuracy
from fedkeel.cli.main import call
from fedkeel.runs.finished_run import Run
from fedkeel.runs.record import RoundRecord
from fedkeel.studies.compare import Comparison
from fedkeel.studies.publish import escape_latex, guard, write_csv, write_latex
from fedkeel.studies.run_groups import group_runs
from problems import small_problem


def made(method, seed, accuracy):
    exp = fk.Experiment(problem=small_problem(), method=method, seed=seed, rounds=1)
    fixed = dict(loss=1.0, drift=1.0, backward_passes=1, bytes_down=1, bytes_up=1, seconds=1.0)
    result = {"best": accuracy, "last": accuracy - 0.1, "mean_last": accuracy - 0.05}
    return Run(exp, [RoundRecord(1, [0], **fixed, accuracy=accuracy)], result, {}, None, None, None)


def groups(**methods):
    return group_runs(
        [made(name, seed, value) for name, values in methods.items() for seed, value in enumerate(values)]
    )


def test_the_p_value_is_that_of_a_paired_t_test():
    mine, other = [0.6, 0.8, 0.75, 0.7], [0.5, 0.6, 0.71, 0.72]
    differences = [a - b for a, b in zip(mine, other, strict=True)]
    assert paired_p_value(differences) == pytest.approx(ttest_rel(mine, other).pvalue)
    assert paired_p_value([0.1]) is None


def test_latex_has_the_best_bold_and_marks_what_differs():
    base, better, same = groups(fedavg=[0.5, 0.6, 0.7], fedsam=[0.6, 0.71, 0.79], fedprox=[0.4, 0.7, 0.65])
    lines = write_latex(Comparison([base, better, same], base, 0.5)).splitlines()
    rows = {line.split(" & ")[0]: line.split(" & ")[1:] for line in lines if " & " in line}
    assert rows["Method"] == ["Best", "Last", r"Mean of last \\"]
    assert rows["fedavg"][0] == r"$60.00 \pm 10.00$"
    assert rows["fedsam"][0] == r"$\mathbf{70.00} \pm 9.54$\textsuperscript{*}"
    assert "mathbf" not in rows["fedprox"][0]
    assert "superscript" not in rows["fedprox"][0]
    assert lines[0] == "% accuracy in %, mean and standard deviation over 3 seeds; bold: the best of a column"
    assert lines.count(r"\toprule") == lines.count(r"\bottomrule") == 1


def test_csv_has_the_numbers_in_full():
    base, better = groups(fedavg=[0.5, 0.6, 0.7], fedsam=[0.6, 0.71, 0.79])
    first, second = csv.DictReader(io.StringIO(write_csv(Comparison([base, better], base, 0.5))))
    assert (first["method"], first["difference"], first["p"], first["significant"], first["top"]) == (
        "fedavg", "", "", "", "false",
    )  # fmt: skip
    assert float(second["best_mean"]) == pytest.approx(70.0)
    assert float(second["difference"]) == pytest.approx(10.0)
    assert float(second["low"]) < 10 < float(second["high"])
    assert float(second["p"]) == pytest.approx(paired_p_value([0.1, 0.11, 0.09]))
    assert (second["significant"], second["top"]) == ("true", "true")
    one = groups(fedavg=[0.5], fedsam=[0.6])
    assert r"$\mathbf{60.00}$ &" in write_latex(Comparison(one, one[0], 0.5))  # one seed: no deviation, no test


def test_differences_that_are_all_alike_are_not_significant():
    """One sample of 355 with each seed."""
    base, other = groups(fedavg=[281 / 355, 265 / 355], fedsam=[282 / 355, 266 / 355])
    made = Comparison([base, other], base, 0.5)
    assert "superscript" not in write_latex(made)
    row = list(csv.DictReader(io.StringIO(write_csv(made))))[1]
    assert (row["low"], row["high"], row["p"], row["significant"]) == ("", "", "", "")


def test_none_is_the_best_of_runs_judged_on_different_things():
    one, other = made("fedavg", 0, 0.5), made("fedsam", 0, 0.9)
    unscored = dataclasses.replace(one, records=[dataclasses.replace(one.records[0], accuracy=None)])
    mixed = group_runs([unscored, other])
    latex = write_latex(Comparison(mixed, mixed[0], 0.5))
    assert "mathbf" not in latex
    assert latex.startswith("% accuracies and losses, ")
    assert ",true," not in write_csv(Comparison(mixed, mixed[0], 0.5))


def test_names_are_no_commands():
    assert escape_latex("a_b & 50% {x}\n\\input") == r"a\_b \& 50\% \{x\} \textbackslash{}input"
    assert guard("=1+1") == "'=1+1"
    assert guard("fedavg") == "fedavg"


def test_one_kind_of_output_at_a_time(capsys, tmp_path):
    assert call(["compare", str(tmp_path), "--latex", "--csv"]) != 0
    assert "one of --json, --latex and --csv" in capsys.readouterr().err


def test_runs_that_have_reached_nothing_yet_are_a_row_without_numbers():
    begun = group_runs([dataclasses.replace(made("fedavg", 0, 0.5), records=[], result={})])
    (row,) = csv.DictReader(io.StringIO(write_csv(Comparison(begun, begun[0], 0.0))))
    assert (row["method"], row["best_mean"], row["top"]) == ("fedavg", "", "false")
    assert r"fedavg & -- & -- & -- \\" in write_latex(Comparison(begun, begun[0], 0.0))


def losing(method, *lasts):
    """Runs that are judged on a loss; of some the last one is not finite."""
    runs = []
    for seed, last in enumerate(lasts):
        run = made(method, seed, 0.0)
        result = {"best": 0.5 + seed / 100, "last": last, "mean_last": last}
        records = [dataclasses.replace(run.records[0], accuracy=None)]
        runs.append(dataclasses.replace(run, records=records, result=result))
    return runs


def test_what_a_seed_has_no_number_of_is_told_and_is_neither_bold_nor_starred(capsys):
    """The two that are left of fedsam are lower than all of fedavg, and differ from them by nearly the same."""
    base, other = group_runs([*losing("fedavg", 0.31, 0.32, 0.33), *losing("fedsam", None, 0.2, 0.2101)])
    for baseline in (base, other):
        compared = Comparison([base, other], baseline, 0.5, "last")
        latex = write_latex(compared)
        rows = {line.split(" & ")[0]: line.split(" & ")[1:] for line in latex.splitlines() if " & " in line}
        told = "fedsam: last, mean of last over 2 of 3 seeds, since seed 0 gave no number"
        assert f"% {told}; " in latex
        assert "superscript" not in latex
        assert ["mathbf" in cell for cell in rows["fedsam"][:3]] == [True, False, False]
        first, second = csv.DictReader(io.StringIO(write_csv(compared)))
        assert (first["top"], second["top"]) == ("true", "false")
        assert first["significant"] == second["significant"] == ""
        assert (first["lacking"], second["lacking"]) == ("0", "1")
        assert compared.document()["gaps"] == [told]
        show_accuracy(compared)
        shown = capsys.readouterr().out
        assert "2 of 3" in shown
        assert told in shown
    assert Comparison([base], base, 0.5).gaps == []


def test_a_row_that_lacks_a_seed_is_not_bold_where_it_equals_the_best():
    pair = group_runs([*losing("fedavg", 0.2, 0.2, 0.2), *losing("fedsam", None, 0.2, 0.2)])
    lines = write_latex(Comparison(pair, pair[0], 0.5)).splitlines()
    bold = {line.split(" & ")[0]: ["mathbf" in cell for cell in line.split(" & ")[1:4]] for line in lines}
    assert (bold["fedavg"], bold["fedsam"]) == ([True, True, True], [True, False, False])


def test_a_table_says_what_its_numbers_are_over(capsys):
    for overs, title in (((7, 7), "Mean of last 7"), ((7, 8), "Mean of last")):
        runs = [dataclasses.replace(run, result=run.result | {"mean_last_over": over})
                for run, over in zip((made("fedavg", 0, 0.5), made("fedavg", 1, 0.6)), overs, strict=True)]  # fmt: skip
        found = group_runs(runs)
        assert rf"& {title} \\" in write_latex(Comparison(found, found[0], 0.5))
        show_accuracy(Comparison(found, found[0], 0.5))
        printed = capsys.readouterr().out
        assert f"{title.lower()}  " in printed
        assert "± is the standard deviation over seeds" in printed


def test_the_method_that_differences_are_to_is_told_where_nobody_named_it(capsys):
    """A folder does not say which run was the first, so the first by name is taken."""
    found = groups(fedavg=[0.5, 0.6], fedsam=[0.48, 0.59])
    told = "differences are to fedavg, the first here; --baseline METHOD takes another"
    for form in ("", "latex", "csv", "json"):
        show(found, None, None, form)
        printed = capsys.readouterr()
        assert (told in printed.out) is (form == "")
        assert (told in printed.err) is (form in ("latex", "csv"))
    for some, baseline in ((found, "fedsam"), (found[:1], None)):
        for form in ("", "csv"):
            show(some, None, baseline, form)
            assert "--baseline" not in "".join(capsys.readouterr())


def test_seeds_that_are_not_all_paired_are_counted(capsys):
    """The mean of fedsam is above that of fedavg, and its difference over the seeds that both have is below 0."""
    even = groups(fedavg=[0.5, 0.6], fedsam=[0.48, 0.59])
    uneven = groups(fedavg=[0.5, 0.6], fedsam=[0.48, 0.59, 0.9])
    latex = write_latex(Comparison(uneven, uneven[0], 0.5))
    assert r"Mean of last & Seeds & Pairs \\" in latex
    assert r"\begin{tabular}{lrrrrr}" in latex
    rows = [line.split(" & ")[-2:] for line in latex.splitlines() if " & " in line][1:]
    assert rows == [["2", r" \\"], ["3", r"2 \\"]]
    assert "Pairs" not in write_latex(Comparison(even, even[0], 0.5))
    table = list(csv.DictReader(io.StringIO(write_csv(Comparison(uneven, uneven[0], 0.5)))))
    assert [(row["seeds"], row["pairs"], row["lacking"]) for row in table] == [("2", "", "0"), ("3", "2", "0")]
    for found, told in ((even, False), (uneven, True)):
        show(found, None, None, "")
        printed = capsys.readouterr()
        assert ("pairs" in printed.out) is told
        assert ("fedsam and fedavg share some seeds only (0, 1): their difference is" in printed.err) is told


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0.25, 0.5, ("0.2500", "0.5000", "-0.2500")),  # as ever
        (1e-6, 4.1e-5, ("0.00000100", "0.00004100", "-0.00004000")),
        (4.1e-8, 1.6e-3, ("4.100e-08", "1.600e-03", "-1.600e-03")),
        (0.5, 1.6e36, ("5.000e-01", "1.600e+36", "-1.600e+36")),
        (0.0, 0.5, ("0.0000", "0.5000", "-0.5000")),
    ],
)
def test_losses_that_differ_are_shown_to_differ(low, high, shown, capsys):
    """Those near 1 with four digits behind the point, small ones with more, very small and very large ones raised."""
    runs = [*losing("fedavg", high, high), *losing("fedsam", low, low)]
    runs = [dataclasses.replace(run, result={"best": run.result["last"]}) for run in runs]
    pair = group_runs(runs)
    compared = Comparison(pair, pair[0], 0.5)
    show_accuracy(compared)
    printed = capsys.readouterr().out
    assert all(word in printed for word in shown)
    latex = write_latex(compared)
    (bold,) = [line for line in latex.splitlines() if "mathbf" in line]
    assert bold.startswith("fedsam & ")  # the least
    assert [row["top"] for row in csv.DictReader(io.StringIO(write_csv(compared)))] == ["false", "true"]
    assert ("times 10^{-8}" in latex) is (low == 4.1e-8)
    assert not re.search(r"\de[+-]", latex)
