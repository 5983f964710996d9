"""Single rules against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

import fedkeel as fk
from fedkeel.core.objective import Given
from fedkeel.core.objectives import Calibrated, Distilled
from fedkeel.core.trees import cosine, stack
from fedkeel.rules.agreement import cluster_directions, unit_rows
from fedkeel.rules.critical import tensor_scores
from fedkeel.rules.learned import Attraction, adam_step
from fedkeel.rules.perturbations import by_tensor_number
from fedkeel.rules.probes import row_cosine, sketch

ZERO = torch.tensor(0.0, dtype=torch.float64)


def tree(**leaves):
    return fk.Tree.of({name: torch.tensor(value, dtype=torch.float64) for name, value in leaves.items()})


def at(params, start=None, message=None, gradient=None, step=0, loss=None):
    return fk.Local(
        params, start or params, message or {"params": params}, gradient, ZERO + 0.1, torch.tensor(step), ZERO + 2,
        torch.tensor(0), loss
    )  # fmt: skip


def reports(**slots):
    return {name: v if isinstance(v, fk.Tree) else torch.tensor(v, dtype=torch.float64) for name, v in slots.items()}


def stacked(*rows):
    return stack([tree(w=row) for row in rows])


def near(found, expected, atol=1e-6):
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=atol, rtol=0)


# ---- weights -------------------------------------------------------------------------------------------------------
def test_weights_from_losses():
    losses = reports(loss=[1.0, 2.0, 3.0], size=[1.0, 1.0, 1.0])
    near(fk.ByOthersLoss()(losses, {}), [5 / 12, 1 / 3, 1 / 4])
    near(fk.ByLoss()(losses, {}), [6 / 11, 3 / 11, 2 / 11], 1e-7)
    near(fk.ByLoss()(reports(loss=[1.0, 0.0, 3.0], size=[1.0, 1.0, 1.0]), {}), [3 / 4, 0, 1 / 4], 1e-7)
    near(fk.ByLoss()(reports(loss=[0.0, 0.0], size=[1.0, 3.0]), {}), [1 / 2, 1 / 2])
    near(fk.ByOthersLoss()(reports(loss=[1.0, 0.0, 3.0], size=[1.0, 1.0, 1.0]), {}), [3 / 4, 0, 1 / 4])
    near(fk.ByOthersLoss()(reports(loss=[0.0, 3.0], size=[1.0, 1.0]), {}), [0.0, 1.0])
    near(fk.ByOthersLoss()(reports(loss=[3.0], size=[1.0]), {}), [1.0])
    near(fk.ByOthersLoss()(reports(loss=[0.0, 0.0], size=[1.0, 1.0]), {}), [0.5, 0.5])


def test_q_fedavg():
    given = reports(loss_before=[1.0, 2.0], lr=[0.1, 0.1], size=[1.0, 1.0]) | {"delta": stacked([-0.1, 0], [0, -0.2])}
    near(given["delta"].average(fk.Fair(1.0)(given, {}))["w"], [-0.028571, -0.114286])
    near(given["delta"].average(fk.Fair(0.0)(given, {}))["w"], [-0.05, -0.1])
    near(fk.FairShares(1.0)(given, {}), [1 / 3, 2 / 3])
    unequal = given | {"size": torch.tensor([3.0, 1.0])}
    near(fk.FairShares(1.0)(unequal, {}), [3 / 5, 2 / 5])
    near(fk.FairShares(0.0)(unequal, {}), [3 / 4, 1 / 4])


def test_powers_of_losses_stay_in_the_range_of_numbers():
    """Losses a F with updates √a as long have the weights of F; here a is 1e8, whose 15th power is no float."""
    short, long = stacked([-0.1, 0], [0, -0.2]), stacked([-0.1 * 1e4, 0], [0, -0.2 * 1e4])
    given = {"loss_before": torch.tensor([1.0, 2.0]), "lr": torch.tensor([0.1, 0.1]), "size": torch.ones(2)}
    for scale, delta in ((1.0, short), (1e8, long)):
        scaled = given | {"loss_before": scale * given["loss_before"], "delta": delta}
        expected = fk.Fair(15.0)({n: v if isinstance(v, fk.Tree) else v.double() for n, v in scaled.items()}, {})
        near(fk.Fair(15.0)(scaled, {}).double(), expected.tolist(), 1e-6)
        near(expected, fk.Fair(15.0)({**given, "delta": short}, {}).double().tolist(), 1e-6)
        near(fk.FairShares(15.0)(scaled, {}).double(), [1 / (1 + 2**15), 2**15 / (1 + 2**15)])
    assert fk.Fair(5.0)(given | {"loss_before": torch.zeros(2), "delta": short}, {}).isfinite().all()


@pytest.mark.parametrize("weights", [fk.ByLoss(), fk.ByOthersLoss(), fk.Fair(1.0), fk.FairShares(1.0)], ids=repr)
def test_losses_below_zero_have_no_weight(weights):
    given = reports(loss=[1.0, -0.5], loss_before=[1.0, -0.5], lr=[0.1, 0.1], size=[1.0, 1.0])
    with pytest.raises(fk.RunError, match=r"one has -0\.5: a loss below 0 has no weight"):
        weights(given | {"delta": stacked([-0.1, 0], [0, -0.2])}, {})
    rounded = given | {"loss": torch.tensor([1.0, -1e-8]), "loss_before": torch.tensor([1.0, -1e-8])}
    assert weights(rounded | {"delta": stacked([-0.1, 0], [0, -0.2])}, {}).isfinite().all()


def test_feddisco():
    given = reports(size=[5.0, 3.0, 2.0], histogram=[[5.0, 5], [10, 0], [9, 1]])
    near(fk.ByDiscrepancy()(given, {}), [0.75, 0.091771, 0.158229])
    near(fk.ByDiscrepancy(a=100.0, b=-100.0)(given, {}), [0.5, 0.3, 0.2])  # nothing left: by size


def test_fedscam_weights_and_radii():
    heterogeneity = torch.tensor([1.0, 2, 4]) * (1 - 0.5 * torch.tensor([0.5, 0, -0.5])).clamp(min=0)
    assert heterogeneity.tolist() == [0.75, 2, 5]
    given = reports(size=[100.0, 100, 200], heterogeneity=[0.75, 2.0, 5.0], alignment=[0.5, 0.0, -0.5])
    near(fk.ByAgreement(1.0, 0.8)(given, {}), [0.6, 0.25, 0.15])
    given["alignment"] -= 10  # nobody agrees: by size
    near(fk.ByAgreement(1.0, 0.8)(given, {}), [0.25, 0.25, 0.5])
    for h, radius in ((0.75, 0.028571), (2.0, 0.016667), (5.0, 0.008333)):
        state = {"heterogeneity": ZERO + h}
        found = fk.AdaptiveRadius(0.05, 1.0).step(tree(w=[3.0, 4.0]), state, at(tree(w=[0.0, 0.0])))[0]
        assert found.norm().item() == pytest.approx(radius, abs=1e-6)


def test_fedscams_norm_is_the_mean_of_this_rounds_batches():
    g, rule, client = tree(w=[3.0, 4.0]), fk.MeasureNorm(2), {"norm": ZERO + 7}  # 7 is left from the last round
    for step in range(2):
        client = rule.step((1 + step) * g, client, at(g, step=step))[1]
    assert client["norm"].item() == (5 + 10) / 2


@pytest.mark.parametrize(("batches", "before", "norm"), [(1, 7.0, 5.0), (2, 1.5, 4.0)])
def test_fedscams_pilot_climbs_half_of_the_radius_that_its_norm_allows(batches, before, norm):
    """½ ρ_max / (1 + α h_i), h_i the mean over the probe batches, of which this is the last."""
    g = tree(w=[3.0, 4.0])
    found, client = fk.PilotRadius(0.2, 3.0, batches).step(g, {"norm": ZERO + before}, at(g))
    assert client["norm"].item() == pytest.approx(norm)
    radius = 0.5 * 0.2 / (1 + 3 * norm)
    near(found["w"], [0.6 * radius, 0.8 * radius])


@pytest.mark.parametrize(
    ("kappa", "g", "alignment", "heterogeneity"),
    [(0.5, [-1.0, 0.0], 1.0, 1.0), (2.0, [-1.0, 0.0], 1.0, 0.0), (2.0, [1.0, 0.0], -1.0, 6.0)],
)
def test_fedscam_compares_the_first_step_with_the_last_global_move(kappa, g, alignment, heterogeneity):
    """c_i is the cosine of −g and the move, of the first batch alone; h̃_i = h_i max(0, 1 − κ c_i) with h_i = 2."""
    first, rule = tree(w=g), fk.MeasureAlignment(kappa)
    client = {"norm": ZERO + 2, "alignment": ZERO, "heterogeneity": ZERO}
    for step, batch in enumerate((first, -first, tree(w=[0.0, 1.0]))):
        client = rule.step(batch, client, at(first, message=reports(last_move=[1.0, 0.0]), step=step))[1]
        assert (client["alignment"].item(), client["heterogeneity"].item()) == (alignment, heterogeneity)


def test_opposed_updates_of_one_cluster_count_less():
    given = reports(size=[1.0, 1.0], heterogeneity=[0.0, 0.0], alignment=[0.0, 0.0])
    given["delta"] = stacked([2.0, 0.0], [-1.0, 0.1])
    near(fk.ByAgreement(clustering=True, lam=0.5)(given, {}), [2 / 3, 1 / 3])
    alike = given | {"delta": stacked([2.0, 0.0], [-2.0, 0.0])}  # the later of two that are as long
    near(fk.ByAgreement(clustering=True, lam=0.5)(alike, {}), [2 / 3, 1 / 3])
    square = given | {"delta": stacked([2.0, 0.0], [0.0, 1.0])}  # neither for nor against each other
    near(fk.ByAgreement(clustering=True, lam=0.5)(square, {}), [1 / 2, 1 / 2])


def test_every_direction_is_in_the_cluster_of_the_nearest_mean():
    for seed in range(5):
        z = unit_rows(torch.randn(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
        found = cluster_directions(z, 3)
        centres = unit_rows(torch.nn.functional.one_hot(found, 3).to(z).T @ z)
        assert torch.equal((z @ centres.T).argmax(1), found)


def test_three_bundles_of_equal_directions_are_three_clusters():
    """A direction that is a seed already is never drawn as another."""
    for count in range(2, 12):
        found = cluster_directions(torch.eye(3, dtype=torch.float64).repeat_interleave(count, 0), 3).view(3, count)
        assert len(found.unique()) == 3
        assert torch.equal(found, found[:, :1].expand(3, count))


def test_sketches_keep_angles_and_are_linear():
    generator = torch.Generator().manual_seed(0)
    a, b = (fk.Tree.of({"w": torch.randn(5000, dtype=torch.float64, generator=generator)}) for _ in range(2))
    mixed = a + 0.5 * b
    assert abs(row_cosine(sketch(a, 512), sketch(mixed, 512)) - cosine(a, mixed)) < 0.15
    torch.testing.assert_close(sketch(mixed, 512), sketch(a, 512) + 0.5 * sketch(b, 512))
    assert torch.equal(sketch(a, 5000), a.buffer)


def test_fedawa():
    w, delta = tree(w=[1.0, 0.0]), stacked([0.0, 1.0], [1.0, 0.0])
    spread = Attraction.of(delta, w)
    near(spread.apart, [0.292893, 0.0])
    assert spread.cost(torch.zeros(2, dtype=torch.float64)).item() == pytest.approx(0.853553, abs=1e-6)
    released = fk.ByAttraction(released=True)
    given = reports(size=[8.0, 2.0], client=[0.0, 1.0]) | {"delta": delta}
    near(released(given, {"params": w, "attraction": torch.zeros(1, dtype=torch.float64)}), [0.645656, 0.354344])
    server = released.server_step(w, {"params": w, "attraction": torch.zeros(1, dtype=torch.float64)}, given)[1]
    moved = torch.softmax(torch.tensor([0.8, 0.2], dtype=torch.float64) + server["attraction"], 0)
    assert moved[0].item() in (pytest.approx(0.645199, abs=1e-6), pytest.approx(0.646113, abs=1e-6))


def test_fedawa_remembers_clients_not_places():
    w, start = tree(w=[1.0, 0.0]), torch.zeros(1, dtype=torch.float64)
    given = reports(size=[1.0, 1.0], client=[5.0, 2.0]) | {"delta": stacked([0.0, 1.0], [1.0, 0.0])}
    kept = fk.ByAttraction().server_step(w, {"params": w, "attraction": start}, given)[1]["attraction"]
    assert len(kept) == 6
    assert kept[[0, 1, 3, 4]].abs().max() == 0
    assert kept[2] * kept[5] < 0


def test_fedlaw_gradient():
    """L = ½ w², w_k = 0 and 2, λ = ½ each, γ = 1: ∂L/∂x = (−½, ½), ∂L/∂y = 1."""
    state = {"models": stacked([0.0], [2.0]), "x": torch.zeros(2, dtype=torch.float64), "y": ZERO.clone()}
    state |= {f"{n}_{m}": torch.zeros_like(state[n]) for n in "xy" for m in ("first", "second")}
    here = fk.AtMixture().step(tree(w=[0.0]), state, at(tree(w=[7.0])))[0]
    assert here["w"].item() == pytest.approx(1.0 - 7.0)
    after = fk.LearnMixture(1.0).step(tree(w=[1.0]), state, at(tree(w=[7.0])))[1]
    near(after["x_first"] / 0.5, [-0.5, 0.5])
    assert (after["y_first"] / 0.5).item() == pytest.approx(1.0)
    direction = adam_step(torch.tensor([3.0, -2.0]), torch.zeros(2), torch.zeros(2), 1)[0]
    torch.testing.assert_close(direction, torch.tensor([1.0, -1.0]))


# ---- server --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("form", "expected"), [("heavy-ball", 5.61), ("ema", 0.561), ("nesterov", 8.049)])
def test_three_forms_of_server_momentum(form, expected):
    rule, update = fk.ServerMomentum(0.9, form), tree(w=[1.0])
    server, far = rule.server_slots(update), 0.0
    for _ in range(3):
        move, server = rule.server_step(update, server, {})
        far += move["w"].item()
    assert far == pytest.approx(expected)


def test_the_momentum_of_clients_that_take_unequally_many_steps():
    """Two steps of 2 and eight of 1 are ten steps of 1.2 on the way; the clients' own mean would be 1.5."""
    sent = reports(delta=stacked([-0.4], [-0.8]), steps=[2.0, 8.0], lr=[0.1, 0.1])
    momentum = [
        rule.server_step(tree(w=[0.0]), {}, sent)[1]["momentum"]
        for rule in (fk.ClientMomentum(0.1), fk.ClientMomentum(0.1, own_steps=True))
    ]
    near(momentum[0]["w"], [1.2])
    near(momentum[1]["w"], [1.5])
    near(momentum[0]["w"] * 0.1 * 5, (-sent["delta"].mean())["w"].tolist())  # K η m is how far the model moved
    _, server = fk.PersonalMomentum().server_step(
        tree(w=[0.0]), fk.PersonalMomentum().server_slots(tree(w=[0.0])),
        sent | reports(c_moved=stacked([0.0], [0.0]), population=2.0),
    )  # fmt: skip
    near(server["momentum"]["w"], [1.2])


