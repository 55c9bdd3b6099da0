"""Every loss against its slow twin, its gradient against the twin's, and the places where exponentials overflow."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from dgz import losses

SMALL = settings(max_examples=60, deadline=None)
GATES = ["argmax_all", "above_true", "always"]
LAMBDAS = st.sampled_from([0.0, 0.005, 0.3, 1.0, 4.0])

# Every loss by name, as functions of logits, labels and the mask of seen classes.
LOSSES = {
    "plain": lambda logits, y, seen: losses.cross_entropy(logits, y),
    "incremental": lambda logits, y, seen: losses.incremental_cross_entropy(logits, y, seen, 0.3, 0.7),
    "incremental, λ1 = 0": lambda logits, y, seen: losses.incremental_cross_entropy(logits, y, seen, 0.0, 0.0),
    **{
        f"{gate}, λ1 = {weight}": lambda logits, y, seen, weight=weight, gate=gate: losses.revised_cross_entropy(
            logits, y, seen, weight, gate
        )
        for gate in GATES
        for weight in (0.0, 0.3, 4.0)
    },
}


# --- Inputs.
def task(logits, y, seen_ids):
    logits = torch.as_tensor(logits, dtype=torch.double)
    seen = torch.zeros(logits.shape[-1], dtype=torch.bool)
    seen[list(seen_ids)] = True
    return SimpleNamespace(logits=logits, y=torch.as_tensor(y), seen=seen, seen_ids=sorted(seen_ids))


@st.composite
def tasks(draw, least_unseen=0):
    """Small batches of logits on a grid of quarters (many ties), of seen and unseen rows in any order."""
    n_classes = draw(st.integers(1 + least_unseen, 5))
    seen_ids = draw(st.permutations(range(n_classes)))[: draw(st.integers(1, n_classes - least_unseen))]
    y = draw(st.lists(st.integers(0, n_classes - 1), min_size=1, max_size=6))
    row = st.lists(st.integers(-16, 16), min_size=n_classes, max_size=n_classes)
    logits = draw(st.lists(row, min_size=len(y), max_size=len(y)))
    return task(np.array(logits) / 4, y, seen_ids)


def random_task(seed, n=12, n_seen=4, n_unseen=3, scale=3.0):
    """Logits without ties: far from the points where a gate opens, so that differences are derivatives."""
    rng = np.random.default_rng(seed)
    n_classes = n_seen + n_unseen
    y = rng.integers(0, n_classes, n)
    y[0], y[1] = 0, n_classes - 1
    return task(scale * rng.normal(size=(n, n_classes)), y, range(n_seen))


@st.composite
def linear_tasks(draw):
    """Rows, labels and weights of a linear classifier, and its temperature."""
    n_classes, d, n = draw(st.integers(2, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 6))
    numbers = st.integers(-8, 8)
    x = np.array(draw(st.lists(numbers, min_size=n * d, max_size=n * d))).reshape(n, d) / 4
    weights = np.array(draw(st.lists(numbers, min_size=n_classes * d, max_size=n_classes * d))).reshape(-1, d) / 4
    y = draw(st.lists(st.integers(0, n_classes - 1), min_size=n, max_size=n))
    result = task(np.zeros((n, n_classes)), y, range(draw(st.integers(1, n_classes - 1))))
    result.x, result.weights, result.temperature = x, weights, draw(st.sampled_from([0.5, 1.0, 3.0]))
    return result


def with_gradient(loss, logits):
    logits = logits.detach().clone().requires_grad_()
    value = loss(logits)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    return value.detach(), gradient


def differences(loss, logits, step=1e-5):
    """The gradient of a slow twin, one central difference per logit."""
    rows = logits.tolist()
    result = [[0.0] * len(row) for row in rows]
    for i, row in enumerate(rows):
        for c, value in enumerate(row):
            row[c] = value + step
            above = loss(rows)
            row[c] = value - step
            result[i][c] = (above - loss(rows)) / (2 * step)
            row[c] = value
    return result


def of_weights(task, loss):
    """−∂L/∂W by autograd, for the logits of a linear classifier."""
    weights = torch.tensor(task.weights, requires_grad=True)
    value = loss(torch.tensor(task.x) @ weights.T / task.temperature)
    return -torch.autograd.grad(value, weights)[0]


# --- Twins.
@SMALL
@given(tasks())
def test_cross_entropy_is_its_twin(task):
    twin = reference.cross_entropy(task.logits.tolist(), task.y.tolist())
    assert losses.cross_entropy(task.logits, task.y).item() == pytest.approx(twin, rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("gate", GATES)
@SMALL
@given(tasks(), LAMBDAS)
def test_revised_cross_entropy_is_its_twin(gate, task, lambda_1):
    twin = reference.revised_cross_entropy(task.logits.tolist(), task.y.tolist(), task.seen_ids, lambda_1, gate)
    value = losses.revised_cross_entropy(task.logits, task.y, task.seen, lambda_1, gate)
    assert value.item() == pytest.approx(twin, rel=1e-12, abs=1e-13)


@SMALL
@given(tasks(), LAMBDAS, LAMBDAS)
def test_incremental_cross_entropy_is_its_twin(task, lambda_1, lambda_2):
    twin = reference.incremental_cross_entropy(task.logits.tolist(), task.y.tolist(), task.seen_ids, lambda_1, lambda_2)
    value = losses.incremental_cross_entropy(task.logits, task.y, task.seen, lambda_1, lambda_2)
    assert value.item() == pytest.approx(twin, rel=1e-12, abs=1e-13)


@SMALL
@given(tasks(), LAMBDAS)
def test_the_default_gate_is_the_appendix_listing(task, lambda_1):
    # Where an unseen class ties with a seen one for the top, the listing takes whichever comes first; skipped here.
    for row, label in zip(task.logits, task.y, strict=True):
        top = row == row.max()
        if task.seen[label] and (top & task.seen).any() and (top & ~task.seen).any():
            return
    listed = reference.revised_cross_entropy_listed(task.logits.tolist(), task.y.tolist(), task.seen_ids, lambda_1)
    value = losses.revised_cross_entropy(task.logits, task.y, task.seen, lambda_1)
    assert value.item() == pytest.approx(listed, rel=1e-12, abs=1e-13)


def test_the_listing_and_the_text_differ_where_a_seen_class_tops_the_unseen_one():
    # Class 0 is true, class 1 is seen and on top, class 2 is unseen and between them.
    data = task([[0.0, 2.0, 1.0]], [0], [0, 1])
    by_gate = [losses.revised_cross_entropy(data.logits, data.y, data.seen, 4.0, gate).item() for gate in GATES]
    without, with_it = math.log(1 + math.e**2), math.log(1 + math.e**2 + 4 * math.e)
    assert by_gate == pytest.approx([without, with_it, with_it])


def test_a_tie_leaves_the_gate_closed():
    data = task([[1.0, 0.0, 1.0]], [0], [0, 1])
    for gate, is_open in (("argmax_all", False), ("above_true", False), ("always", True)):
        value = losses.revised_cross_entropy(data.logits, data.y, data.seen, 2.0, gate)
        assert value.exp().item() == pytest.approx(1 + math.exp(-1) + 2 * is_open)


@SMALL
@given(tasks(least_unseen=1))
def test_each_gate_is_open_wherever_the_one_before_is(task):
    # With λ1 = 1 an open gate adds something, so that a row's loss tells whether it is open.
    def each_row(gate, lambda_1):
        rows = zip(task.logits[:, None], task.y[:, None], strict=True)
        return [losses.revised_cross_entropy(row, y, task.seen, lambda_1, gate).item() for row, y in rows]

    closed = each_row("always", 0.0)
    opened = [[value > shut for value, shut in zip(each_row(gate, 1.0), closed, strict=True)] for gate in GATES]
    for narrow, wide in itertools.pairwise(opened):
        assert all(w for n, w in zip(narrow, wide, strict=True) if n)
    assert opened[2] == task.seen[task.y].tolist()  # always open for seen rows, and unseen rows have none
    for gate, is_open in zip(GATES, opened, strict=True):
        for row, label, value in zip(task.logits.tolist(), task.y.tolist(), is_open, strict=True):
            twin = reference.gate_is_open(reference.probabilities(row), label, task.seen_ids, gate)
            assert value == (twin and label in task.seen_ids)


@SMALL
@given(linear_tasks(), LAMBDAS, LAMBDAS)
def test_eq_7_is_its_twin_and_the_derivative_of_eq_6(task, lambda_1, lambda_2):
    x, weights = torch.tensor(task.x), torch.tensor(task.weights)
    step = losses.incremental_gradient(x, task.y, weights, task.seen, task.temperature, lambda_1, lambda_2)
    twin = reference.incremental_gradient(
        task.x.tolist(), task.y.tolist(), task.weights.tolist(), task.seen_ids, task.temperature, lambda_1, lambda_2
    )
    np.testing.assert_allclose(step, twin, rtol=1e-11, atol=1e-13)
    by_autograd = of_weights(
        task, lambda logits: losses.incremental_cross_entropy(logits, task.y, task.seen, lambda_1, lambda_2)
    )
    np.testing.assert_allclose(step, by_autograd[~task.seen], rtol=1e-11, atol=1e-13)


@SMALL
@given(linear_tasks())
def test_proposition_1_is_its_twin_and_the_derivative_of_eq_2(task):
    pull, push = losses.pull_and_push(torch.tensor(task.x), task.y, torch.tensor(task.weights), task.temperature)
    twins = reference.pull_and_push(task.x.tolist(), task.y.tolist(), task.weights.tolist(), task.temperature)
    np.testing.assert_allclose(pull, twins[0], rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(push, twins[1], rtol=1e-11, atol=1e-13)
    by_autograd = of_weights(task, lambda logits: losses.cross_entropy(logits, task.y))
    np.testing.assert_allclose(pull + push, by_autograd, rtol=1e-11, atol=1e-13)


@SMALL
@given(linear_tasks())
def test_eq_7_with_both_weights_1_is_proposition_1(task):
    x, weights = torch.tensor(task.x), torch.tensor(task.weights)
    step = losses.incremental_gradient(x, task.y, weights, task.seen, task.temperature, 1.0, 1.0)
    pull, push = losses.pull_and_push(x, task.y, weights, task.temperature)
    np.testing.assert_allclose(step, (pull + push)[~task.seen], rtol=1e-11, atol=1e-13)


# --- Gradients.
@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_those_of_the_twins(seed):
    data = random_task(seed)
    y, ids = data.y.tolist(), data.seen_ids
    pairs = [
        (lambda logits: losses.cross_entropy(logits, data.y), lambda rows: reference.cross_entropy(rows, y)),
        (
            lambda logits: losses.incremental_cross_entropy(logits, data.y, data.seen, 0.25, 2.0),
            lambda rows: reference.incremental_cross_entropy(rows, y, ids, 0.25, 2.0),
        ),
        (
            lambda logits: losses.revised_cross_entropy(logits, data.y, data.seen, 4.0),
            lambda rows: reference.revised_cross_entropy_listed(rows, y, ids, 4.0),
        ),
    ]
    for gate in GATES:
        pairs.append(
            (
                lambda logits, gate=gate: losses.revised_cross_entropy(logits, data.y, data.seen, 0.3, gate),
                lambda rows, gate=gate: reference.revised_cross_entropy(rows, y, ids, 0.3, gate),
            )
        )
    for loss, twin in pairs:
        _, gradient = with_gradient(loss, data.logits)
        np.testing.assert_allclose(gradient, differences(twin, data.logits), atol=1e-8)
        assert gradient.abs().max() > 0.01


@SMALL
@given(tasks())
def test_both_weights_1_make_eq_6_plain_cross_entropy(task):
    value, gradient = with_gradient(
        lambda logits: losses.incremental_cross_entropy(logits, task.y, task.seen, 1.0, 1.0), task.logits
    )
    plain, plain_gradient = with_gradient(lambda logits: losses.cross_entropy(logits, task.y), task.logits)
    torch.testing.assert_close(value, plain, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(gradient, plain_gradient, rtol=1e-13, atol=1e-14)


# --- Gradients in closed form.
BY_NAME = {
    "plain": lambda logits, y, seen, lambda_1, lambda_2, gate: losses.cross_entropy(logits, y),
    "incremental": lambda logits, y, seen, lambda_1, lambda_2, gate: losses.incremental_cross_entropy(
        logits, y, seen, lambda_1, lambda_2
    ),
    "revised": lambda logits, y, seen, lambda_1, lambda_2, gate: losses.revised_cross_entropy(
        logits, y, seen, lambda_1, gate
    ),
}


def assert_slope_is_autograds(loss, logits, y, seen, lambda_1, lambda_2, gate):
    value, slope = losses.loss_and_slope(logits, y, seen, loss=loss, lambda_1=lambda_1, lambda_2=lambda_2, gate=gate)
    expected, gradient = with_gradient(lambda logits: BY_NAME[loss](logits, y, seen, lambda_1, lambda_2, gate), logits)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(slope, gradient, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("loss", BY_NAME)
@SMALL
@given(tasks(), LAMBDAS, LAMBDAS, st.sampled_from(GATES))
def test_the_slope_of_every_loss_is_autograds(loss, task, lambda_1, lambda_2, gate):
    logits = task.logits.clone()
    assert_slope_is_autograds(loss, logits, task.y, task.seen, lambda_1, lambda_2, gate)
    code = torch.tensor(losses.GATES.index(gate))
    named, numbered = (
        losses.loss_and_slope(logits, task.y, task.seen, loss=loss, lambda_1=lambda_1, lambda_2=lambda_2, gate=each)
        for each in (gate, code)
    )
    assert all(torch.equal(a, b) for a, b in zip(named, numbered, strict=True))
    assert torch.equal(logits, task.logits)


@pytest.mark.parametrize("loss", BY_NAME)
@pytest.mark.parametrize("gate", GATES)
def test_the_slope_without_unseen_classes_is_that_of_plain_cross_entropy(loss, gate):
    data = random_task(0, n_unseen=0, n_seen=5)
    found = losses.loss_and_slope(data.logits, data.y, data.seen, loss=loss, lambda_1=4.0, lambda_2=0.5, gate=gate)
    plain = with_gradient(lambda logits: losses.cross_entropy(logits, data.y), data.logits)
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("loss", ["revised", "incremental"])
def test_with_lambda_1_zero_seen_rows_have_no_slope_in_unseen_classes(loss, gate):
    data = random_task(1)
    for lambda_1 in (0.0, torch.zeros(1, dtype=torch.double)):
        value, slope = losses.loss_and_slope(data.logits, data.y, data.seen, loss=loss, lambda_1=lambda_1, gate=gate)
        assert value.isfinite()
        assert slope.isfinite().all()
        assert (slope[data.seen[data.y]][:, ~data.seen] == 0).all()
        assert (slope[~data.seen[data.y]][:, ~data.seen] != 0).all()


@pytest.mark.parametrize("loss", BY_NAME)
def test_members_of_one_call_have_lambdas_and_gates_of_their_own(loss):
    choices = list(itertools.product((0.0, 0.3, 4.0), (0.5, 2.0), GATES))
    stack = [random_task(seed) for seed in range(len(choices))]
    logits, y = torch.stack([data.logits for data in stack]), torch.stack([data.y for data in stack])
    seen = stack[0].seen
    lambda_1, lambda_2 = (torch.tensor([[choice[i]] for choice in choices], dtype=torch.double) for i in (0, 1))
    gate = torch.tensor([GATES.index(choice[2]) for choice in choices], dtype=torch.int32)
    value, slope = losses.loss_and_slope(logits, y, seen, loss=loss, lambda_1=lambda_1, lambda_2=lambda_2, gate=gate)
    assert value.shape == (len(choices),)
    for k, (of_seen, of_unseen, name) in enumerate(choices):
        expected, gradient = with_gradient(
            lambda logits, k=k, rest=(of_seen, of_unseen, name): BY_NAME[loss](logits, y[k], seen, *rest), logits[k]
        )
        torch.testing.assert_close(value[k], expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(slope[k], gradient, rtol=1e-11, atol=1e-15)


def test_the_numbers_of_gates_follow_their_names():
    assert list(losses.GATES) == GATES


@pytest.mark.parametrize("loss", BY_NAME)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_slopes_in_half_precision_are_those_in_single_precision(loss, dtype):
    data = random_task(4, n=30)
    logits = (torch.nn.functional.normalize(data.logits) / 1e-4).to(dtype)
    options = {"loss": loss, "lambda_1": 0.3, "lambda_2": 0.7, "gate": "always"}
    value, slope = losses.loss_and_slope(logits, data.y, data.seen, **options)
    wide, wide_slope = losses.loss_and_slope(logits.float(), data.y, data.seen, **options)
    assert value.dtype == slope.dtype == torch.float32
    assert torch.equal(value, wide)
    assert torch.equal(slope, wide_slope)
    assert slope.isfinite().all()


# --- The edges of the problem.
@pytest.mark.parametrize("gate", GATES)
@SMALL
@given(tasks())
def test_with_lambda_1_zero_seen_rows_know_no_unseen_class(gate, task):
    def both(logits):
        revised = losses.revised_cross_entropy(logits, task.y, task.seen, 0.0, gate)
        return torch.stack([revised, losses.incremental_cross_entropy(logits, task.y, task.seen, 0.0, 1.0)])

    values, _ = with_gradient(both, task.logits)
    position = {c: i for i, c in enumerate(task.seen_ids)}
    expected = 0.0
    for row, label in zip(task.logits.tolist(), task.y.tolist(), strict=True):
        is_seen = label in position
        among = [row[c] for c in task.seen_ids] if is_seen else row
        expected += reference.cross_entropy([among], [position[label] if is_seen else label]) / len(task.y)
    assert values.tolist() == pytest.approx([expected, expected], rel=1e-12, abs=1e-13)
    for index in (0, 1):
        _, gradient = with_gradient(lambda logits, index=index: both(logits)[index], task.logits)
        assert (gradient[task.seen[task.y]][:, ~task.seen] == 0).all()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_without_unseen_classes_every_loss_is_plain_cross_entropy(name):
    data = random_task(0, n_unseen=0, n_seen=5)
    value, gradient = with_gradient(lambda logits: LOSSES[name](logits, data.y, data.seen), data.logits)
    plain, plain_gradient = with_gradient(lambda logits: losses.cross_entropy(logits, data.y), data.logits)
    torch.testing.assert_close(value, plain, rtol=1e-13, atol=0)
    torch.testing.assert_close(gradient, plain_gradient, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("gate", GATES)
def test_a_batch_of_unseen_rows_alone_has_plain_cross_entropy(gate):
    data = random_task(1)
    data.y = torch.full_like(data.y, 5)
    plain, plain_gradient = with_gradient(lambda logits: losses.cross_entropy(logits, data.y), data.logits)
    value, gradient = with_gradient(
        lambda logits: losses.revised_cross_entropy(logits, data.y, data.seen, 0.3, gate), data.logits
    )
    torch.testing.assert_close(value, plain, rtol=1e-13, atol=0)
    torch.testing.assert_close(gradient, plain_gradient, rtol=1e-12, atol=1e-15)
    value, gradient = with_gradient(
        lambda logits: losses.incremental_cross_entropy(logits, data.y, data.seen, 0.3, 0.25), data.logits
    )
    torch.testing.assert_close(value, 0.25 * plain, rtol=1e-13, atol=0)
    torch.testing.assert_close(gradient, 0.25 * plain_gradient, rtol=1e-12, atol=1e-15)


def test_a_single_unseen_class_with_lambda_1_one_is_plain_cross_entropy():
    data = random_task(2, n_unseen=1)
    value = losses.revised_cross_entropy(data.logits, data.y, data.seen, 1.0, "always")
    torch.testing.assert_close(value, losses.cross_entropy(data.logits, data.y), rtol=1e-13, atol=0)


# --- Leading dimensions.
@pytest.mark.parametrize("name", LOSSES)
def test_leading_dimensions_are_separate_calls(name):
    stack = [random_task(seed) for seed in range(3)]
    logits, y = torch.stack([data.logits for data in stack]), torch.stack([data.y for data in stack])
    seen = stack[0].seen
    value, gradient = with_gradient(lambda logits: LOSSES[name](logits, y, seen), logits)
    assert value.shape == (3,)
    for k, data in enumerate(stack):
        one, one_gradient = with_gradient(lambda logits, data=data: LOSSES[name](logits, data.y, seen), data.logits)
        torch.testing.assert_close(value[k], one, rtol=1e-13, atol=0)
        torch.testing.assert_close(gradient[k], one_gradient, rtol=1e-12, atol=1e-15)
    deeper = LOSSES[name](logits[None], y[None], seen)
    torch.testing.assert_close(deeper, value[None], rtol=1e-13, atol=0)


def test_lambdas_may_differ_between_leading_dimensions():
    stack = [random_task(seed) for seed in range(4)]
    logits, y = torch.stack([data.logits for data in stack]), torch.stack([data.y for data in stack])
    seen, weights = stack[0].seen, torch.tensor([[0.0], [0.3], [1.0], [4.0]], dtype=torch.double)
    for gate in GATES:
        together = losses.revised_cross_entropy(logits, y, seen, weights, gate)
        apart = [
            losses.revised_cross_entropy(data.logits, data.y, seen, weight.item(), gate)
            for data, weight in zip(stack, weights, strict=True)
        ]
        torch.testing.assert_close(together, torch.stack(apart), rtol=1e-13, atol=0)
    together = losses.incremental_cross_entropy(logits, y, seen, weights, weights.flip(0))
    apart = [
        losses.incremental_cross_entropy(data.logits, data.y, seen, a.item(), b.item())
        for data, a, b in zip(stack, weights, weights.flip(0), strict=True)
    ]
    torch.testing.assert_close(together, torch.stack(apart), rtol=1e-12, atol=0)


# --- Numbers at the edge of their range.
@pytest.mark.parametrize("temperature", [1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("name", LOSSES)
def test_no_temperature_overflows(name, temperature):
    data = random_task(3, n=30)
    logits = torch.nn.functional.normalize(data.logits).float() / temperature
    assert logits.abs().max() > 0.5 / temperature
    value, gradient = with_gradient(lambda logits: LOSSES[name](logits, data.y, data.seen), logits)
    wide, wide_gradient = with_gradient(lambda logits: LOSSES[name](logits, data.y, data.seen), logits.double())
    assert gradient.isfinite().all()
    torch.testing.assert_close(value.double(), wide, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient.double(), wide_gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_is_computed_in_float32(name, dtype):
    data = random_task(4)
    logits = (torch.nn.functional.normalize(data.logits) / 1e-4).to(dtype)  # up to 10,000
    value, gradient = with_gradient(lambda logits: LOSSES[name](logits, data.y, data.seen), logits)
    wide, wide_gradient = with_gradient(lambda logits: LOSSES[name](logits, data.y, data.seen), logits.float())
    assert value.dtype == torch.float32
    assert gradient.dtype == dtype
    torch.testing.assert_close(value, wide, rtol=0, atol=0)
    torch.testing.assert_close(gradient, wide_gradient.to(dtype), rtol=0, atol=0)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
@SMALL
@given(st.data())
def test_extreme_logits_give_finite_numbers(name, data):
    dtype, largest = data.draw(
        st.sampled_from(
            [(torch.float16, 65504.0), (torch.bfloat16, 1e37), (torch.float32, 1e37), (torch.double, 1e300)]
        )
    )
    row = st.lists(st.sampled_from([-largest, -1.0, 0.0, 1.0, largest]), min_size=4, max_size=4)
    logits = torch.tensor(data.draw(st.lists(row, min_size=3, max_size=3)), dtype=dtype)
    y = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=3, max_size=3)))
    seen = torch.tensor([True, True, *data.draw(st.lists(st.booleans(), min_size=2, max_size=2))])
    value, gradient = with_gradient(lambda logits: LOSSES[name](logits, y, seen), logits)
    assert value.isfinite()
    assert value >= 0  # the true class is among those that it competes with
    assert gradient.isfinite().all()
    assert gradient.abs().max() <= 1


@pytest.mark.parametrize("temperature", [1.0, 1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("lambda_1", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gradients_taken_apart_survive_every_temperature(temperature, lambda_1, dtype):
    data = random_task(5, n=30)
    rng = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(30, 4, generator=rng)).to(dtype)
    weights = torch.nn.functional.normalize(torch.randn(7, 4, generator=rng)).to(dtype)

    def by_autograd(loss):
        values = weights.double().requires_grad_()
        return -torch.autograd.grad(loss(x.double() @ values.T / temperature), values)[0].float()

    scale = 1 / temperature
    step = losses.incremental_gradient(x, data.y, weights, data.seen, temperature, lambda_1, 0.5)
    expected = by_autograd(lambda logits: losses.incremental_cross_entropy(logits, data.y, data.seen, lambda_1, 0.5))
    torch.testing.assert_close(step, expected[~data.seen], rtol=1e-3, atol=1e-3 * scale)
    pull, push = losses.pull_and_push(x, data.y, weights, temperature)
    expected = by_autograd(lambda logits: losses.cross_entropy(logits, data.y))
    torch.testing.assert_close(pull + push, expected, rtol=1e-3, atol=1e-3 * scale)