@pytest.mark.parametrize(("sign", "alpha"), [(1.0, 0.9), (-1.0, 0.1)])
def test_fedwmsams_alpha_stays_between_a_tenth_and_nine_tenths(sign, alpha):
    """m points uphill: updates along it are against the momentum. 1 + cos is 2 or 0."""
    m, rule = tree(w=[1.0, 0.0]), fk.PersonalMomentum(alpha=0.5, smooth=1.0)
    sent = reports(c_moved=stacked([0.0, 0.0], [0.0, 0.0]), population=2.0, lr=[1.0, 1.0], steps=[1.0, 1.0])
    sent["delta"] = sign * stacked([2.0, 0.0], [3.0, 0.0])
    _, server = rule.server_step(m, rule.server_slots(m) | {"momentum": m}, sent)
    assert server["alpha"].item() == pytest.approx(alpha)


def test_squares_of_huge_updates_stay_in_the_range_of_numbers():
    """At weights of 1e20, whose squares are no float32, these rules come to what they come to in float64."""

    def combine(rule, dtype):
        huge = [stacked(*rows).to(dtype) * 1e20 for rows in ([[3.0, -1.0]], [[0.5, 0.1], [-0.2, 0.4], [0.3, -0.3]])]
        params, delta = fk.Tree(huge[0].buffer[0], huge[0].layout), huge[1]
        given = {"delta": delta, "size": torch.tensor([1.0, 2.0, 3.0], dtype=dtype), "client": torch.arange(3.0)}
        server = {"params": params} | rule.server_slots(params)
        given["weights"] = rule(given, server) if isinstance(rule, fk.Weighting) else given["size"] / 6
        given["update"] = delta.average(given["weights"])
        return rule.server_step(given["update"], server, given)[0]["w"].to(torch.float64) / 1e20

    extrapolations = (fk.Extrapolate(), fk.Extrapolate(1e38))  # by 3.6, and with ε / 1e20² = 0.01 by 2.6
    for rule in (*extrapolations, fk.Shrink(), fk.ByAttraction(steps=3, server_lr=0.3), fk.ByPlaces(3, 0.3)):
        torch.testing.assert_close(combine(rule, torch.float32), combine(rule, torch.float64), rtol=1e-4, atol=1e-5)


def test_fedlws_shrinks_by_layers():
    w = fk.Tree.of({"fc.weight": torch.tensor([3.0, 4.0], dtype=torch.float64)})
    delta = stack([fk.Tree.of({"fc.weight": torch.tensor(d, dtype=torch.float64)}) for d in ([0, 0.4], [0.6, 0])])
    update = fk.Shrink().server_step(delta.mean(), {"params": w}, {"delta": delta})[0]
    near((w + update)["fc.weight"], [3.297428, 4.196727])
    nothing = fk.Shrink().server_step(delta.mean(), {"params": w.zeros()}, {"delta": delta})[0]
    near(nothing["fc.weight"], [0.3, 0.2])
    unchanged = fk.Shrink(tau_max=0.0).server_step(delta.mean(), {"params": w}, {"delta": delta})[0]
    near(unchanged["fc.weight"], [0.3, 0.2])  # though tau_min is 0.01


# ---- perturbations -------------------------------------------------------------------------------------------------
def test_fedlesam_released_and_paper():
    u = fk.Tree.of({"a": torch.tensor([0.3, -0.1]), "b": torch.tensor([0.5, 0.2, 0.4])})
    released = -0.1 * by_tensor_number(u)
    assert released["a"].tolist() == pytest.approx([-0.075, -0.075], abs=1e-6)
    assert released["b"].tolist() == pytest.approx([0.025] * 3, abs=1e-6)
    state = {"last_seen": u.zeros(), "seen": torch.tensor(1.0)}
    paper = fk.GlobalDirection(0.1).step(u, state, at(u))[0]
    assert paper["a"].tolist() == pytest.approx([-0.04045, 0.01348], abs=1e-5)
    assert fk.GlobalDirection(0.1).step(u, state | {"seen": torch.tensor(0.0)}, at(u))[0].norm() == 0


def test_fedsmoo_dual_limits_itself():
    rule, state, seen = fk.AdmmPerturbation(0.1), {"mu_i": tree(w=[0.0])}, []
    for _ in range(14):
        _, state = rule.step(tree(w=[0.95]), state, at(tree(w=[0.0]), message={"s": tree(w=[0.0])}))
        seen.append(round(state["mu_i"]["w"].item(), 4))
    assert seen == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 0.9, 1.0, 0.9, 1.0]


def test_fedsol_does_not_climb_along_noise_where_it_begins():
    w, g = tree(w=[3.0, 4.0]), tree(w=[1e-3, 0.0])
    here, _ = fk.DistilAscent(0.5).step(g, {}, at(w, message={"params": w}))
    near(here["w"], [0.0, 0.0])  # whatever the gradient of a flat distance was rounded to
    near(fk.DistilAscent(0.5).step(g, {}, at(w, message={"params": w.zeros()}))[0]["w"], [0.5, 0.0])


def test_fedsol_radius_per_parameter():
    w, g = tree(w=[3.0, 4.0]), tree(w=[0.0, 5.0])
    near(fk.DistilAscent(1.0, adaptive=True).step(g, {}, at(w, message={"params": w.zeros()}))[0]["w"], [0.0, 0.8])
    near(fk.DistilAscent(1.0).step(1e-9 * g, {}, at(w))[0]["w"], [0.0, 0.0])  # rounding noise


def test_plgu_spares_what_is_personal():
    w, sent, g = tree(a=[2.0], b=[2.0]), tree(a=[2.0], b=[1.0]), tree(a=[1.0], b=[1.0])
    found = fk.SharedLayers(0.05).step(g, {}, at(w, message={"params": sent}))[0]
    assert (found["a"].item(), found["b"].item()) == (pytest.approx(0.1), pytest.approx(0.0, abs=1e-9))


def test_plgu_compares_layers_of_any_length_by_their_mean_square():
    """ρ (1 − Λ_l) ‖w_l‖ along g_l: four numbers that moved by 1 each have Λ = ½ beside one that moved by 2."""
    w, g = tree(a=[1.0] * 4, b=[2.0]), tree(a=[0.0, 0.0, 3.0, 4.0], b=[1.0])
    found = fk.SharedLayers(0.1).step(g, {}, at(w, message={"params": w.zeros()}))[0]
    near(found["a"], [0.0, 0.0, 0.1 * 0.5 * 2 * 0.6, 0.1 * 0.5 * 2 * 0.8])
    near(found["b"], [0.0])


# ---- critical layers -----------------------------------------------------------------------------------------------
def test_layer_radius():
    g = tree(one=[3.0, 0.0], two=[0.0, 4.0])
    critical = tensor_scores(g).zeros() | tree(one=1.0)
    found = fk.LayerRadius(0.05, 0.9).step(g, {"critical": critical}, at(g))[0]
    near(found["one"], [0.54, 0.0])
    near(found["two"], [0.0, 0.04])
    assert found.norm().item() == pytest.approx(0.54148, abs=1e-5)


def test_effects_are_added_up_over_the_last_epoch():
    """Two epochs of six steps: three times |g_l · ε_l|, with ε = (0.54, 0) and (0, 0.04) as above."""
    g, rule = tree(one=[3.0, 0.0], two=[0.0, 4.0]), fk.ByTaylor(0.05, 0.9, epochs=2)
    client = {"critical": tensor_scores(g).zeros() | tree(one=1.0), "sensitivity": tree(one=9.0, two=9.0)}
    for step in range(6):
        client = rule.step(g, client, at(g, gradient=g, step=step)._replace(steps=torch.tensor(6)))[1]
    near(client["sensitivity"].buffer, [3 * 3 * 0.54, 3 * 4 * 0.04])


@pytest.mark.parametrize("loss", [3.0, -1.0])
def test_a_layer_is_as_sensitive_whether_the_loss_rises_or_falls_without_it(loss):
    """|L(w + ε) − L(w + ε − ε_l)|, the first of which is 1."""
    params = tree(**{"fc.weight": [[1.0, 2.0], [3.0, 4.0]]})
    client = {"perturbed_loss": ZERO + 1, "sensitivity": tensor_scores(params)}
    _, client = fk.NoteRemoval().step(params, client, at(params, step=1, loss=ZERO + loss))
    assert client["sensitivity"]["fc.weight"].item() == 2.0


@pytest.mark.parametrize(
    ("after", "change", "span"), [([5.0, 6, 7], 25.0, 0.0), ([0.0, 2, 2], 1 / 3, 1 / 12), ([1.0, 1, 1], 2 / 3, -1.0)]
)
def test_sensitivities(after, change, span):
    before, now = tree(w=[0.0, 1.0, 2.0]), tree(w=after)
    for rule, expected in ((fk.ByChange(), change), (fk.ByNorm(), 3 * change), (fk.ByRange(), span)):
        _, state = rule.finish({}, {"sensitivity": tensor_scores(now)}, at(now, start=before))
        assert state["sensitivity"]["w"].item() == pytest.approx(expected)


def test_critical_layers_are_never_biases_or_shortcuts_and_never_too_many():
    names = {"conv.weight": 0.2, "conv.bias": 9.0, "bn.weight": 8.0, "fc.weight": 0.5, "last.weight": 0.0}
    names |= {"layer2.0.downsample.0.weight": 7.0, "shortcut.0.weight": 6.0}
    params = fk.Tree.of({name: torch.zeros((2,) if "bias" in name else (2, 2)) for name in names})
    state = {
        "critical": tensor_scores(params),
        "sensitivity": fk.Tree.of({n: torch.tensor(v) for n, v in names.items()}),
    }

    def chosen(rule):
        critical = rule.finish({}, state, at(params))[1]["critical"]
        return {name for name, value in critical.items() if value == 1}

    assert chosen(fk.CriticalLayers(1)) == {"fc.weight"}
    assert chosen(fk.CriticalLayers(99)) == {"conv.weight", "fc.weight", "last.weight"}
    assert chosen(fk.CriticalLayers(1, "lowest")) == {"conv.weight"}


@pytest.mark.parametrize("sensitivity", ["change", "norm", "minmax", "taylor", "exact"])
@pytest.mark.parametrize("choose", ["highest", "lowest", "random"])
def test_every_sensitivity_and_choice_runs(small, sensitivity, choose):
    method = fk.METHODS["fedfsa"](sensitivity=sensitivity, choose=choose, top=1)
    run = fk.run(
        fk.Experiment(problem=small, method=method, rounds=2, epochs=2, batch_size=4, lr=0.05), engine="serial"
    )
    assert not any(record.dropped for record in run.records)


# ---- objectives ----------------------------------------------------------------------------------------------------
def test_calibrated_and_distilled_losses():
    z, counts = torch.tensor([[1.0, 0.0]]), torch.tensor([16.0, 1.0])
    target = torch.tensor([0])
    assert Calibrated(1.0).losses(z, target, Given(histogram=counts)).item() == pytest.approx(0.201413, abs=1e-6)
    alone = Calibrated(1.0).losses(z, target, Given(histogram=torch.tensor([16.0, 0.0])))
    assert alone.item() == pytest.approx(0.0, abs=1e-6)
    assert Distilled(3.0).losses(z, target, Given(reference=z)).item() == pytest.approx(0.0, abs=1e-7)
    other = torch.tensor([[0.0, 3.0]])
    p, q = torch.softmax(other / 3, -1), torch.softmax(z / 3, -1)
    away = Distilled(3.0).losses(z, target, Given(reference=other)).item()
    assert away == pytest.approx((p * (p / q).log()).sum().item())


# ---- personal ------------------------------------------------------------------------------------------------------
def passes_until_rest(losses, threshold):
    """After how many passes FedALA's W rests."""
    own, sent = tree(w=[0.0]), tree(w=[2.0])
    rule = fk.LearnMerge(1.0, passes=len(losses), threshold=threshold)
    client = {"own_head": own, "merge": own.ones()} | rule.client_slots(own)
    for number, loss in enumerate(losses, 1):
        client = rule.finish({}, client, at(sent)._replace(start=sent, loss=torch.tensor(loss)))[1]
        if client["merge_rests"] > 0:
            return number
    return None


def test_fedala_has_converged_when_its_last_ten_losses_vary_less_than_the_threshold():
    """Not before the eleventh pass; the deviation is that of the ten themselves: 0.05 for 0, 0.1, 0, 0.1, …"""
    swinging = [0.1 * (number % 2) for number in range(20)]
    assert passes_until_rest([1.0] * 20, 0.1) == 11
    assert passes_until_rest(swinging, 0.0501) == 11
    assert passes_until_rest(swinging, 0.0499) is None
    assert passes_until_rest([5.0, 4.0, *swinging], 0.0501) == 12


def test_fedala_merges_in_part():
    """θ_i = 0, θ_g = 2, gradient 0.3, W = 1: W becomes 0.4 and θ̂ = 0.8."""
    own, sent = tree(w=[0.0]), tree(w=[2.0])
    state = {"own_head": own, "merge": own.ones()}
    _, state = fk.LearnMerge(1.0).step(tree(w=[0.3]), state, at(sent))
    assert state["merge"]["w"].item() == pytest.approx(0.4)
    assert fk.BeginMerged().start(sent, state, {})[0]["w"].item() == pytest.approx(0.8)
    moved = fk.Merge(("w",)).step(sent.zeros(), state, at(sent))[0]
    assert (sent + moved)["w"].item() == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("rule", "slot", "sent", "gain"),
    [(fk.AdmmPerturbation(0.1), "s", "mu_i", 0.1), (fk.MomentumVariates(gamma=1.0), "c", "c_i", 1.0)],
)
def test_what_all_participants_share_is_the_mean_of_theirs_whatever_their_weights(rule, slot, sent, gain):
    """FedSMOO's s and FedMoSWA's c are plain means over clients, also where updates are averaged by size."""
    theirs = stacked([3.0, 0.0], [0.0, 3.0])
    told = reports(weights=[0.9, 0.1], population=2.0) | {sent: theirs, "c_moved": theirs, "delta": theirs}
    server = {name: tree(w=[0.0, 0.0]) for name in ("s", "c")}
    _, after = rule.server_step(tree(w=[0.0, 0.0]), server, told)
    mean = torch.tensor([1.5, 1.5], dtype=torch.float64)
    near(after[slot]["w"], (gain * (mean / mean.norm() if slot == "s" else mean)).tolist())


def test_averaged_moments_stay_a_mean_where_weights_do_not_sum_to_one():
    """q-FedAvg's and FedNova's weights are no shares: moments on which all clients agree stay as they are."""
    rule = fk.LocalMomentum(moments="average")
    told = reports(weights=[0.5, 2.5], local_momentum_count=[4.0, 4.0])
    told |= {"local_momentum": stacked([1.0, 2.0], [1.0, 2.0])}
    server = {"local_momentum": tree(w=[0.0, 0.0]), "local_momentum_count": ZERO}
    _, after = rule.server_step(tree(w=[0.0, 0.0]), server, told)
    near(after["local_momentum"]["w"], [1.0, 2.0])
    near(after["local_momentum_count"], 4.0)
